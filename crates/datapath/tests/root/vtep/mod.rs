//! The VXLAN endpoint against the kernel's VXLAN device and against itself.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use datapath::counters::{Counters, DropReason};
use datapath::tapbridge::{Port, PortOptions};
use datapath::vtep::{Config, Endpoint, Engine, HandOver, HandOverMode, Report};
use endpoint::*;
use packet::vxlan::{PORT, Vni};
use sys::tap::Offload as TapOffload;
use test_support::{left_out, need, require};
use testbed::{Host, NIC, Offload};
use traffic::{LIMIT, ping, tcp};

mod capture;
pub mod endpoint;
mod group;
mod suppression;
use crate::traffic;

/// Whether this kernel supports reading by rings.
fn rings() -> sys::Result<()> {
    sys::frame_ring::FrameRing::new(&[], &[], 16, 4096).map(drop)
}

fn expect_no_drops(c: &Counters) {
    for reason in DropReason::ALL {
        // The kernel's end sends IPv6 packets before the TAP is up.
        let allowed = if reason == DropReason::Down { 5 } else { 0 };
        assert!(c.dropped_by(reason) <= allowed, "{} in {c:?}", reason.name());
    }
}

#[test]
fn the_kernels_vxlan_is_understood_and_understands() {
    require!(need::tun());
    for plan in [
        PLAN,
        Plan { profile: Offload::None, queues: 2, ..PLAN },
        Plan { profile: Offload::NoTunnel, queues: 2, ..PLAN },
        Plan { checksum: false, ..PLAN },
        Plan { checksum: false, profile: Offload::None, ..PLAN },
        Plan { v6: true, ..PLAN },
        Plan { v6: true, profile: Offload::NoTunnel, ..PLAN },
        CUT,
        Plan { profile: Offload::None, queues: 2, ..CUT },
        Plan { checksum: false, ..CUT },
        Plan { checksum: false, profile: Offload::None, ..CUT },
        Plan { profile: Offload::NoTunnel, tap: TapOffload::NONE, ..CUT },
        Plan { v6: true, ..CUT },
        Plan { v6: true, profile: Offload::None, ..CUT },
        Plan { engine: Engine::Uring, ..PLAN },
        Plan { engine: Engine::Uring, profile: Offload::None, queues: 2, ..PLAN },
        Plan { engine: Engine::Uring, v6: true, ..CUT },
    ] {
        if plan.engine == Engine::Uring && rings().inspect_err(|e| left_out(e)).is_err() {
            continue;
        }
        eprintln!("{plan:?}");
        let [a, b] = hosts(&plan);
        let vtep = Vtep::new(&plan, &a, 0, &plan.config(0, &[1]));
        kernel(&plan, &b, 1, 0);
        everything_crosses(&vtep.tenant, &b);
        let report = vtep.end();
        let network = &report.networks[0];
        expect_no_drops(&network.out);
        expect_no_drops(&network.back);
        if plan.hand_over == HandOver::TunnelGso && plan.profile == Offload::Full {
            // Neither the kernel's end nor a hop between has segmented.
            let back = &network.back;
            assert!(back.received_bytes / back.received > 3000, "{back:?}");
        }
        if plan.tap != TapOffload::NONE {
            // The TAP has sent GSO packets that stand for several wire packets.
            let out = &network.out;
            assert!(out.forwarded_bytes / out.forwarded > 3000, "{out:?}");
        }
        assert!(network.learned >= 2, "{network:?}");
    }
}

#[test]
fn two_endpoints_understand_each_other() {
    require!(need::tun());
    for plan in [
        PLAN,
        Plan { queues: 2, profile: Offload::None, ..PLAN },
        Plan { v6: true, checksum: false, ..PLAN },
        CUT,
        Plan { queues: 2, profile: Offload::None, ..CUT },
        Plan { v6: true, checksum: false, ..CUT },
    ] {
        eprintln!("{plan:?}");
        let [host_a, host_b] = hosts(&plan);
        let a = Vtep::new(&plan, &host_a, 0, &plan.config(0, &[1]));
        // One end busy-polls before it sleeps, the other does not.
        let config = Config { busy_poll: 200, ..plan.config(1, &[0]) };
        let b = Vtep::new(&plan, &host_b, 1, &config);
        everything_crosses(&a.tenant, &b.tenant);
        for vtep in [a, b] {
            let report = vtep.end();
            let network = &report.networks[0];
            expect_no_drops(&network.out);
            expect_no_drops(&network.back);
            let back = &network.back;
            if plan.checksum && plan.profile == Offload::Full && plan.hand_over == CUT.hand_over {
                assert!(back.handed_over * 2 < back.forwarded, "nothing was merged: {back:?}");
            }
        }
    }
}

