//! Rules that clamp the MSS, in each form that administrators write: effective rules silence the
//! finding, the others leave it.

use std::process::Command;
use std::time::Duration;

use doctor::host::Reading;
use doctor::{Host, Scope, collect, diagnose};
use lab::{Capabilities, Network, Params};
use test_support::{need, require};
use testbed::{NIC, Offload, Privileges};

/// Host a of `nat`: its bridge has an MTU of 1500, its NIC one of 1400.
fn network() -> Result<Network, String> {
    let network = build("nat")?;
    network.host("a").unwrap().netlink().set_mtu(NIC, 1400).unwrap();
    Ok(network)
}

fn build(mode: &str) -> Result<Network, String> {
    need::networks()?;
    let mode = lab::find(mode).unwrap();
    let probed = mode.probe(&Capabilities::new(Privileges::Root).unwrap());
    probed.map_err(|unsupported| format!("{}: {}", mode.name(), unsupported.reason))?;
    Ok(mode.build(&Params::new(1500, Offload::Full)).unwrap())
}

/// Reads test host `a`, without a wait between the two readings.
fn read(network: &Network) -> Host {
    let host = network.host("a").unwrap();
    let scope = Scope::Some(vec![("a".to_owned(), host.netns().try_clone().unwrap())]);
    collect(scope, std::time::Duration::ZERO).unwrap()
}

/// Whether OV019 is found in host a, and the clamps that were read there.
fn look(network: &Network) -> (bool, usize) {
    let host = read(network);
    let clamps = match &host.namespaces[0].clamps {
        Reading::Read(clamps) => clamps.len(),
        Reading::Unread(reason) => panic!("{reason}"),
    };
    let found = diagnose(&host).findings.iter().any(|finding| finding.code == "OV019");
    (found, clamps)
}

/// Rules for nftables; whether they silence the finding, and the number of clamps.
const NFT: &[(&str, bool, usize)] = &[
    ("tcp flags syn tcp option maxseg size set rt mtu", true, 1),
    ("oifname nic0 tcp flags syn tcp option maxseg size set rt mtu", true, 1),
    ("iif nic0 tcp flags syn tcp option maxseg size set 1360", true, 1),
    ("oifname \"nic*\" tcp flags syn / syn,rst tcp option maxseg size set 1360", true, 1),
    // A segment that does not fit into 1400 bytes.
    ("oifname nic0 tcp flags syn tcp option maxseg size set 1361", false, 1),
    ("oifname br0 tcp flags syn tcp option maxseg size set rt mtu", false, 1),
    ("tcp option maxseg size 1-500 counter", false, 0),
];

#[test]
fn clamps_of_nftables_are_read() {
    let network = require!(network());
    let host = network.host("a").unwrap();
    assert_eq!(look(&network), (true, 0));
    for (rule, silent, clamps) in NFT {
        for (family, hook) in [("inet", "forward"), ("ip", "postrouting")] {
            if rule.contains("iif") && hook == "postrouting" {
                continue;
            }
            let chain = format!("type filter hook {hook} priority 7;");
            host.nft(&format!("table {family} mss {{ chain c {{ {chain} {rule}; }}; }}")).unwrap();
            assert_eq!(look(&network), (!silent, *clamps), "{hook}: {rule}");
            host.nft(&format!("delete table {family} mss")).unwrap();
        }
    }
    // Packets that this host sends itself are not forwarded packets.
    let chain = "type filter hook output priority 7;";
    let rule = "tcp flags syn tcp option maxseg size set rt mtu";
    host.nft(&format!("table ip mss {{ chain c {{ {chain} {rule}; }}; }}")).unwrap();
    assert_eq!(look(&network), (true, 0));
}

#[test]
fn clamps_of_iptables_nft_are_read() {
    clamps_of("iptables-nft");
}

#[test]
fn clamps_of_iptables_legacy_are_read() {
    clamps_of("iptables-legacy");
}

/// `program` accepts each rule, and the clamps are read.
fn clamps_of(program: &str) {
    require!(need::tool(program));
    let network = require!(network());
    let host = network.host("a").unwrap();
    // A kernel without the table or the target lacks it for every rule.
    let target = ["-w", "-t", "mangle", "-A", "FORWARD", "-p", "tcp", "--tcp-flags", "SYN", "SYN"];
    let clamp = ["-j", "TCPMSS", "--clamp-mss-to-pmtu"];
    require!(host.run(Command::new(program).args(target).args(clamp)));
    host.run(Command::new(program).args(["-w", "-t", "mangle", "-F"])).unwrap();
    let rule = |action: &str, chain: &str, rest: &str| {
        let line = format!("-w -t mangle -{action} {chain} -p tcp --tcp-flags SYN,RST SYN {rest}");
        host.run(Command::new(program).args(line.split_whitespace()))
    };
    for (chain, rest, silent, clamps) in [
        ("FORWARD", "-j TCPMSS --clamp-mss-to-pmtu", true, 1),
        ("POSTROUTING", "-o nic0 -j TCPMSS --set-mss 1360", true, 1),
        ("FORWARD", "-i ni+ -j TCPMSS --clamp-mss-to-pmtu", true, 1),
        ("FORWARD", "-o nic0 -j TCPMSS --set-mss 1361", false, 1),
        ("FORWARD", "-o br0 -j TCPMSS --clamp-mss-to-pmtu", false, 1),
        ("OUTPUT", "-j TCPMSS --clamp-mss-to-pmtu", false, 0),
        ("FORWARD", "-o nic0 -j ACCEPT", false, 0),
    ] {
        rule("A", chain, rest).unwrap();
        assert_eq!(look(&network), (!silent, clamps), "{program} {chain} {rest}");
        rule("D", chain, rest).unwrap();
    }
}

#[test]
fn the_command_for_an_overlay_silences_its_finding() {
    let network = require!(build("vxlan-routed"));
    let host = network.host("a").unwrap();
    let ip = |line: &str| host.run(Command::new("ip").args(line.split(' '))).unwrap();
    ip("link add veth9 type veth peer name eth9");
    ip("link set dev veth9 up");
    ip("link set dev eth9 up");
    ip("address add 192.0.2.1/24 dev veth9");
    let found = || {
        let findings = diagnose(&read(&network)).findings;
        findings.into_iter().find(|finding| finding.code == "OV064")
    };
    // A namespace held only by this test's descriptors has no path, so its commands have no
    // `nsenter` and run inside. Starting programs of other tests briefly have copies of the
    // descriptors, and thus a path.
    let fix = testbed::poll("a fix without a path", Duration::from_secs(60), || {
        let fix = found().unwrap().fix.unwrap();
        Ok(if fix.command.contains("nsenter") { Err(fix.command) } else { Ok(fix) })
    })
    .unwrap();
    let shell = |line: &str| host.run(Command::new("sh").args(["-c", line])).unwrap();
    shell(&fix.command);
    assert_eq!(found(), None);
    shell(&fix.undo);
    assert!(found().is_some());
}
