//! Packets that the kernel's rules may judge by more than their headers, and that therefore take the
//! slow path.

use std::process::Command;

use accel::Accel;
use test_support::{need, require};
use testbed::{Offload, poll};

use super::pair::{LIMIT, Pair, sh, since};
use super::refusals::refused;

/// Sends pings until a counter increases: a packet may take the slow path for another reason first,
/// such as an expired heartbeat.
fn counted(pair: &Pair, accel: &Accel, counter: &str, ping: &[&str], from_host: bool) {
    poll(counter, LIMIT, || {
        let before = accel.status();
        let host = if from_host { &pair.a } else { &pair.tenant_a };
        let mut command = Command::new("ping");
        host.run(command.args(["-n", "-c", "3", "-i", "0.01", "-W", "5"]).args(ping))?;
        Ok(match since(accel, &before, counter) {
            0 => Err(format!("{:#?}", accel.status())),
            _ => Ok(()),
        })
    })
    .unwrap();
}

/// With any rule on `ct`, conntrack holds fragments of the whole namespace.
#[test]
fn routed_fragments_are_left_to_reassembly() {
    require!(need::root());
    let pair = Pair::routed(Offload::Full, false, true);
    for host in [&pair.a, &pair.b] {
        sh(
            host,
            "nft 'table ip f { chain in { type filter hook input priority 0
                ct state established counter accept; }; }'",
        );
    }
    let accels = pair.accelerate();
    for to in ["10.1.0.12", "fd00::12"] {
        let before = accels[0].status();
        counted(&pair, &accels[0], "encap_tracking", &["-s", "3000", to], false);
        counted(&pair, &accels[1], "decap_tracking", &["-s", "3000", to], false);
        assert_eq!(since(&accels[0], &before, "encap_hit"), 0, "{to}: {:#?}", accels[0].status());
    }
    // Whole packets are fast.
    counted(&pair, &accels[0], "encap_hit", &["10.1.0.12"], false);
}

/// A socket of the host's own namespace sends marked packets through a bridge.
#[test]
fn marked_packets_are_left_to_the_rules() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    sh(
        &pair.a,
        "ip link add own0 mtu 1450 type veth peer name own1 mtu 1450
         ip link set own1 master br0 up; ip link set own0 up
         ip addr add 10.1.0.21/24 dev own0",
    );
    let accels = pair.accelerate();
    counted(&pair, &accels[0], "encap_hit", &["-I", "own0", "10.1.0.12"], true);
    counted(&pair, &accels[0], "encap_verdict", &["-m", "5", "-I", "own0", "10.1.0.12"], true);
    let before = accels[0].status();
    let mut ping = Command::new("ping");
    ping.args(["-n", "-c", "5", "-i", "0.01", "-W", "5", "-m", "5", "-I", "own0", "10.1.0.12"]);
    pair.a.run(&mut ping).unwrap();
    assert_eq!(since(&accels[0], &before, "encap_hit"), 0, "{:#?}", accels[0].status());
}

/// Conntrack gives the tunnel's entries a mark, and makes answers of what a remote end sends from the
/// tunnel's port.
#[test]
fn rules_on_entries_of_the_tunnel_are_refused() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    let accels = pair.accelerate();
    for (rule, reason) in [("ct mark 7 drop", "ct mark"), ("ct direction reply drop", "drop")] {
        let table = format!(
            "nft 'table ip f {{ chain in {{ type filter hook input priority 0; {rule}; }}; }}'"
        );
        sh(&pair.a, &table);
        refused(&accels[0], reason, rule);
        sh(&pair.a, "nft delete table ip f");
        pair.settle(&accels);
    }
}
