//! After a change in the kernel, packets are no longer forwarded as before.

use std::process::Command;
use std::time::{Duration, Instant};

use accel::{Accel, Cause, Status, Wanted};
use test_support::{need, require};
use testbed::{NIC, Offload, mac, poll};

use super::change::CHANGES;
use super::pair::{BRIDGE, DEVICE, LIMIT, PORT, Pair, address, bridge, entry, sh, since};

#[test]
fn a_hanging_mirror_sends_packets_by_the_slow_path() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let accels = pair.accelerate();
    accels[0].pause(true);
    poll("the heartbeat to be too old", LIMIT, || {
        let before = accels[0].status();
        pair.ping(&[]);
        let taken = since(&accels[0], &before, "encap_hit");
        let stale = since(&accels[0], &before, "encap_stale");
        Ok(if taken == 0 && stale > 0 { Ok(()) } else { Err(format!("{taken} taken")) })
    })
    .unwrap();
    accels[0].pause(false);
    pair.settle(&accels);
}

/// The state is compared with the plan's once a second. Packets alone are no change.
#[test]
fn traffic_alone_causes_no_rebuild() {
    const AUDITS: Duration = Duration::from_millis(3500);
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let accels = pair.accelerate();
    let audits = || accels.each_ref().map(|accel| accel.vitals().rebuilds(Cause::Audit));
    let (before, start) = (audits(), Instant::now());
    while start.elapsed() < AUDITS {
        pair.ping(&[]);
    }
    assert_eq!(audits(), before);
}

#[test]
fn a_moved_address_is_no_longer_sent_where_it_was() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let accels = pair.accelerate();
    let moved = mac("tenant-b", "eth0").to_string();
    let fdb = |what: &str, to: &str| {
        let mut command = Command::new("bridge");
        command.args(["fdb", what, &moved, "dev", DEVICE, "dst", to, "self", "permanent"]);
        pair.a.run(&mut command).unwrap();
    };
    let generation = accels[0].status().generation;
    // No host has that address: no packet may reach the tenant now.
    fdb("replace", "10.0.0.99");
    poll("the change to be followed", LIMIT, || {
        let status = accels[0].status();
        let known = status.devices[0].remotes.iter().any(|remote| {
            remote.name == "10.0.0.99"
                && remote.refused.as_ref().is_some_and(|refused| {
                    refused.evidence == "10.0.0.99: no usable neighbour entry"
                })
        });
        let followed = known && status.generation > generation;
        Ok(followed.then_some(()).ok_or_else(|| format!("{status:#?}")))
    })
    .unwrap();
    let before = accels[0].status();
    let mut ping = Command::new("ping");
    ping.args(["-n", "-c", "2", "-i", "0.01", "-W", "1", "10.1.0.12"]);
    pair.tenant_a.run(&mut ping).unwrap_err();
    assert_eq!(since(&accels[0], &before, "encap_hit"), 0, "{:#?}", accels[0].status());
    fdb("replace", "10.0.0.2");
    pair.settle(&accels);
}

/// A status without its counters.
fn said(accel: &Accel) -> Status {
    let mut status = Status { generation: 0, followed: 0, ..accel.status() };
    status.packets.clear();
    for device in &mut status.devices {
        device.packets.clear();
        device.ports.iter_mut().for_each(|port| port.packets.clear());
    }
    status
}

