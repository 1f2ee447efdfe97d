//! Endpoints and their peers on two hosts.

use std::net::IpAddr;

use datapath::tapbridge::{Port, PortOptions};
use datapath::vtep::{Config, Endpoint, Engine, HandOver, NetworkConfig, Report, Running};
use netstate::link::Vxlan;
use packet::vxlan::{PORT, Vni};
use sys::tap::Offload as TapOffload;
use testbed::{Host, NIC, Offload, Wire, mac};

use super::traffic::{ping, tcp, udp};

pub const UNDERLAY_V4: [&str; 4] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
pub const UNDERLAY_V6: [&str; 4] = ["fd00::1", "fd00::2", "fd00::3", "fd00::4"];
pub const INNER_V4: [&str; 3] = ["10.1.0.1", "10.1.0.2", "10.1.0.3"];
pub const INNER_V6: [&str; 3] = ["fd01::1", "fd01::2", "fd01::3"];
pub const VNI: u32 = 10;

#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub v6: bool,
    pub checksum: bool,
    pub profile: Offload,
    pub queues: usize,
    pub tap: TapOffload,
    pub hand_over: HandOver,
    pub engine: Engine,
}

pub const PLAN: Plan = Plan {
    v6: false,
    checksum: true,
    profile: Offload::Full,
    queues: 1,
    tap: Endpoint::OFFLOAD,
    hand_over: HandOver::TunnelGso,
    engine: Engine::Epoll,
};
/// Sends through the sockets only.
pub const CUT: Plan = Plan { hand_over: HandOver::UdpSegment, ..PLAN };

impl Plan {
    pub fn underlay(&self, end: usize) -> IpAddr {
        let list = if self.v6 { UNDERLAY_V6 } else { UNDERLAY_V4 };
        list[end].parse().unwrap()
    }

    pub fn mtu(&self) -> u32 {
        1500 - if self.v6 { 70 } else { 50 }
    }

    pub fn config(&self, end: usize, remotes: &[usize]) -> Config {
        let network = NetworkConfig {
            remotes: remotes.iter().map(|remote| self.underlay(*remote)).collect(),
            ..NetworkConfig::new(Vni::new(VNI).unwrap(), "tap0")
        };
        Config {
            checksum: self.checksum,
            zero_checksum6: !self.checksum,
            queues: self.queues,
            hand_over: self.hand_over,
            engine: self.engine,
            networks: vec![network],
            ..Config::new(self.underlay(end))
        }
    }
}

/// Two hosts on a wire, with underlay addresses; the second host has those of all other ends.
pub fn hosts(plan: &Plan) -> [Host; 2] {
    let hosts = ["a", "b"].map(|name| Host::with_ipv6(name).unwrap());
    wire(plan, hosts.each_ref());
    hosts
}

/// The wire between them, with those addresses.
pub fn wire(plan: &Plan, hosts: [&Host; 2]) {
    Wire { mtu: 1500, offload: plan.profile }.join(hosts[0], hosts[1]).unwrap();
    let prefix = if plan.v6 { 64 } else { 24 };
    for (host, end) in [(0, 0), (1, 1), (1, 2), (1, 3)] {
        address(hosts[host], NIC, plan.underlay(end), prefix);
    }
}

pub fn address(host: &Host, device: &str, address: IpAddr, prefix: u8) {
    host.address(device, address, prefix).unwrap();
}

pub fn inner_addresses(host: &Host, device: &str, end: usize) {
    address(host, device, INNER_V6[end].parse().unwrap(), 64);
    address(host, device, INNER_V4[end].parse().unwrap(), 24);
}

/// An endpoint in `host`, its TAP in a tenant of its own.
pub struct Vtep {
    pub running: Running,
    pub tenant: Host,
}

impl Vtep {
    pub fn new(plan: &Plan, host: &Host, end: usize, config: &Config) -> Vtep {
        let tenant = Host::with_ipv6(&format!("tenant-{end}")).unwrap();
        let endpoint = Endpoint::open(config, host.netns()).unwrap();
        assert_eq!(endpoint.mtu(0), plan.mtu());
        let options =
            PortOptions { queues: plan.queues, offload: plan.tap, ..PortOptions::named("tap0") };
        let port = Port::open(&options, tenant.netns()).unwrap();
        // The same address for each new endpoint, because other hosts have resolved it.
        tenant.netlink().set_mac("tap0", mac(tenant.name(), "tap0")).unwrap();
        tenant.netlink().set_mtu("tap0", endpoint.mtu(0)).unwrap();
        inner_addresses(&tenant, "tap0", end);
        let running = endpoint.attach(vec![port]).unwrap().start().unwrap();
        Vtep { running, tenant }
    }

    /// Ends it, and asserts that every packet has a fate.
    pub fn end(self) -> Report {
        let (report, outcome) = self.running.stop();
        outcome.unwrap();
        for c in [&report.networks[0].out, &report.networks[0].back, &report.unassigned] {
            assert_eq!(c.received, c.forwarded + c.answered + c.dropped(), "{c:?}");
        }
        report
    }
}

/// The kernel's VXLAN device in `host`, which also has the inner addresses.
pub fn kernel(plan: &Plan, host: &Host, end: usize, remote: usize) {
    kernel_to(plan, host, end, plan.underlay(remote));
}

/// The same, flooding to an address, which may be a multicast group.
pub fn kernel_to(plan: &Plan, host: &Host, end: usize, remote: IpAddr) {
    let device = Vxlan {
        name: "vxlan0",
        vni: Some(Vni::new(VNI).unwrap()),
        local: plan.underlay(end),
        remote: Some(remote),
        underlay: NIC,
        port: PORT,
        learning: true,
        udp_csum: plan.checksum,
    };
    host.netlink().add_vxlan(&device, mac(host.name(), "vxlan0"), plan.mtu()).unwrap();
    inner_addresses(host, "vxlan0", end);
}

pub const SIZES: [usize; 8] = [1, 18, 64, 1400, 1422, 1423, 8000, 65_000];

pub fn everything_crosses(a: &Host, b: &Host) {
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
