//! Tests each field of an entry against its source: a port's MTU and peer, the outer headers of the
//! path to a remote VTEP, the refresh interval of an entry.

use std::net::{IpAddr, Ipv6Addr};

use netstate::overlay::{BridgeEntry, Change, EntryChange, Found, Table};

use super::fixture::{BRIDGES, NICS, PORTS, VXLANS, device, entry, mac, remote, snapshot};
use super::*;
use crate::model::{MachineSnapshot, TunnelGso};

/// The bridged VXLAN device, and the routed one.
const BRIDGED: u32 = VXLANS[0];
const ROUTED: u32 = VXLANS[4];
/// Id of the peer's namespace in the port's namespace.
const PEER: u32 = 7;

fn link(snapshot: &mut NetnsSnapshot, index: u32) -> &mut Interface {
    snapshot.overlay.links.get_mut(&index).unwrap()
}

fn vxlan(snapshot: &mut NetnsSnapshot) -> &mut Vxlan {
    link(snapshot, BRIDGED).vxlan.as_mut().unwrap()
}

/// Changes a port that is one end of a veth pair, with `mac(3)` at the other end.
type PortChange = fn(&mut NetnsSnapshot);
/// MTU of an entry, and the namespace of the peer if frames are delivered to the peer.
type Local = (u32, Option<u32>);

fn local_entry(change: PortChange) -> Local {
    let mut snapshot = snapshot();
    let port = link(&mut snapshot, PORTS[0]);
    (port.kind, port.link_netns) = (Some("veth".into()), Some(PEER));
    snapshot.peers.insert(PORTS[0], Interface { mtu: 1400, ..device("eth0", 3) });
    change(&mut snapshot);
    let port = &snapshot.overlay.links[&PORTS[0]];
    match local(&snapshot, PORTS[0], port, mac(3)) {
        Fdb::Local { port, mtu, peer } if port == PORTS[0] => (mtu, peer),
        other => panic!("{other:?}"),
    }
}

/// Unless the peer is known to own the address, frames go to the port, not to the peer.
#[test]
fn frames_are_handed_to_the_peer_only_where_it_is_the_addresss_device() {
    fn peer(snapshot: &mut NetnsSnapshot) -> &mut Interface {
        snapshot.peers.get_mut(&PORTS[0]).unwrap()
    }
    const DIRECT: Local = (1400, Some(PEER));
    const BY_PORT: Local = (1500, None);
    let cases: &[(&str, PortChange, Local)] = &[
        ("as it is", |_| (), DIRECT),
        ("the port has the smaller MTU", |s| link(s, PORTS[0]).mtu = 1300, (1300, Some(PEER))),
        ("no pair", |s| link(s, PORTS[0]).kind = Some("tun".into()), BY_PORT),
        ("no kind", |s| link(s, PORTS[0]).kind = None, BY_PORT),
        ("frames wait in a queue", |s| link(s, PORTS[0]).qdisc = Some("pfifo".into()), BY_PORT),
        ("nothing is known of the peer", |s| s.peers.clear(), BY_PORT),
        ("the peer is down", |s| peer(s).detail.running = false, BY_PORT),
        ("the peer has an XDP program", |s| peer(s).detail.xdp_attached = true, BY_PORT),
        ("the address is another's", |s| peer(s).mac = Some(mac(4)), BY_PORT),
        ("the peer has no address", |s| peer(s).mac = None, BY_PORT),
        ("its namespace has no number", |s| link(s, PORTS[0]).link_netns = None, BY_PORT),
        // In a sandbox: the id in the namespace of the NICs counts.
        ("numbered", |s| s.numbers = Some([(PEER, 3)].into()), (1400, Some(3))),
        ("another is numbered", |s| s.numbers = Some([(PEER + 1, 3)].into()), BY_PORT),
    ];
    for (what, change, wanted) in cases {
        assert_eq!(local_entry(*change), *wanted, "{what}");
    }
}

/// A plan with one address behind the bridged VXLAN device.
fn plan(change: impl FnOnce(&mut NetnsSnapshot)) -> Plan {
    let mut snapshot = snapshot();
    snapshot.overlay.links.retain(|index, _| *index == BRIDGED || !VXLANS.contains(index));
    let behind = BridgeEntry { port: BRIDGED, own: false };
    snapshot.overlay.bridge_fdb.insert((BRIDGES[0], mac(3)), behind);
    change(&mut snapshot);
    Plan::new(&snapshot, &BTreeMap::new(), |_| true)
}