#[test]
fn single_entries_are_followed_while_all_others_stay_in_force() {
    require!(need::root());
    for pair in [Pair::new(Offload::Full, false), Pair::sandboxed(Offload::Full, false)] {
        let [accel, _other] = pair.accelerate();
        let host = pair.sandboxes.as_ref().map_or(&pair.a, |sandboxes| &*sandboxes[0]);
        // Steps: new, learned by the bridge, at another VTEP, back, at a tenant's port, removed.
        let of = |number| {
            let mac = address(number);
            let lines = [
                entry("add", number, "10.0.0.2"),
                format!("fdb add {mac} dev {DEVICE} master static\n"),
                entry("replace", number, "10.0.0.3"),
                entry("replace", number, "10.0.0.2"),
                format!("fdb replace {mac} dev {PORT} master static\n"),
                format!("fdb replace {mac} dev {DEVICE} master static\n"),
            ];
            let gone = [
                format!("fdb del {mac} dev {DEVICE} master static\n"),
                format!("fdb del {mac} dev {DEVICE} self permanent\n"),
            ];
            if number % 4 == 3 { [&lines[..], &gone].concat() } else { lines.to_vec() }
        };
        let mut numbers = 0..;
        poll("changes that are followed one by one", LIMIT, || {
            let lines: Vec<String> = numbers.by_ref().take(8).flat_map(of).collect();
            let before = accel.status();
            for line in &lines {
                bridge(host, line);
            }
            poll("the last change", LIMIT, || {
                let now = accel.status();
                let followed = now.followed >= before.followed + lines.len() as u64;
                let anew = now.generation > before.generation && now.generation & 1 == 0;
                Ok((followed || anew).then_some(()).ok_or_else(|| format!("{now:#?}")))
            })?;
            pair.ping(&[]);
            let now = accel.status();
            // Another change (a neighbour's state) may have caused a full read.
            let alone = now.generation == before.generation
                && since(&accel, &before, "encap_stale") == 0
                && since(&accel, &before, "encap_hit") > 0;
            Ok(alone.then_some(()).ok_or_else(|| format!("{now:#?}")))
        })
        .unwrap();
        let followed = said(&accel);
        drop(accel);
        assert_eq!(followed, said(&Accel::start(pair.a.netns(), Wanted::All).unwrap()));
    }
}

#[test]
fn a_neighbour_that_stays_where_it_is_is_no_change() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    let [accel, _other] = pair.accelerate();
    let mut numbers = 0..;
    poll("states that are no change", LIMIT, || {
        let before = accel.status();
        let neighbour = format!("10.0.0.2 lladdr {} dev {NIC}", mac("b", NIC));
        let state = |state| format!("ip neigh replace {neighbour} nud {state}\n");
        sh(&pair.a, &["stale", "reachable"].map(state).concat().repeat(4));
        // The last change is mirrored after all others.
        bridge(&pair.a, &entry("add", numbers.next().unwrap(), "10.0.0.2"));
        poll("the last change", LIMIT, || {
            let now = accel.status();
            let all = now.followed > before.followed || now.generation > before.generation;
            Ok(all.then_some(()).ok_or_else(|| format!("{now:#?}")))
        })?;
        let now = accel.status();
        let alone = now.generation == before.generation;
        Ok(alone.then_some(()).ok_or_else(|| format!("{now:#?}")))
    })
    .unwrap();
}

/// The benchmark measures the delay (`bench/run accel`).
#[test]
fn after_every_change_datagrams_leave_as_the_kernel_has_it() {
    require!(need::root());
    for change in CHANGES {
        // Panics if datagrams keep leaving as before.
        let window = change.window();
        println!("{}: {:?}, the call {:?}", change.name, window.last, window.call);
    }
}

#[test]
fn tenants_that_come_and_go_are_picked_up() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    let accels = pair.accelerate();
    let third = testbed::Host::new("tenant-c").unwrap();
    pair.b.connect("veth1", &third, "eth0", 1450).unwrap();
    third.address("eth0", std::net::Ipv4Addr::new(10, 1, 0, 13), 24).unwrap();
    pair.b.netlink().set_master("veth1", BRIDGE).unwrap();
    poll("the new tenant on the fast path", LIMIT, || {
        let before = accels[1].status();
        let mut ping = Command::new("ping");
        ping.args(["-n", "-c", "3", "-i", "0.01", "-W", "5", "10.1.0.13"]);
        pair.tenant_a.run(&mut ping)?;
        let [sent, received] =
            ["encap_hit", "decap_hit"].map(|word| since(&accels[1], &before, word));
        let both = sent >= 3 && received >= 3;
        Ok(both.then_some(()).ok_or_else(|| format!("{sent} sent, {received} received")))
    })
    .unwrap();
    pair.b.netlink().delete_link("veth1").unwrap();
    pair.settle(&accels);
    poll("the port to be gone", LIMIT, || {
        let status = accels[1].status();
        let there = status.devices[0].ports.iter().any(|port| port.name == "veth1");
        Ok(if there { Err(format!("{status:#?}")) } else { Ok(()) })
    })
    .unwrap();
}

#[test]
fn a_device_that_is_deleted_takes_nothing_with_it() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let accels = pair.accelerate();
    pair.a.netlink().delete_link(DEVICE).unwrap();
    poll("the device to be gone", LIMIT, || {
        let status = accels[0].status();
        let gone = status.devices.is_empty() && status.problem.is_none() && status.entries == 0;
        Ok(gone.then_some(()).ok_or_else(|| format!("{status:#?}")))
    })
    .unwrap();
}