#[test]
fn broadcast_reaches_every_remote_end() {
    require!(need::tun());
    let [host_a, host_b] = hosts(&PLAN);
    let a = Vtep::new(&PLAN, &host_a, 0, &PLAN.config(0, &[1, 2]));
    let b = Vtep::new(&PLAN, &host_b, 1, &PLAN.config(1, &[0, 2]));
    let c = Vtep::new(&PLAN, &host_b, 2, &PLAN.config(2, &[0, 1]));
    // Address resolution uses broadcast or multicast.
    for (from, to) in [(&a, 1), (&a, 2), (&b, 2), (&c, 0)] {
        ping(&from.tenant, INNER_V4[to], 56);
        ping(&from.tenant, INNER_V6[to], 56);
    }
    let report = a.end();
    assert!(report.networks[0].out.replicas >= 2, "{report:?}");
    expect_no_drops(&report.networks[0].out);
    for vtep in [b, c] {
        let report = vtep.end();
        assert!(report.networks[0].back.forwarded > 0, "{report:?}");
    }
}

#[test]
fn packets_too_large_for_the_path_are_answered() {
    require!(need::tun());
    for v6 in [false, true] {
        let plan = Plan { v6, ..PLAN };
        let [a, b] = hosts(&plan);
        let vtep = Vtep::new(&plan, &a, 0, &plan.config(0, &[1]));
        kernel(&plan, &b, 1, 0);
        ping(&vtep.tenant, INNER_V4[1], 56);
        ping(&vtep.tenant, INNER_V6[1], 56);
        // The path MTU decreases without a message to the tenant.
        let narrow = 1400;
        a.netlink().set_mtu(NIC, narrow).unwrap();
        b.netlink().set_mtu(NIC, narrow).unwrap();
        let expected = narrow - (1500 - plan.mtu());
        for (target, option) in [(INNER_V4[1], "-4"), (INNER_V6[1], "-6")] {
            let mut command = Command::new("ping");
            command.args([option, "-n", "-M", "do", "-c", "8", "-i", "0.05", "-W", "1"]);
            command.args(["-s", "1370", target]);
            let error = vtep.tenant.run(&mut command).unwrap_err().to_string();
            assert!(
                error.contains(&format!("mtu={expected}"))
                    || error.contains(&format!("mtu = {expected}")),
                "{expected}: {error}"
            );
        }
        tcp(&vtep.tenant, &b, INNER_V4[1], INNER_V4[1], 1_000_000);
        tcp(&vtep.tenant, &b, INNER_V6[1], INNER_V6[1], 1_000_000);
        let report = vtep.end();
        assert!(report.networks[0].out.answered > 0, "{report:?}");
    }
}

