//! The fast path across the border between a sandbox and its host.

use std::process::Command;

use accel::{Accel, Wanted};
use test_support::{need, require};
use testbed::{Host, Offload, poll};

use super::pair::{BRIDGE, DEVICE, LIMIT, Pair, sh, since};
use super::refusals::{CASES, OF_SANDBOXES, refused};
use super::traffic::stream_past;
use super::underlay::{Path, SOME, others};

#[test]
fn traffic_crosses_the_border_past_bridge_and_device() {
    crosses(&SOME);
}

#[test]
fn traffic_crosses_the_border_in_the_other_combinations() {
    crosses(&others());
}

fn crosses(paths: &[Path]) {
    require!(need::root());
    for &(underlay, offload, udp_csum) in paths {
        let pair = Pair::sandboxed_over(underlay, offload, udp_csum);
        let accels = pair.accelerate();
        let device = |sandbox: &Host| sandbox.netlink().link(DEVICE).unwrap().counters;
        let all = || device(pair.sandbox_b()).rx_packets;
        let what = format!("{offload} over {underlay:?}, checksum {udp_csum}");
        stream_past(&pair, &accels, udp_csum, &what);
        // The device has not seen packets that were delivered directly.
        poll("pings that the device does not see", LIMIT, || {
            let (hits, slow) = (accels[1].status().packets("decap_hit"), all());
            pair.ping(&[]);
            let hits = accels[1].status().packets("decap_hit") - hits;
            let slow = all() - slow;
            let past = hits >= 3 && slow == 0;
            Ok(past.then_some(()).ok_or_else(|| format!("{hits} past, {slow} by the device")))
        })
        .unwrap();
    }
}

#[test]
fn hooks_that_would_be_bypassed_are_refused_in_both_namespaces() {
    require!(need::root());
    let pair = Pair::sandboxed(Offload::Full, true);
    let accels = pair.accelerate();
    let mut done = 0;
    for (change, undo, expected, flows) in CASES.iter().chain(OF_SANDBOXES) {
        // Some devices are in one of the namespaces only. Routes belong to the underlay.
        let at_nic = change.contains("nic0") || change.starts_with("ip route");
        let of_port = change.contains("veth0");
        if change.contains("nomaster") || (at_nic && of_port) {
            continue;
        }
        let sandbox: &Host = pair.sandbox_a();
        let global = ["ip rule", "ip xfrm"].iter().any(|what| change.starts_with(what));
        for host in [&pair.a, sandbox] {
            if !global && (at_nic != std::ptr::eq(host, &raw const pair.a)) {
                continue;
            }
            sh(host, change);
            // The status names the device with its namespace as a prefix.
            let known = match change.contains("netdev") {
                // A reason of the NIC is reported for each remote VTEP.
                true => expected.replace("[vxlan0: ", "[10.0.0.2: "),
                false => expected.trim_start_matches('[').to_owned(),
            };
            refused(&accels[0], &known, change);
            if *flows {
                pair.ping(&[]);
            }
            sh(host, undo);
            pair.settle(&accels);
            done += 1;
        }
    }
    assert!(done >= 17, "only {done}");
    sh(pair.sandbox_a(), "ip link set vxlan0 nomaster");
    refused(&accels[0], "routed, and not in the namespace of its NIC", "nomaster");
}

#[test]
fn a_sandbox_is_found_let_go_and_found_again() {
    require!(need::root());
    let mut pair = Pair::sandboxed(Offload::Full, true);
    let accels = pair.accelerate();
    let status = accels[0].status();
    let name = pair.sandbox_a().device();
    assert!(status.accelerates(&name), "{name}: {status:#?}");
    pair.sandboxes.as_mut().unwrap()[0].abandon();
    poll("the sandbox to be let go", LIMIT, || {
        let status = accels[0].status();
        let gone = status.devices.is_empty() && pairs(&pair.a).is_empty();
        Ok(gone.then_some(()).ok_or_else(|| format!("{status:#?}, {:?}", pairs(&pair.a))))
    })
    .unwrap();
    pair.ping(&[]);
    pair.sandboxes.as_mut().unwrap()[0].keep();
    pair.settle(&accels);
    drop(accels);
    for host in [&pair.a, &pair.b, pair.sandbox_a(), pair.sandbox_b()] {
        assert_eq!(pairs(host), Vec::<String>::new(), "left in {}", host.name());
    }
    pair.ping(&[]);
}

