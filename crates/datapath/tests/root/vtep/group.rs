//! A multicast group of the underlay receives flooded packets.

use std::net::IpAddr;

use super::capture::{Capture, tshark};
use super::*;
use test_support::{left_out, need, require};

fn group(plan: &Plan) -> IpAddr {
    if plan.v6 { "ff15::10".parse().unwrap() } else { [239, 1, 1, 10].into() }
}

fn config(plan: &Plan, end: usize, remotes: &[usize]) -> Config {
    let mut config = plan.config(end, remotes);
    config.networks[0].group = Some(group(plan));
    config.networks[0].any_remote = remotes.is_empty();
    config
}

#[test]
fn the_kernels_vxlan_and_we_hear_each_other_by_a_group() {
    heard_by_a_group(&[
        PLAN,
        Plan { v6: true, ..CUT },
        Plan { engine: Engine::Uring, queues: 2, ..CUT },
    ]);
}

#[test]
fn further_endpoints_are_heard_by_a_group() {
    heard_by_a_group(&[
        Plan { queues: 2, profile: Offload::None, ..CUT },
        Plan { v6: true, queues: 2, ..PLAN },
        Plan { checksum: false, ..CUT },
    ]);
}

fn heard_by_a_group(plans: &[Plan]) {
    require!(need::tun(), need::tools(&["tcpdump", "tshark"]));
    for plan in plans {
        if plan.engine == Engine::Uring && rings().inspect_err(|e| left_out(e)).is_err() {
            continue;
        }
        eprintln!("{plan:?}");
        let [a, b] = hosts(plan);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("wire.pcap");
        let capture = Capture::start(&b, &file);
        let vtep = Vtep::new(plan, &a, 0, &config(plan, 0, &[1]));
        kernel_to(plan, &b, 1, group(plan));
        // The kernel asks first, through the group, its only destination.
        ping(&b, INNER_V4[0], 56);
        ping(&b, INNER_V6[0], 56);
        // The tenant has learned the sender's address; flush it, so that the tenant asks, too.
        let mut command = Command::new("ip");
        vtep.tenant.run(command.args(["neigh", "flush", "dev", "tap0"])).unwrap();
        everything_crosses(&vtep.tenant, &b);
        let report = vtep.end();
        let network = &report.networks[0];
        expect_no_drops(&network.out);
        expect_no_drops(&network.back);
        assert!(network.learned >= 2, "{network:?}");
        drop(capture);
        let all = if plan.v6 { "ipv6" } else { "ip" };
        let to_group = |end: usize, more: &str| {
            let (from, to) = (plan.underlay(end), group(plan));
            let filter = format!("{all}.src == {from} && {all}.dst == {to} && {more}");
            tshark(&file, &["-Y", &filter])
        };
        assert!(!to_group(0, "arp.opcode == 1").is_empty(), "we have not asked by the group");
        assert!(!to_group(1, "arp.opcode == 1").is_empty(), "nor has the kernel");
        // Frames to learned addresses are not flooded.
        assert_eq!(to_group(0, "tcp"), "");
    }
}

#[test]
fn two_endpoints_hear_each_other_by_a_group_and_not_themselves() {
    require!(need::tun());
    for plan in [CUT, Plan { v6: true, ..CUT }] {
        let [host_a, host_b] = hosts(&plan);
        // Every member of the group; the MTU is that of the path to it.
        let a = Vtep::new(&plan, &host_a, 0, &config(&plan, 0, &[]));
        let b = Vtep::new(&plan, &host_b, 1, &config(&plan, 1, &[]));
        everything_crosses(&a.tenant, &b.tenant);
        for vtep in [a, b] {
            let report = vtep.end();
            expect_no_drops(&report.networks[0].out);
            expect_no_drops(&report.networks[0].back);
        }
    }
}

/// Asks for the other side's address through the group, in both directions, until it answers.
fn found_by_the_group(tenant: &Host, kernel: &Host) {
    for (host, device, inner) in [
        (kernel, "vxlan0", [INNER_V4[0], INNER_V6[0]]),
        (tenant, "tap0", [INNER_V4[1], INNER_V6[1]]),
    ] {
        for target in inner {
            testbed::poll("an answer", LIMIT, || {
                // It does not ask for known addresses.
                host.run(Command::new("ip").args(["neigh", "flush", "dev", device]))?;
                let mut command = Command::new("ping");
                let answer = host.run(command.args(["-n", "-c", "1", "-W", "1", target]));
                Ok(answer.map(drop).map_err(|error| error.to_string()))
            })
            .unwrap();
        }
    }
}

#[test]
fn groups_are_joined_again_where_the_link_comes_back() {
    require!(need::tun());
    let auto = Plan { hand_over: HandOver::Auto, ..PLAN };
    for plan in [CUT, auto, Plan { v6: true, ..CUT }] {
        eprintln!("{plan:?}");
        let [a, b] = hosts(&plan);
        let vtep = Vtep::new(&plan, &a, 0, &config(&plan, 0, &[1]));
        kernel_to(&plan, &b, 1, group(&plan));
        found_by_the_group(&vtep.tenant, &b);

        // Sets the NIC down and up, which removes an IPv6 address.
        a.netlink().set_down(NIC).unwrap();
        a.netlink().set_up(NIC).unwrap();
        if plan.v6 {
            address(&a, NIC, plan.underlay(0), 64);
        }
        found_by_the_group(&vtep.tenant, &b);

        // Removes the NIC, and with it the kernel's VXLAN device at the other end; creates both
        // anew.
        let old = a.netlink().link(NIC).unwrap().index;
        a.netlink().delete_link(NIC).unwrap();
        // Gives the NIC another index.
        a.netlink().add_kind("other", "bridge").unwrap();
        wire(&plan, [&a, &b]);
        assert_ne!(a.netlink().link(NIC).unwrap().index, old);
        kernel_to(&plan, &b, 1, group(&plan));
        found_by_the_group(&vtep.tenant, &b);
        everything_crosses(&vtep.tenant, &b);
        vtep.end();
    }
}

#[test]
fn packets_of_group_members_that_are_no_remotes_are_dropped() {
    require!(need::tun());
    let [a, b] = hosts(&PLAN);
    let vtep = Vtep::new(&PLAN, &a, 0, &config(&PLAN, 0, &[2]));
    kernel_to(&PLAN, &b, 1, group(&PLAN));
    let mut command = Command::new("ping");
    b.run(command.args(["-c", "1", "-W", "1", INNER_V4[0]])).unwrap_err();
    wait(&vtep, |report| report.networks[0].back.dropped_by(DropReason::UnknownRemote) > 0);
    let back = vtep.end().networks[0].back;
    assert_eq!(back.forwarded, 0, "{back:?}");
}
