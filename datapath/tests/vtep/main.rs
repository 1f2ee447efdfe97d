//! The VXLAN endpoint against the kernel's VXLAN device and against itself.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;

use datapath::counters::{Counters, DropReason};
use datapath::tapbridge::{Port, PortOptions};
use datapath::vtep::{Config, Endpoint, HandOver, NetworkConfig, Report, Running, Way};
use netstate::link::Vxlan;
use packet::vxlan::{PORT, Vni};
use sys::tap::Offload as TapOffload;
use testbed::{Host, NIC, Offload, Wire, mac};
use traffic::{LIMIT, ping, privileged, tcp, udp};

mod capture;
mod soak;
#[path = "../traffic/mod.rs"]
mod traffic;

const UNDERLAY_V4: [&str; 4] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
const UNDERLAY_V6: [&str; 4] = ["fd00::1", "fd00::2", "fd00::3", "fd00::4"];
const INNER_V4: [&str; 3] = ["10.1.0.1", "10.1.0.2", "10.1.0.3"];
const INNER_V6: [&str; 3] = ["fd01::1", "fd01::2", "fd01::3"];
const VNI: u32 = 10;

#[derive(Debug, Clone, Copy)]
struct Plan {
    v6: bool,
    checksum: bool,
    profile: Offload,
    queues: usize,
    tap: TapOffload,
    hand_over: HandOver,
}

const PLAN: Plan = Plan {
    v6: false,
    checksum: true,
    profile: Offload::Full,
    queues: 1,
    tap: Endpoint::OFFLOAD,
    hand_over: HandOver::TunnelGso,
};
/// Through the sockets only.
const CUT: Plan = Plan { hand_over: HandOver::UdpSegment, ..PLAN };

impl Plan {
    fn underlay(&self, end: usize) -> IpAddr {
        let list = if self.v6 { UNDERLAY_V6 } else { UNDERLAY_V4 };
        list[end].parse().unwrap()
    }

    fn mtu(&self) -> u32 {
        1500 - if self.v6 { 70 } else { 50 }
    }

    fn config(&self, end: usize, remotes: &[usize]) -> Config {
        let network = NetworkConfig {
            remotes: remotes.iter().map(|remote| self.underlay(*remote)).collect(),
            ..NetworkConfig::new(Vni::new(VNI).unwrap(), "tap0")
        };
        Config {
            checksum: self.checksum,
            zero_checksum6: !self.checksum,
            queues: self.queues,
            hand_over: self.hand_over,
            networks: vec![network],
            ..Config::new(self.underlay(end))
        }
    }
}

/// Two hosts on a wire, with underlay addresses; the second has all others'.
fn hosts(plan: &Plan) -> [Host; 2] {
    let hosts = ["a", "b"].map(|name| Host::with_ipv6(name).unwrap());
    Wire { mtu: 1500, offload: plan.profile }.join(&hosts[0], &hosts[1]).unwrap();
    let prefix = if plan.v6 { 64 } else { 24 };
    for (host, end) in [(0, 0), (1, 1), (1, 2), (1, 3)] {
        address(&hosts[host], NIC, plan.underlay(end), prefix);
    }
    hosts
}

fn address(host: &Host, device: &str, address: IpAddr, prefix: u8) {
    host.sysctl(&format!("net/ipv6/conf/{device}/accept_dad"), "0").unwrap();
    host.address(device, address, prefix).unwrap();
}

fn inner_addresses(host: &Host, device: &str, end: usize) {
    address(host, device, INNER_V6[end].parse().unwrap(), 64);
    address(host, device, INNER_V4[end].parse().unwrap(), 24);
}

/// An endpoint in `host`, its TAP in a tenant of its own.
struct Vtep {
    running: Running,
    tenant: Host,
}