#[test]
fn packets_of_unknown_remotes_are_dropped() {
    require!(need::tun());
    let [host_a, host_b] = hosts(&PLAN);
    let mut config = PLAN.config(0, &[1]);
    let mut vtep = Vtep::new(&PLAN, &host_a, 0, &config);
    let to = SocketAddr::new(PLAN.underlay(0), PORT);
    let from = |end| {
        let at = SocketAddr::new(PLAN.underlay(end), 0);
        host_b.netns().run(|| UdpSocket::bind(at)).unwrap().unwrap()
    };
    let (known, unknown) = (from(1), from(2));
    let packet = |vni: u32| {
        let mut packet = packet::vxlan::header(Vni::new(vni).unwrap()).to_vec();
        packet.extend([0xff; 6]);
        packet.extend([2, 0, 0, 0, 0, 7, 0x88, 0xb5]);
        packet.extend([0; 46]);
        packet
    };
    unknown.send_to(&packet(VNI), to).unwrap();
    known.send_to(&packet(VNI + 1), to).unwrap();
    known.send_to(&packet(VNI)[..7], to).unwrap();
    known.send_to(&packet(VNI)[..20], to).unwrap();
    known.send_to(&[], to).unwrap();
    known.send_to(&packet(VNI), to).unwrap();
    // A packet is counted as received before it is counted as forwarded or dropped.
    wait(&vtep, |report| {
        let back = &report.networks[0].back;
        report.unassigned.received == 3 && back.received == 3 && back.forwarded == 1
    });
    let report = vtep.running.report();
    let back = &report.networks[0].back;
    assert_eq!(back.dropped_by(DropReason::UnknownRemote), 1, "{report:?}");
    assert_eq!(back.dropped_by(DropReason::Malformed), 1, "{report:?}");
    assert_eq!(back.forwarded, 1, "{report:?}");
    assert_eq!(report.unassigned.dropped_by(DropReason::UnknownVni), 1, "{report:?}");
    assert_eq!(report.unassigned.dropped_by(DropReason::Malformed), 2, "{report:?}");

    // A reload admits the remote end; a change of a fixed option is refused.
    config.networks[0].remotes.push(PLAN.underlay(2));
    vtep.running.reload(&config).unwrap();
    unknown.send_to(&packet(VNI), to).unwrap();
    wait(&vtep, |report| report.networks[0].back.forwarded == 2);
    config.port += 1;
    let error = vtep.running.reload(&config).unwrap_err().to_string();
    assert!(error.contains("restart the endpoint"), "{error}");
    vtep.end();
}

/// Waits until sent packets have been counted.
fn wait(vtep: &Vtep, enough: impl Fn(&Report) -> bool) {
    testbed::poll("the counters", LIMIT, || {
        let report = vtep.running.report();
        Ok(if enough(&report) { Ok(()) } else { Err(format!("{report:?}")) })
    })
    .unwrap();
}

#[test]
fn a_port_that_the_kernel_has_is_named() {
    require!(need::tun());
    let [a, _b] = hosts(&PLAN);
    kernel(&PLAN, &a, 0, 1);
    let error = Endpoint::open(&PLAN.config(0, &[1]), a.netns()).unwrap_err().to_string();
    assert!(error.contains("10.0.0.1:4789") && error.contains("EADDRINUSE"), "{error}");
}

/// tcx programs and second TAPs in a host.
fn leftovers(host: &Host) -> String {
    let links = host.netlink().links().unwrap();
    let taps = links.iter().filter(|link| link.name.starts_with("vtep")).count();
    format!("{taps} TAPs")
}

#[test]
fn threads_are_bound_to_the_cpus_of_the_configuration() {
    require!(need::tun());
    let [a, _b] = hosts(&PLAN);
    let usable = sys::affinity::of_this_thread().unwrap();
    let config = Config { cpus: vec![usable[0]], ..PLAN.config(0, &[1]) };
    let vtep = Vtep::new(&PLAN, &a, 0, &config);
    vtep.end();
    let config = Config { cpus: vec![1023], ..config };
    let endpoint = Endpoint::open(&config, a.netns()).unwrap();
    let tenant = Host::new("tenant").unwrap();
    let port = PortOptions { offload: Endpoint::OFFLOAD, ..PortOptions::named("tap0") };
    let port = Port::open(&port, tenant.netns()).unwrap();
    let error = endpoint.attach(vec![port]).unwrap().start().unwrap_err().to_string();
    assert!(error.contains("CPU 1023"), "{error}");
}

#[test]
fn a_ring_notices_that_its_tap_is_gone() {
    require!(need::tun(), rings());
    let plan = Plan { engine: Engine::Uring, ..PLAN };
    let [a, _b] = hosts(&plan);
    let vtep = Vtep::new(&plan, &a, 0, &plan.config(0, &[1]));
    vtep.tenant.run(Command::new("ip").args(["link", "del", "tap0"])).unwrap();
    testbed::poll("the endpoint's end", LIMIT, || {
        let mut fds = [nix::poll::PollFd::new(vtep.running.ended(), nix::poll::PollFlags::POLLIN)];
        let ready = nix::poll::poll(&mut fds, 100u8).unwrap();
        Ok(if ready > 0 { Ok(()) } else { Err("it runs".to_owned()) })
    })
    .unwrap();
    let (_, outcome) = vtep.running.stop();
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("tap0") && error.contains("removed"), "{error}");
}

