//! A fix is undone to the exact previous state, and never over a change by another program.

use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::Duration;

use doctor::host::{Host, Reading};
use doctor::{Finding, Scope, collect, diagnose};
use lab::{Network, Params};
use settings::journal::{Journal, JournalError, Undone, seconds_from_now};
use settings::{Change, apply};
use test_support::{need, require};
use testbed::{NIC, Offload};

fn sick() -> Result<Network, String> {
    need::networks()?;
    let params = Params::new(1500, Offload::Full);
    let network = lab::find("vxlan").unwrap().build(&params).unwrap();
    let host = |name| network.host(name).unwrap();
    host("a").set_features(NIC, &[("tx-udp_tnl-csum-segmentation", false)]).unwrap();
    host("b").set_features("vxlan0", &[("rx-gro", false)]).unwrap();
    host("tenant-a").netlink().set_mtu("eth0", 1500).unwrap();
    host("tenant-a").sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
    let mut ip = Command::new("ip");
    host("tenant-b").run(ip.args(["link", "set", "dev", "eth0", "gso_max_size", "16000"])).unwrap();
    host("b").netlink().set_down("veth0").unwrap();
    Ok(network)
}

const FAULTS: [&str; 6] = ["OV002", "OV005", "OV007", "OV015", "OV020", "OV051"];

fn read(network: &Network) -> Host {
    let hosts = network.hosts().iter();
    let named =
        hosts.clone().map(|host| (host.name().to_owned(), host.netns().try_clone().unwrap()));
    let mut read = collect(Scope::Some(named.collect()), Duration::ZERO).unwrap();
    for (namespace, host) in read.namespaces.iter_mut().zip(hosts) {
        // Only this test's descriptors lead to its hosts.
        namespace.path = Some(format!("/proc/self/fd/{}", host.netns().as_fd().as_raw_fd()));
    }
    read
}

/// Settings of a host, without counters and volatile state.
fn settings(network: &Network) -> String {
    let mut host = read(network);
    let mut text = String::new();
    for namespace in &mut host.namespaces {
        if let Reading::Read(links) = &mut namespace.interfaces {
            for link in links {
                link.counters = Default::default();
                // The kernel sets it, a moment later.
                (link.carrier, link.carrier_is_new) = (false, false);
            }
        }
        let (interfaces, devices) = (&namespace.interfaces, &namespace.devices);
        text += &format!("{interfaces:#?}{devices:#?}{:#?}", namespace.sysctls);
    }
    text
}

fn found(network: &Network) -> Vec<Finding> {
    let mut all = diagnose(&read(network)).findings;
    all.retain(|finding| FAULTS.contains(&finding.code.as_str()));
    all
}

fn changes(finding: &Finding) -> &[Change] {
    &finding.fix.as_ref().unwrap().changes
}

/// The change of a finding that has one.
fn change(finding: &Finding) -> &Change {
    let [change] = changes(finding) else { panic!("{:?}", finding.fix) };
    change
}

#[test]
fn all_is_fixed_and_all_is_taken_back() {
    let network = require!(sick());
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let before = settings(&network);
    let findings = found(&network);
    let mut codes: Vec<&str> = findings.iter().map(|finding| finding.code.as_str()).collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes, FAULTS);
    let mut made: Vec<&Change> = Vec::new();
    for finding in &findings {
        for change in changes(finding) {
            // Two findings may propose the same change.
            if !made.contains(&change) {
                journal.make(&finding.code, change, None).unwrap();
                made.push(change);
            }
        }
    }
    // The carrier appears a moment after its device is up.
    let healthy = || match &found(&network)[..] {
        [] => Ok(Ok(())),
        left => Ok(Err(format!("{left:?}"))),
    };
    testbed::poll("health", Duration::from_secs(10), healthy).unwrap();
    assert_ne!(settings(&network), before);
    let entries = journal.entries().unwrap();
    assert_eq!(entries.len(), made.len());
    assert!(journal.overdue().unwrap().is_empty());
    for entry in entries.iter().rev() {
        assert_eq!(journal.undo(entry).unwrap(), Undone::Restored, "{entry:?}");
    }
    let after = settings(&network);
    let differing: Vec<_> =
        before.lines().zip(after.lines()).filter(|(before, after)| before != after).collect();
    assert!(after == before, "{differing:?}");
    assert!(journal.entries().unwrap().is_empty());
}

#[test]
fn somebody_elses_change_is_left_alone() {
    let network = require!(sick());
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let findings = found(&network);
    let mtu = change(findings.iter().find(|finding| finding.code == "OV015").unwrap());
    let tenant = network.host("tenant-a").unwrap();
    let set = |to| tenant.netlink().set_mtu("eth0", to).unwrap();
    let is = || tenant.netlink().link("eth0").unwrap().mtu;

    set(1300);
    assert!(matches!(
        journal.make("OV015", mtu, None),
        Err(JournalError::Apply(apply::Error::Changed { .. }))
    ));
    assert_eq!((is(), journal.entries().unwrap()), (1300, vec![]));

    set(1500);
    let entry = journal.make("OV015", mtu, None).unwrap();
    assert_eq!(is(), 1450);
    set(1300);
    assert!(matches!(journal.undo(&entry), Err(JournalError::Apply(apply::Error::Changed { .. }))));
    assert_eq!((is(), journal.entries().unwrap().len()), (1300, 1), "the entry stays");

    set(1500);
    assert_eq!(journal.undo(&entry).unwrap(), Undone::AlreadyThere { rebooted: false });
    assert!(journal.entries().unwrap().is_empty());
}

#[test]
fn unconfirmed_changes_are_overdue_and_gone_objects_are_forgotten() {
    let network = require!(sick());
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let findings = found(&network);
    let mtu = change(findings.iter().find(|finding| finding.code == "OV015").unwrap());
    let entry = journal.make("OV015", mtu, Some(seconds_from_now(0))).unwrap();
    assert_eq!(journal.overdue().unwrap(), [entry]);
    let entry = journal.entries().unwrap().remove(0);
    journal.confirm(&entry).unwrap();
    assert!(journal.overdue().unwrap().is_empty());

    network.host("a").unwrap().netlink().delete_link("veth0").unwrap();
    let entry = journal.entries().unwrap().remove(0);
    assert!(matches!(journal.undo(&entry).unwrap(), Undone::Gone(_)));
    assert!(journal.entries().unwrap().is_empty());
}