impl Vtep {
    fn new(plan: &Plan, host: &Host, end: usize, config: &Config) -> Vtep {
        let tenant = Host::with_ipv6(&format!("tenant-{end}")).unwrap();
        let endpoint = Endpoint::open(config, host.netns()).unwrap();
        assert_eq!(endpoint.mtu(0), plan.mtu());
        let options =
            PortOptions { queues: plan.queues, offload: plan.tap, ..PortOptions::named("tap0") };
        let port = Port::open(&options, tenant.netns()).unwrap();
        // The same for each that comes: others have resolved it.
        tenant.netlink().set_mac("tap0", mac(tenant.name(), "tap0")).unwrap();
        tenant.netlink().set_mtu("tap0", endpoint.mtu(0)).unwrap();
        inner_addresses(&tenant, "tap0", end);
        let running = endpoint.attach(vec![port]).unwrap().start().unwrap();
        Vtep { running, tenant }
    }

    /// Ends it; every packet must have met a fate.
    fn end(self) -> Report {
        let (report, outcome) = self.running.stop();
        outcome.unwrap();
        for c in [&report.networks[0].out, &report.networks[0].back, &report.strangers] {
            assert_eq!(c.received, c.forwarded + c.answered + c.dropped(), "{c:?}");
        }
        report
    }
}

/// The kernel's VXLAN device in `host`, with inner addresses on itself.
fn kernel(plan: &Plan, host: &Host, end: usize, remote: usize) {
    let device = Vxlan {
        name: "vxlan0",
        vni: Vni::new(VNI).unwrap(),
        local: plan.underlay(end),
        remote: Some(plan.underlay(remote)),
        underlay: NIC,
        port: PORT,
        learning: true,
        udp_csum: plan.checksum,
    };
    host.netlink().add_vxlan(&device, mac(host.name(), "vxlan0"), plan.mtu()).unwrap();
    inner_addresses(host, "vxlan0", end);
}

const SIZES: [usize; 8] = [1, 18, 64, 1400, 1422, 1423, 8000, 65_000];

fn everything_crosses(a: &Host, b: &Host) {
    ping(a, INNER_V4[1], 56);
    ping(b, INNER_V4[0], 4000);
    ping(a, INNER_V6[1], 56);
    tcp(a, b, INNER_V4[1], INNER_V4[1], 3_000_000);
    tcp(b, a, INNER_V4[0], INNER_V4[0], 3_000_000);
    tcp(a, b, INNER_V6[1], INNER_V6[1], 1_000_000);
    tcp(b, a, INNER_V6[0], INNER_V6[0], 1_000_000);
    udp(a, b, INNER_V4[1], INNER_V4[1], &SIZES);
    udp(b, a, INNER_V6[0], INNER_V6[0], &[1, 1400, 20_000]);
}

fn expect_no_drops(c: &Counters) {
    for reason in DropReason::ALL {
        // The kernel's end answers and asks by IPv6 before the TAP is up.
        let allowed = if reason == DropReason::Down { 5 } else { 0 };
        assert!(c.dropped_by(reason) <= allowed, "{} in {c:?}", reason.name());
    }
}

#[test]
fn the_kernels_vxlan_is_understood_and_understands() {
    if !privileged() {
        return;
    }
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
    ] {
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
            // The kernel's end has not cut, and nobody on the way.
            let back = &network.back;
            assert!(back.received_bytes / back.received > 3000, "{back:?}");
        }
        if plan.tap != TapOffload::NONE {
            // Super-packets from the TAP, of more than a wire packet each.
            let out = &network.out;
            assert!(out.forwarded_bytes / out.forwarded > 3000, "{out:?}");
        }
        assert!(network.learned >= 2, "{network:?}");
    }
}

