//! Makes every fix that is proposed for a fault: none causes another check's finding.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::Duration;

use doctor::{Diagnosis, Severity, diagnose};
use lab::Network;
use test_support::left_out;

use super::bench::{How, build, read};
use super::list;

/// Commands that affect one namespace. Others would change the machine that runs the tests.
const OWN: [&str; 6] = ["ip ", "ethtool ", "nft ", "bridge ", "tc ", "sysctl -w net.ipv4."];
/// How long the kernel may take to report a change.
const SETTLED: Duration = Duration::from_secs(10);
/// More fixes of one check than there are devices.
const MOST: usize = 8;

/// Whether each step of a command runs in a namespace of the network, by its path.
fn is_own(network: &Network, command: &str) -> bool {
    let in_one_of_ours = |step: &str| {
        network.hosts().iter().any(|host| {
            let inside = step.strip_prefix(&format!("nsenter --net={} ", path(host)));
            inside.is_some_and(|step| OWN.iter().any(|own| step.starts_with(own)))
        })
    };
    command.split(" && ").all(in_one_of_ours)
}

/// A path that opens a host's namespace.
fn path(host: &testbed::Host) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), host.netns().as_fd().as_raw_fd())
}

/// The network's diagnosis, with commands that reach each of its namespaces.
fn look(network: &Network) -> Diagnosis {
    let mut read = read(network, None);
    for namespace in &mut read.namespaces {
        namespace.path = network.host(&namespace.label).map(|host| path(host));
    }
    diagnose(&read)
}

/// Checks with a finding at warn or above.
fn found(diagnosis: &Diagnosis) -> BTreeSet<String> {
    let reported = diagnosis.findings.iter().filter(|found| found.severity >= Severity::Warn);
    reported.map(|found| found.code.clone()).collect()
}

/// Makes the fixes of a check's findings one after the other, and diagnoses after each. A finding
/// that a fix causes is a problem, even if another fix could remove it. Returns the number of fixes
/// made.
pub fn make_each(network: &Network, code: &str, problems: &mut Vec<String>) -> usize {
    let mut now = look(network);
    let mut made: Vec<String> = Vec::new();
    while made.len() < MOST {
        let fixes = now.findings.iter().filter(|finding| finding.code == code);
        let mut fixes = fixes.filter_map(|finding| Some(finding.fix.as_ref()?.command.clone()));
        let Some(command) = fixes.find(|fix| is_own(network, fix) && !made.contains(fix)) else {
            break;
        };
        let output = Command::new("sh").args(["-c", &command]).output().unwrap();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            problems.push(format!("{code}: {command}: {said}"));
        }
        let before = found(&now);
        now = look(network);
        for other in found(&now).difference(&before) {
            problems.push(format!("{code}: {command} makes {other} true"));
        }
        made.push(command);
    }
    // The kernel reports late that a link is up.
    let mended = testbed::poll("the end of the finding", SETTLED, || {
        let left = !made.is_empty() && found(&look(network)).contains(code);
        Ok(if left { Err(code.to_owned()) } else { Ok(()) })
    });
    if mended.is_err() {
        problems.push(format!("{code}: still found after {made:?}"));
    }
    made.len()
}

#[test]
fn no_fix_makes_the_finding_of_another_check_true() {
    let machine = test_support::require!(super::privileged());
    let (mut made, mut problems) = (0, Vec::new());
    for fault in list::FAULTS {
        let How::Set(set) = fault.how else { continue };
        let mode = lab::find(fault.mode).unwrap();
        if let Err(unsupported) = mode.probe(&machine) {
            left_out(&format!("{}: {}", fault.mode, unsupported.reason));
            continue;
        }
        let network = build(fault.mode, if fault.code == "OV017" { 9000 } else { 1500 });
        set(&network);
        made += make_each(&network, fault.code, &mut problems);
    }
    println!("{made} fixes made");
    assert!(made > 10, "{made} fixes made");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
