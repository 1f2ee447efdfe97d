//! A hand-made snapshot in which most devices are accelerated.

use std::net::{IpAddr, Ipv4Addr};

use netstate::interface::{Bridge, Interface, LinkDetail, Port, Vxlan, VxlanDetail};
use netstate::overlay::{Found, VxlanEntry};
use packet::ethernet::MacAddr;

use crate::model::{DeviceId, Forwarding, NetnsSnapshot};

pub(crate) const NICS: [u32; 2] = [2, 3];
pub(crate) const BRIDGES: [u32; 2] = [10, 11];
/// Two in the first bridge, the third in it with the VNI of the first; one in the second; one
/// routed.
pub(crate) const VXLANS: [u32; 5] = [20, 21, 22, 23, 24];
/// Three in the first bridge, the last without carrier; one in the second.
pub(crate) const PORTS: [u32; 4] = [30, 31, 32, 33];
const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

pub(crate) fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// Numbers 3, 4 and 5 use another NIC, have no neighbour, have no route.
pub(crate) fn remote(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 2 + number).into()
}

pub(crate) fn device(name: &str, own: u8) -> Interface {
    Interface {
        name: name.into(),
        mac: Some(mac(own)),
        mtu: 1500,
        detail: LinkDetail { ethernet: true, running: true, ..LinkDetail::default() },
        ..Interface::default()
    }
}

fn port(name: &str, own: u8, bridge: u32) -> Interface {
    let port = Some(Port::default());
    Interface { master: Some(bridge), port, ..device(name, own) }
}

fn vxlan(vni: u32, learning: bool) -> Option<Vxlan> {
    let local = Some(LOCAL.into());
    let detail = VxlanDetail { df: Some(false), ..VxlanDetail::default() };
    Some(Vxlan { vni, local, port: 4789, learning, detail, ..Vxlan::default() })
}

pub(crate) fn entry(to: IpAddr) -> VxlanEntry {
    VxlanEntry { remote: Some(to), port: None, vni: None, link: None }
}

pub(crate) fn snapshot() -> NetnsSnapshot {
    let mut snapshot = NetnsSnapshot::default();
    let links = &mut snapshot.overlay.links;
    for (index, own) in NICS.into_iter().zip(200..) {
        links.insert(index, device("nic", own));
    }
    for (index, own) in BRIDGES.into_iter().zip(0..) {
        let bridge = Some(Bridge::default());
        links.insert(index, Interface { bridge, ..device("br", own) });
    }
    let [first, second] = BRIDGES;
    let masters = [Some(first), Some(first), Some(first), Some(second), None];
    let vnis = [(1, false), (2, true), (1, true), (4, false), (5, false)];
    for ((index, own), (master, (vni, learning))) in
        VXLANS.into_iter().zip(210..).zip(masters.into_iter().zip(vnis))
    {
        let own = if master.is_none() { 2 } else { own };
        let link = master.map_or(device("vx", own), |master| port("vx", own, master));
        links.insert(index, Interface { vxlan: vxlan(vni, learning), ..link });
    }
    for (index, bridge) in PORTS.into_iter().zip([first, first, first, second]) {
        let mut link = port("p", 220, bridge);
        link.detail.running = index != PORTS[2];
        links.insert(index, link);
    }
    for index in BRIDGES.into_iter().chain(VXLANS) {
        snapshot.forwarding.insert(index, Forwarding { ipv4: true, ipv6: true });
    }
    snapshot.overlay.addresses.push(LOCAL.into());
    for number in 0..6 {
        let nic = if number == 3 { NICS[1] } else { NICS[0] };
        for index in VXLANS {
            let way = Found {
                link: nic,
                via: None,
                source: Some(LOCAL.into()),
                mtu: None,
                ttl: None,
                unsupported: None,
                comes_back: true,
            };
            let way = (number != 5).then_some(way);
            snapshot.routes.insert((DeviceId { netns: 0, index }, remote(number)), way);
        }
        if number != 4 {
            snapshot.overlay.neighbours.insert((nic, remote(number)), mac(100 + number));
        }
    }
    // Default remotes, for addresses without an entry.
    for index in [VXLANS[0], VXLANS[4]] {
        snapshot.overlay.vxlan_fdb.insert((index, MacAddr([0; 6])), vec![entry(remote(0))]);
    }
    // A neighbour makes this address known at the routed device.
    snapshot.overlay.neighbours.insert((VXLANS[4], [10, 9, 0, 1].into()), mac(3));
    snapshot
}