#[test]
fn two_endpoints_understand_each_other() {
    if !privileged() {
        return;
    }
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
        let b = Vtep::new(&plan, &host_b, 1, &plan.config(1, &[0]));
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
    if !privileged() {
        return;
    }
    let [host_a, host_b] = hosts(&PLAN);
    let a = Vtep::new(&PLAN, &host_a, 0, &PLAN.config(0, &[1, 2]));
    let b = Vtep::new(&PLAN, &host_b, 1, &PLAN.config(1, &[0, 2]));
    let c = Vtep::new(&PLAN, &host_b, 2, &PLAN.config(2, &[0, 1]));
    // Address resolution is broadcast, or multicast.
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
fn what_the_path_does_not_take_is_answered() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let plan = Plan { v6, ..PLAN };
        let [a, b] = hosts(&plan);
        let vtep = Vtep::new(&plan, &a, 0, &plan.config(0, &[1]));
        kernel(&plan, &b, 1, 0);
        ping(&vtep.tenant, INNER_V4[1], 56);
        ping(&vtep.tenant, INNER_V6[1], 56);
        // The way gets narrower; nobody tells the tenant.
        let narrow = 1400;
        a.netlink().set_mtu(NIC, narrow).unwrap();
        b.netlink().set_mtu(NIC, narrow).unwrap();
        let told = narrow - (1500 - plan.mtu());
        for (target, option) in [(INNER_V4[1], "-4"), (INNER_V6[1], "-6")] {
            let mut command = Command::new("ping");
            command.args([option, "-n", "-M", "do", "-c", "8", "-i", "0.05", "-W", "1"]);
            command.args(["-s", "1370", target]);
            let error = vtep.tenant.run(&mut command).unwrap_err().to_string();
            assert!(
                error.contains(&format!("mtu={told}")) || error.contains(&format!("mtu = {told}")),
                "{told}: {error}"
            );
        }
        tcp(&vtep.tenant, &b, INNER_V4[1], INNER_V4[1], 1_000_000);
        tcp(&vtep.tenant, &b, INNER_V6[1], INNER_V6[1], 1_000_000);
        let report = vtep.end();
        assert!(report.networks[0].out.answered > 0, "{report:?}");
    }
}

#[test]
fn who_may_not_send_is_not_heard() {
    if !privileged() {
        return;
    }
    let [host_a, host_b] = hosts(&PLAN);
    let mut config = PLAN.config(0, &[1]);
    let mut vtep = Vtep::new(&PLAN, &host_a, 0, &config);
    let to = SocketAddr::new(PLAN.underlay(0), PORT);
    let from = |end| {
        let at = SocketAddr::new(PLAN.underlay(end), 0);
        host_b.netns().run(|| UdpSocket::bind(at)).unwrap().unwrap()
    };
    let (known, stranger) = (from(1), from(2));
    let packet = |vni: u32| {
        let mut packet = packet::vxlan::header(Vni::new(vni).unwrap()).to_vec();
        packet.extend([0xff; 6]);
        packet.extend([2, 0, 0, 0, 0, 7, 0x88, 0xb5]);
        packet.extend([0; 46]);
        packet
    };
    stranger.send_to(&packet(VNI), to).unwrap();
    known.send_to(&packet(VNI + 1), to).unwrap();
    known.send_to(&packet(VNI)[..7], to).unwrap();
    known.send_to(&packet(VNI)[..20], to).unwrap();
    known.send_to(&[], to).unwrap();
    known.send_to(&packet(VNI), to).unwrap();
    wait(&vtep, |report| report.strangers.received == 3 && report.networks[0].back.received == 3);
    let report = vtep.running.report();
    let back = &report.networks[0].back;
    assert_eq!(back.dropped_by(DropReason::Stranger), 1, "{report:?}");
    assert_eq!(back.dropped_by(DropReason::Malformed), 1, "{report:?}");
    assert_eq!(back.forwarded, 1, "{report:?}");
    assert_eq!(report.strangers.dropped_by(DropReason::UnknownVni), 1, "{report:?}");
    assert_eq!(report.strangers.dropped_by(DropReason::Malformed), 2, "{report:?}");

    // A reload lets it be heard; what cannot change is refused.
    config.networks[0].remotes.push(PLAN.underlay(2));
    vtep.running.reload(&config).unwrap();
    stranger.send_to(&packet(VNI), to).unwrap();
    wait(&vtep, |report| report.networks[0].back.forwarded == 2);
    config.port += 1;
    let error = vtep.running.reload(&config).unwrap_err().to_string();
    assert!(error.contains("start it anew"), "{error}");
    vtep.end();
}

