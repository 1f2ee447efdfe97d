//! What the kernel has changed is no longer forwarded as before.

use std::process::Command;

use testbed::{Offload, mac, poll};

use crate::change::CHANGES;
use crate::pair::{BRIDGE, DEVICE, LIMIT, Pair, privileged, since};

#[test]
fn a_hanging_mirror_sends_packets_by_the_slow_path() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(Offload::Full, true);
    let accels = pair.accelerate();
    accels[0].pause(true);
    poll("the heartbeat to be too old", LIMIT, || {
        let before = accels[0].status();
        pair.ping(&[]);
        let taken = since(&accels[0], &before, "egress_hit");
        let stale = since(&accels[0], &before, "egress_stale");
        Ok(if taken == 0 && stale > 0 { Ok(()) } else { Err(format!("{taken} taken")) })
    })
    .unwrap();
    accels[0].pause(false);
    pair.settle(&accels);
}

#[test]
fn a_moved_address_is_no_longer_sent_where_it_was() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(Offload::Full, true);
    let accels = pair.accelerate();
    let moved = mac("tenant-b", "eth0").to_string();
    let fdb = |what: &str, to: &str| {
        let mut command = Command::new("bridge");
        command.args(["fdb", what, &moved, "dev", DEVICE, "dst", to, "self", "permanent"]);
        pair.a.run(&mut command).unwrap();
    };
    let generation = accels[0].status().generation;
    // Nobody has that address: nothing may reach the tenant now.
    fdb("replace", "10.0.0.99");
    poll("the change to be followed", LIMIT, || {
        let status = accels[0].status();
        let known = status.devices[0].remotes.iter().any(|remote| {
            remote.name == "10.0.0.99"
                && remote.refused.as_deref() == Some("10.0.0.99: no usable neighbour entry")
        });
        let followed = known && status.generation > generation;
        Ok(followed.then_some(()).ok_or_else(|| format!("{status:#?}")))
    })
    .unwrap();
    let before = accels[0].status();
    let mut ping = Command::new("ping");
    ping.args(["-n", "-c", "2", "-i", "0.01", "-W", "1", "10.1.0.12"]);
    pair.tenant_a.run(&mut ping).unwrap_err();
    assert_eq!(since(&accels[0], &before, "egress_hit"), 0, "{:#?}", accels[0].status());
    fdb("replace", "10.0.0.2");
    pair.settle(&accels);
}

/// How soon is the benchmark's to tell (`make bench-accel`).
#[test]
fn after_every_change_datagrams_leave_as_the_kernel_has_it() {
    if !privileged() {
        return;
    }
    for change in CHANGES {
        // Ends with an error where the old way goes on.
        let window = change.window();
        println!("{}: {:?}, the call {:?}", change.name, window.last, window.call);
    }
}

#[test]
fn tenants_that_come_and_go_are_picked_up() {
    if !privileged() {
        return;
    }
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
            ["egress_hit", "ingress_hit"].map(|word| since(&accels[1], &before, word));
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
    if !privileged() {
        return;
    }
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