fn way(change: impl FnOnce(&mut NetnsSnapshot)) -> Option<UnderlayRoute> {
    let plan = plan(change);
    assert_eq!(plan.devices[0].name, "vx");
    let key = (DeviceId { netns: 0, index: BRIDGES[0] }, mac(3));
    plan.fdb.get(&key).map(|entry| match entry {
        Fdb::Remote(way) => *way,
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_way_says_what_the_kernels_headers_would() {
    let plain = UnderlayRoute {
        nic: NICS[0],
        mtu: 1450,
        vxlan: BRIDGED,
        vni: 1,
        local: [10, 0, 0, 1].into(),
        remote: remote(0),
        udp_port: 4789,
        source_ports: (32_768, 60_999),
        dont_fragment: false,
        gso: TunnelGso::default(),
        checksum: false,
        proxy: false,
        ttl: 64,
        tos: 0,
        inherits_tos: false,
        label: 0,
        next_hop: mac(100),
        source: mac(200),
    };
    /// Settings that every case starts from.
    fn settings(snapshot: &mut NetnsSnapshot) {
        snapshot.local_ports = (32_768, 60_999);
        snapshot.default_ttl = 64;
    }
    fn route(snapshot: &mut NetnsSnapshot) -> &mut Found {
        let key = (DeviceId { netns: 0, index: BRIDGED }, remote(0));
        snapshot.routes.get_mut(&key).unwrap().as_mut().unwrap()
    }
    fn suppress(device: &mut Interface) {
        device.port.as_mut().unwrap().neigh_suppress = true;
    }
    fn big(snapshot: &mut NetnsSnapshot, is_possible: bool, size: u32) {
        snapshot.big_tunnels = is_possible;
        let device = link(snapshot, BRIDGED);
        (device.gso_max_size, device.gso_ipv4_max_size) = (Some(size), Some(size));
    }
    type Case = (&'static str, fn(&mut NetnsSnapshot), fn(&mut UnderlayRoute));
    let cases: &[Case] = &[
        ("as it is", |_| (), |_| ()),
        (
            "ports of its own",
            |s| vxlan(s).source_ports = Some((50_000, 50_001)),
            |w| {
                w.source_ports = (50_000, 50_001);
            },
        ),
        ("an empty range is none", |s| vxlan(s).source_ports = Some((50_000, 50_000)), |_| ()),
        ("nor is one backwards", |s| vxlan(s).source_ports = Some((50_001, 50_000)), |_| ()),
        ("don't fragment", |s| vxlan(s).detail.df = Some(true), |w| w.dont_fragment = true),
        ("DSCP of the inner packet", |s| vxlan(s).detail.tos = 1, |w| w.inherits_tos = true),
        ("ECN is not the device's", |s| vxlan(s).detail.tos = 0xbb, |w| w.tos = 0xb8),
        ("TTL of the device", |s| vxlan(s).ttl = 9, |w| w.ttl = 9),
        ("TTL of the route", |s| route(s).ttl = Some(8), |w| w.ttl = 8),
        ("both", |s| (vxlan(s).ttl, route(s).ttl) = (9, Some(8)), |w| w.ttl = 9),
        ("MTU of the route", |s| route(s).mtu = Some(1400), |w| w.mtu = 1350),
        ("not above the NIC's", |s| route(s).mtu = Some(9000), |_| ()),
        ("MTU of the device", |s| link(s, BRIDGED).mtu = 1200, |w| w.mtu = 1200),
        // A kernel without a rule for length fields, whatever the device's limits.
        ("large GSO packets", |s| big(s, false, 200_000), |_| ()),
        ("none", |s| big(s, true, 65_536), |_| ()),
        (
            "larger ones",
            |s| big(s, true, 200_000),
            |w| w.gso = TunnelGso { ipv4: 200_000, ipv6: 200_000 },
        ),
        (
            "IPv6 only",
            |s| {
                big(s, true, 200_000);
                link(s, BRIDGED).gso_ipv4_max_size = Some(65_536);
            },
            |w| w.gso = TunnelGso { ipv4: 0, ipv6: 200_000 },
        ),
        ("checksums", |s| vxlan(s).checksum = true, |w| w.checksum = true),
        ("the device answers solicitations", |s| vxlan(s).proxy = Some(true), |w| w.proxy = true),
        ("the bridge does", |s| suppress(link(s, BRIDGED)), |w| w.proxy = true),
        ("for another port", |s| suppress(link(s, PORTS[0])), |w| w.proxy = true),
    ];
    for (what, change, wanted) in cases {
        let got = way(|snapshot| {
            settings(snapshot);
            change(snapshot);
        });
        let mut expected = plain;
        wanted(&mut expected);
        assert_eq!(got, Some(expected), "{what}");
    }
}

/// An address without an entry is behind the default remote, unless the device learns addresses.
/// Multicast and unspecified addresses are not a single VTEP.
#[test]
fn addresses_without_an_entry_are_behind_the_default_remote() {
    let to = |change: fn(&mut NetnsSnapshot)| way(change).map(|way| way.remote);
    fn only(snapshot: &mut NetnsSnapshot, to: IpAddr) {
        snapshot.overlay.vxlan_fdb.insert((BRIDGED, mac(3)), vec![entry(to)]);
        // Add a route, so that the entry alone decides.
        let found = snapshot.routes[&(DeviceId { netns: 0, index: BRIDGED }, remote(0))].clone();
        snapshot.routes.insert((DeviceId { netns: 0, index: BRIDGED }, to), found);
        snapshot.overlay.neighbours.insert((NICS[0], to), mac(100));
    }
    assert_eq!(to(|_| ()), Some(remote(0)));
    assert_eq!(to(|s| vxlan(s).learning = true), None);
    assert_eq!(to(|s| only(s, remote(1))), Some(remote(1)));
    assert_eq!(to(|s| only(s, [224, 0, 0, 1].into())), None);
    assert_eq!(to(|s| only(s, [0, 0, 0, 0].into())), None);
}

/// The kernel expires entries without packets. The interval is an eighth of the ageing time, and
/// five seconds at most.
#[test]
fn entries_are_refreshed_before_they_age() {
    fn ageing(snapshot: &mut NetnsSnapshot, bridge: u32, vxlan_s: u32) {
        link(snapshot, BRIDGES[0]).bridge.as_mut().unwrap().detail.ageing = bridge;
        vxlan(snapshot).detail.ageing = vxlan_s;
    }
    let refresh = |bridge, vxlan| plan(|s| ageing(s, bridge, vxlan)).refresh;
    assert_eq!(refresh(0, 0), REFRESH);
    assert_eq!(refresh(30_000, 300), REFRESH);
    // Bridge ageing is in hundredths of a second.
    assert_eq!(refresh(800, 0), Duration::from_secs(1));
    assert_eq!(refresh(0, 16), Duration::from_secs(2));
    assert_eq!(refresh(800, 16), Duration::from_secs(1));
}

#[test]
fn segments_are_left_to_a_device_that_merges_more_than_its_nic() {
    for (merging, expected) in [
        (&[][..], false),
        (&[BRIDGED], true),
        (&[NICS[0]], false),
        (&[BRIDGED, NICS[0]], false),
        (&[BRIDGED, NICS[1]], true),
    ] {
        let plan = plan(|snapshot| snapshot.merging = merging.iter().copied().collect());
        let vtep = plan.vteps.values().find(|vtep| vtep.vxlan == BRIDGED).unwrap();
        assert_eq!(vtep.merges, expected, "{merging:?}");
    }
}

/// IPv6 routing rules do not affect a tunnel over IPv4.
#[test]
fn policy_routing_is_that_of_the_tunnels_family() {
    let refused = |ipv6: bool| {
        let plan = plan(|snapshot| {
            snapshot.overlay.rules6.push("from fd00::/8 lookup 7".into());
            if ipv6 {
                vxlan(snapshot).local = Some(Ipv6Addr::LOCALHOST.into());
            }
        });
        plan.devices[0].refused.as_ref().map(|refusal| refusal.code())
    };
    assert_eq!(refused(false), None);
    let rule = "from fd00::/8 lookup 7".to_owned();
    assert_eq!(refused(true), Some(Refusal::PolicyRoutingIpv6 { rule }.code()));
}

/// The zero address stands for all addresses without an entry, and groups have several
/// destinations, so such a change affects more than one address.
#[test]
fn a_change_for_many_addresses_is_not_followed_as_one() {
    let machine = MachineSnapshot { home: snapshot(), ..MachineSnapshot::default() };
    let keys = |octets: [u8; 6]| {
        let (table, mac) = (Table::Device(ROUTED), MacAddr(octets));
        let change = Change::Entry(EntryChange { table, mac, port: 1, learned: true, gone: false });
        machine.keys(&[(0, change)]).map(|keys| keys.len()).ok()
    };
    assert_eq!(keys([2, 0, 0, 0, 0, 9]), Some(1));
    assert_eq!(keys([0; 6]), None);
    assert_eq!(keys([1, 0, 0x5e, 0, 0, 1]), None);
    assert_eq!(keys([3, 0, 0, 0, 0, 1]), None);
}