/// Veth pairs that belong to the fast path.
pub fn pairs(host: &Host) -> Vec<String> {
    let links = host.netlink().links().unwrap();
    links.into_iter().map(|link| link.name).filter(|name| name.starts_with("ovl")).collect()
}

#[test]
fn only_leftovers_of_a_killed_process_are_removed() {
    require!(need::root());
    let host = Host::new("a").unwrap();
    sh(
        &host,
        "ip link add ovl1 type veth peer name peer1; ip link set ovl1 alias 'overlane accel'
         ip link add ovl2 type veth peer name peer2; ip link set ovl2 alias 'mine'
         ip link add ovl3 type bridge; ip link set ovl3 alias 'overlane accel'",
    );
    let accel = Accel::start(host.netns(), Wanted::All).unwrap();
    assert_eq!(pairs(&host), ["ovl2", "ovl3"]);
    drop(accel);
    assert_eq!(pairs(&host), ["ovl2", "ovl3"]);
}

#[test]
fn a_device_is_wanted_by_the_name_of_its_namespace_and_its_own() {
    require!(need::root());
    let pair = Pair::sandboxed(Offload::Full, true);
    let named = |name: String| Wanted::Named([name].into());
    let accel = Accel::start(pair.a.netns(), named(DEVICE.to_owned())).unwrap();
    assert!(accel.status().devices.is_empty(), "{:#?}", accel.status());
    accel.want(named(pair.sandbox_a().device())).unwrap();
    pair.settle_sender(&accel);
    accel.want(named("vxlan9".to_owned())).unwrap();
    poll("the pair to be gone", LIMIT, || {
        let left = pairs(&pair.a);
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .unwrap();
    pair.ping(&[]);
}

#[test]
fn a_sandbox_that_cannot_be_joined_takes_the_slow_path_with_a_reason() {
    require!(need::root());
    let pair = Pair::sandboxed(Offload::Full, true);
    let name = format!("ovl{}", pair.sandbox_a().netns().inode());
    sh(&pair.a, &format!("ip link add {name} type bridge"));
    let accel = Accel::start(pair.a.netns(), Wanted::All).unwrap();
    pair.ping(&[]);
    refused(&accel, &format!("vxlan0: add veth {name}: File exists"), "a name is taken");
    drop(accel);
    // The underlay is not visible from the sandbox.
    let accel = Accel::start(pair.sandbox_a().netns(), Wanted::All).unwrap();
    refused(&accel, "[vxlan0: its underlay is in another namespace", "started in the sandbox");
    pair.ping(&[]);
    drop(accel);
    assert_eq!(pairs(&pair.a), [name]);
}

#[test]
fn an_address_that_moves_is_no_longer_sent_where_it_was() {
    require!(need::root());
    let pair = Pair::sandboxed(Offload::Full, true);
    let accels = pair.accelerate();
    let moved = testbed::mac("tenant-b", "eth0");
    let nobody = std::net::Ipv4Addr::new(10, 0, 0, 99);
    pair.sandbox_a().netlink().add_vxlan_fdb(DEVICE, moved, nobody.into()).unwrap();
    refused(&accels[0], "[10.0.0.99: 10.0.0.99: no usable neighbour entry]", "a moved entry");
    let before = accels[0].status();
    let mut ping = Command::new("ping");
    ping.args(["-n", "-c", "2", "-i", "0.01", "-W", "1", "10.1.0.12"]);
    pair.tenant_a.run(&mut ping).unwrap_err();
    assert_eq!(since(&accels[0], &before, "encap_hit"), 0, "{:#?}", accels[0].status());
    let back = testbed::Wire::B;
    pair.sandbox_a().netlink().add_vxlan_fdb(DEVICE, moved, back.into()).unwrap();
    pair.settle(&accels);
    pair.sandbox_a().netlink().set_down(BRIDGE).unwrap();
    refused(&accels[0], "br0 is down or has no carrier", "a bridge down");
}
