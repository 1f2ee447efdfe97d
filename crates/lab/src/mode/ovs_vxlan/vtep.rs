//! Interoperability of the user-space VXLAN endpoint with Open vSwitch.

use std::net::IpAddr;

use datapath::counters::DropReason;
use datapath::tapbridge::{Port, PortOptions};
use datapath::vtep::{Config, Endpoint, HandOver, NetworkConfig, Running};
use test_support::{left_out, need, require};
use testbed::Offload;
use traffic::{ping, tcp, udp};

use super::*;

#[path = "../../../../datapath/tests/root/traffic/mod.rs"]
mod traffic;

const TAP: &str = "tap0";
const INNER_V4: [&str; 2] = ["10.1.0.1", "10.1.0.2"];
const INNER_V6: [&str; 2] = ["fd01::1", "fd01::2"];

/// Variant of the tunnel.
#[derive(Debug, Clone, Copy)]
struct Plan {
    v6: bool,
    /// Whether both ends send outer checksums.
    checksum: bool,
    hand_over: HandOver,
}

impl Plan {
    /// Returns the local and the remote underlay address.
    fn underlay(&self) -> [IpAddr; 2] {
        let list = if self.v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
        list.map(|address| address.parse().unwrap())
    }

    fn prefix(&self) -> u8 {
        if self.v6 { 64 } else { 24 }
    }
}

fn address(host: &Host, device: &str, address: IpAddr, prefix: u8) {
    host.address(device, address, prefix).unwrap();
}

fn inner_addresses(host: &Host, device: &str, end: usize) {
    address(host, device, INNER_V6[end].parse().unwrap(), 64);
    address(host, device, INNER_V4[end].parse().unwrap(), 24);
}

/// Starts an endpoint in `host` with its TAP device in `tenant`.
fn endpoint(plan: &Plan, host: &Host, tenant: &Host) -> (Running, u32) {
    let [local, remote] = plan.underlay();
    let network = NetworkConfig { remotes: vec![remote], ..NetworkConfig::new(VNI, TAP) };
    let config = Config {
        checksum: plan.checksum,
        zero_checksum6: !plan.checksum,
        hand_over: plan.hand_over,
        networks: vec![network],
        ..Config::new(local)
    };
    let endpoint = Endpoint::open(&config, host.netns()).unwrap();
    let mtu = endpoint.mtu(0);
    let options = PortOptions { offload: Endpoint::OFFLOAD, ..PortOptions::named(TAP) };
    let port = Port::open(&options, tenant.netns()).unwrap();
    tenant.netlink().set_mtu(TAP, mtu).unwrap();
    inner_addresses(tenant, TAP, 0);
    (endpoint.attach(vec![port]).unwrap().start().unwrap(), mtu)
}

#[test]
fn an_endpoint_in_user_space_and_open_vswitch_understand_each_other() {
    require!(need::tun(), crate::ovs::installed().map_err(|missing| missing.reason));
    let cut = HandOver::UdpSegment;
    let whole = HandOver::TunnelGso;
    for (v6, checksum, profile, hand_over) in [
        (false, true, Offload::None, cut),
        (false, false, Offload::None, cut),
        (false, true, Offload::None, whole),
        (false, false, Offload::None, whole),
        (true, true, Offload::None, cut),
        (true, false, Offload::None, whole),
        // Nothing segments on the way.
        (false, true, Offload::Full, whole),
    ] {
        let plan = Plan { v6, checksum, hand_over };
        let [a, b] = ["a", "b"].map(|name| Host::with_ipv6(name).unwrap());
        let datapath = Datapath::find(&a).unwrap();
        let kernel = datapath == Datapath::Kernel;
        if !kernel && profile != Offload::None {
            left_out(&"Open vSwitch's user-space datapath takes no GSO packets");
            continue;
        }
        eprintln!("{plan:?}, {profile}, {datapath:?}");
        Wire { mtu: 1500, offload: profile }.join(&a, &b).unwrap();
        let [near, far] = plan.underlay();
        address(&a, NIC, near, plan.prefix());
        if kernel {
            address(&b, NIC, far, plan.prefix());
        } else {
            // OVS reads by packet socket and expects complete checksums, as from a real NIC.
            a.set_features(NIC, &[("tx-checksum-ip-generic", false)]).unwrap();
            let mac = mac(b.name(), UNDERLAY_BRIDGE);
            a.netlink().add_neighbour(NIC, far, mac).unwrap();
        }
        let [tenant, other] = ["tenant-a", "tenant-b"].map(|name| Host::with_ipv6(name).unwrap());
        let (running, mtu) = endpoint(&plan, &a, &tenant);
        b.connect(PORT_DEVICE, &other, TENANT_NIC, mtu).unwrap();
        inner_addresses(&other, TENANT_NIC, 1);
        let tree = Processes::new().unwrap();
        let mut switch = Switch::start(&tree, &b, false).unwrap();
        if !kernel {
            limit_offloads(&other, TENANT_NIC, false).unwrap();
            underlay(&mut switch, far, plan.prefix(), near, mac(a.name(), NIC)).unwrap();
        }
        let checksum = format!("options:csum={checksum}");
        overlay(&mut switch, &datapath, PORT_DEVICE, [far, near], &[&checksum]).unwrap();

        ping(&tenant, INNER_V4[1], 56);
        ping(&other, INNER_V4[0], 4000);
        ping(&tenant, INNER_V6[1], 56);
        tcp(&tenant, &other, INNER_V4[1], INNER_V4[1], 2_000_000);
        tcp(&other, &tenant, INNER_V4[0], INNER_V4[0], 2_000_000);
        tcp(&tenant, &other, INNER_V6[1], INNER_V6[1], 500_000);
        tcp(&other, &tenant, INNER_V6[0], INNER_V6[0], 500_000);
        udp(&tenant, &other, INNER_V4[1], INNER_V4[1], &[1, 1400, 8000]);
        udp(&other, &tenant, INNER_V6[0], INNER_V6[0], &[1, 1400, 8000]);

        let (report, outcome) = running.stop();
        outcome.unwrap();
        let network = &report.networks[0];
        for (way, counters) in [("out", &network.out), ("back", &network.back)] {
            for reason in DropReason::ALL {
                // Neighbour discovery can start before the device is up.
                let allowed = if reason == DropReason::Down { 5 } else { 0 };
                let dropped = counters.dropped_by(reason);
                assert!(dropped <= allowed, "{plan:?} {way}: {dropped} {}", reason.name());
            }
            assert!(counters.forwarded > 100, "{plan:?} {way}: {counters:?}");
        }
        assert_eq!(report.unassigned.dropped(), 0, "{plan:?}: {:?}", report.unassigned);
    }
}