/// Until what was sent has been counted.
fn wait(vtep: &Vtep, enough: impl Fn(&Report) -> bool) {
    testbed::poll("the counters", LIMIT, || {
        let report = vtep.running.report();
        Ok(if enough(&report) { Ok(()) } else { Err(format!("{report:?}")) })
    })
    .unwrap();
}

#[test]
fn a_port_that_the_kernel_has_is_named() {
    if !privileged() {
        return;
    }
    let [a, _b] = hosts(&PLAN);
    kernel(&PLAN, &a, 0, 1);
    let error = Endpoint::open(&PLAN.config(0, &[1]), a.netns()).unwrap_err().to_string();
    assert!(error.contains("10.0.0.1:4789") && error.contains("EADDRINUSE"), "{error}");
}

/// What tcx programs and second TAPs there are in a host.
fn leftovers(host: &Host) -> String {
    let links = host.netlink().links().unwrap();
    let taps = links.iter().filter(|link| link.name.starts_with("vtep")).count();
    format!("{taps} TAPs")
}

#[test]
fn packet_filters_end_the_uncut_hand_over_but_not_the_tunnel() {
    if !privileged() {
        return;
    }
    let plan = Plan { hand_over: HandOver::Auto, ..PLAN };
    let [a, b] = hosts(&plan);
    let vtep = Vtep::new(&plan, &a, 0, &plan.config(0, &[1]));
    kernel(&plan, &b, 1, 0);
    assert!(matches!(vtep.running.way(), Way::TunnelGso { .. }), "{}", vtep.running.way());
    ping(&vtep.tenant, INNER_V4[1], 56);
    let rules = "table inet t { chain c { type filter hook input priority 0; \
                 udp dport 4789 counter comment \"seen\"; } }";
    let nft = |script: &str| {
        let mut command = Command::new("nft");
        command.arg(script);
        a.run(&mut command)
    };
    if let Err(error) = nft(rules) {
        eprintln!("skipped: nftables: {error}");
        return;
    }
    testbed::poll("the sockets' turn", LIMIT, || {
        let way = vtep.running.way();
        let cut = matches!(&way, Way::UdpSegment { reason } if reason.contains("inet t c"));
        Ok(if cut { Ok(()) } else { Err(way.to_string()) })
    })
    .unwrap();
    everything_crosses(&vtep.tenant, &b);
    let listed = nft("list ruleset").unwrap();
    assert!(!listed.contains("packets 0 "), "the filter has seen nothing: {listed}");
    vtep.end();

    // At the start, likewise; insisting is possible.
    let vtep = Vtep::new(&plan, &a, 0, &plan.config(0, &[1]));
    assert!(matches!(vtep.running.way(), Way::UdpSegment { .. }), "{}", vtep.running.way());
    assert_eq!(leftovers(&a), "0 TAPs");
    vtep.end();
    let vtep = Vtep::new(&PLAN, &a, 0, &PLAN.config(0, &[1]));
    assert!(matches!(vtep.running.way(), Way::TunnelGso { .. }), "{}", vtep.running.way());
    ping(&vtep.tenant, INNER_V4[1], 56);
    vtep.end();
    assert_eq!(leftovers(&a), "0 TAPs");
}

#[test]
fn a_way_by_another_nic_is_the_sockets() {
    if !privileged() {
        return;
    }
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
    // Both ends, so that neither answers by a way that the other does not expect.
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
