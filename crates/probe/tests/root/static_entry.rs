//! A real fault of a host: a static forwarding entry of a VXLAN device names another endpoint than
//! the one from which packets arrive. A device that learns drops all of them (`vxlan_snoop`; drop
//! reason `VXLAN_ENTRY_EXISTS`), whether an offload touches them or not.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use packet::ethernet::MacAddr;
use probe::end::Access;
use probe::exchange::Trouble;
use probe::local::Between;
use probe::report::Report;
use probe::run::{Extent, Options};
use test_support::{need, require};
use testbed::{Host, NIC};

const MTU: u32 = 1500;
const DEVICE: &str = "vxlan0";
/// Hardware addresses of the tunnel's devices.
const MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 8, 1]), MacAddr([2, 0, 0, 0, 8, 2])];
/// Addresses of the NICs, and of the tunnel's devices.
const NICS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 7, 0, 1), Ipv4Addr::new(10, 7, 0, 2)];
const INSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 8, 0, 1), Ipv4Addr::new(10, 8, 0, 2)];

fn run(host: &Host, line: &str) {
    let mut words = line.split(' ');
    host.run(Command::new(words.next().unwrap()).args(words)).unwrap();
}

/// Two hosts with a tunnel between them.
fn hosts() -> [Host; 2] {
    let hosts = ["a", "b"].map(|name| Host::new(name).unwrap());
    hosts[0].connect(NIC, &hosts[1], NIC, MTU).unwrap();
    for (own, host) in hosts.iter().enumerate() {
        let peer = 1 - own;
        host.address(NIC, NICS[own], 24).unwrap();
        let (local, remote, mac) = (NICS[own], NICS[peer], MACS[own]);
        let kind = format!("type vxlan id 8 local {local} remote {remote} dev {NIC} dstport 4789");
        run(host, &format!("ip link add {DEVICE} address {mac} {kind}"));
        run(host, &format!("ip link set {DEVICE} up"));
        host.address(DEVICE, INSIDE[own], 24).unwrap();
        host.netlink().add_neighbour(DEVICE, INSIDE[peer].into(), MACS[peer]).unwrap();
    }
    hosts
}

fn probe([client, server]: &[Host; 2]) -> Result<Report, Trouble> {
    let [own, there] = INSIDE.map(IpAddr::from);
    let between = Between {
        namespaces: [client.netns(), server.netns()],
        client: (own, there),
        server: (there, own),
        access: [Access::open, Access::open],
        rate: 20_000_000,
        settings: None,
    };
    let options = Options { extent: Extent::Sample, rate: 20_000_000, ..Options::default() };
    between.run(&options, None, &AtomicBool::new(false))
}

#[test]
fn a_static_entry_that_contradicts_the_sender_loses_everything_in_its_direction() {
    require!(need::root(), need::device("vxlan"), need::tool("bridge"));
    let hosts = hosts();
    let report = probe(&hosts).unwrap();
    assert!(!report.has_findings(), "{}", crate::cases::summary(&report));
    // The client's packets come from another endpoint than the entry says.
    let entry = format!("{} dev {DEVICE} dst 10.7.0.99", MACS[0]);
    run(&hosts[1], &format!("bridge fdb replace {entry} static"));
    let trouble = probe(&hosts).unwrap_err();
    assert!(matches!(trouble, Trouble::Nothing(way, _) if way == "to the peer"), "{trouble}");
    // The entry is the cause.
    run(&hosts[1], &format!("bridge fdb del {entry}"));
    let report = probe(&hosts).unwrap();
    assert!(!report.has_findings(), "{}", crate::cases::summary(&report));
}