#[test]
fn packet_filters_end_the_uncut_hand_over_but_not_the_tunnel() {
    require!(need::tun());
    let plan = Plan { hand_over: HandOver::Auto, ..PLAN };
    let [a, b] = hosts(&plan);
    let vtep = Vtep::new(&plan, &a, 0, &plan.config(0, &[1]));
    kernel(&plan, &b, 1, 0);
    assert!(matches!(vtep.running.way(), HandOverMode::TunnelGso { .. }), "{}", vtep.running.way());
    ping(&vtep.tenant, INNER_V4[1], 56);
    let rules = "table inet t { chain c { type filter hook input priority 0; \
                 udp dport 4789 counter comment \"seen\"; }; }";
    let nft = |script: &str| {
        let mut command = Command::new("nft");
        command.arg(script);
        a.run(&mut command)
    };
    nft(rules).unwrap();
    testbed::poll("the sockets' turn", LIMIT, || {
        let way = vtep.running.way();
        let cut =
            matches!(&way, HandOverMode::UdpSegment { reason } if reason.contains("inet t c"));
        Ok(if cut { Ok(()) } else { Err(way.to_string()) })
    })
    .unwrap();
    everything_crosses(&vtep.tenant, &b);
    let listed = nft("list ruleset").unwrap();
    assert!(!listed.contains("packets 0 "), "the filter has seen nothing: {listed}");
    vtep.end();

    // The same at the start, unless the hand-over is forced.
    let vtep = Vtep::new(&plan, &a, 0, &plan.config(0, &[1]));
    assert!(
        matches!(vtep.running.way(), HandOverMode::UdpSegment { .. }),
        "{}",
        vtep.running.way()
    );
    assert_eq!(leftovers(&a), "0 TAPs");
    vtep.end();
    let vtep = Vtep::new(&PLAN, &a, 0, &PLAN.config(0, &[1]));
    assert!(matches!(vtep.running.way(), HandOverMode::TunnelGso { .. }), "{}", vtep.running.way());
    ping(&vtep.tenant, INNER_V4[1], 56);
    vtep.end();
    assert_eq!(leftovers(&a), "0 TAPs");
}

#[test]
fn a_nic_that_cuts_datagrams_only_gets_datagrams() {
    require!(need::tun());
    for (profile, checksum, whole) in [
        (Offload::Full, true, true),
        (Offload::None, true, true),
        (Offload::NoTunnel, true, false),
        (Offload::NoTunnel, false, true),
    ] {
        let plan = Plan { profile, checksum, hand_over: HandOver::Auto, ..PLAN };
        let [a, _b] = hosts(&plan);
        let way = Endpoint::open(&plan.config(0, &[1]), a.netns()).unwrap().way();
        assert_eq!(matches!(way, HandOverMode::TunnelGso { .. }), whole, "{plan:?}: {way}");
    }
}

#[test]
fn a_way_by_another_nic_is_the_sockets() {
    require!(need::tun());
    let [a, b] = hosts(&PLAN);
    a.connect("nic1", &b, "nic1", 1500).unwrap();
    let vtep = Vtep::new(&PLAN, &a, 0, &PLAN.config(0, &[1]));
    kernel(&PLAN, &b, 1, 0);
    tcp(&vtep.tenant, &b, INNER_V4[1], INNER_V4[1], 1_000_000);
    let route = netstate::route::Route {
        to: PLAN.underlay(1),
        prefix: 32,
        via: None,
        link: "nic1",
        onlink: false,
    };
    // A route at both ends, so that neither answers over an unexpected path.
    a.netlink().add_route(&route).unwrap();
    let back = netstate::route::Route { to: PLAN.underlay(0), ..route };
    b.netlink().add_route(&back).unwrap();
    let sent = || a.netlink().link("nic1").unwrap().counters.tx_bytes;
    let before = sent();
    tcp(&vtep.tenant, &b, INNER_V4[1], INNER_V4[1], 3_000_000);
    tcp(&b, &vtep.tenant, INNER_V4[0], INNER_V4[0], 3_000_000);
    assert!(sent() - before > 3_000_000, "{}", sent() - before);
    vtep.end();
}
