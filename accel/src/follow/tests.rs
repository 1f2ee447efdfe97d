//! Whatever entries change in whatever order: what is followed one by one is what a plan
//! made anew would be.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use netstate::overlay::{
    BridgeDevice, BridgeEntry, BridgePort, Device, Found, VxlanDevice, VxlanEntry,
};
use proptest::prelude::*;

use super::*;
use crate::routed::Forwarding;

const NICS: [u32; 2] = [2, 3];
const BRIDGES: [u32; 2] = [10, 11];
/// In the first bridge; one of the same VNI; in the second; routed to.
const VXLANS: [u32; 5] = [20, 21, 22, 23, 24];
/// In the first bridge, the last of them without carrier; in the second.
const PORTS: [u32; 4] = [30, 31, 32, 33];
const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// The last ones: by another NIC, without a neighbour, without a route.
fn remote(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 2 + number).into()
}

fn device(name: &str, own: u8) -> Device {
    Device {
        name: name.into(),
        ethernet: true,
        mac: Some(mac(own)),
        mtu: 1500,
        running: true,
        ..Device::default()
    }
}

fn port(name: &str, own: u8, bridge: u32) -> Device {
    let port = Some(BridgePort { forwarding: true, options: Vec::new() });
    Device { master: Some(bridge), port, ..device(name, own) }
}

fn vxlan(vni: u32, learning: bool) -> Option<VxlanDevice> {
    let local = Some(LOCAL.into());
    Some(VxlanDevice { vni, local, port: 4789, df: Some(false), learning, ..Default::default() })
}

fn entry(to: IpAddr) -> VxlanEntry {
    VxlanEntry { remote: Some(to), port: None, vni: None, link: None }
}

fn facts() -> Facts {
    let mut facts = Facts::default();
    let links = &mut facts.overlay.links;
    for (index, own) in NICS.into_iter().zip(200..) {
        links.insert(index, device("nic", own));
    }
    for (index, own) in BRIDGES.into_iter().zip(0..) {
        let bridge = Some(BridgeDevice::default());
        links.insert(index, Device { bridge, ..device("br", own) });
    }
    let [first, second] = BRIDGES;
    let masters = [Some(first), Some(first), Some(first), Some(second), None];
    let vnis = [(1, false), (2, true), (1, true), (4, false), (5, false)];
    for ((index, own), (master, (vni, learning))) in
        VXLANS.into_iter().zip(210..).zip(masters.into_iter().zip(vnis))
    {
        let own = if master.is_none() { 2 } else { own };
        let link = master.map_or(device("vx", own), |master| port("vx", own, master));
        links.insert(index, Device { vxlan: vxlan(vni, learning), ..link });
    }
    for (index, bridge) in PORTS.into_iter().zip([first, first, first, second]) {
        let running = index != PORTS[2];
        links.insert(index, Device { running, ..port("p", 220, bridge) });
    }
    for index in BRIDGES.into_iter().chain(VXLANS) {
        facts.forwarding.insert(index, Forwarding { ipv4: true, ipv6: true });
    }
    facts.overlay.addresses.push(LOCAL.into());
    for number in 0..6 {
        let nic = if number == 3 { NICS[1] } else { NICS[0] };
        for index in VXLANS {
            let way =
                Found { link: nic, via: None, source: Some(LOCAL.into()), mtu: None, ttl: None };
            let way = (number != 5).then_some(way);
            facts.routes.insert((Place { netns: 0, index }, remote(number)), way);
        }
        if number != 4 {
            facts.overlay.neighbours.insert((nic, remote(number)), mac(100 + number));
        }
    }
    // What has no entry.
    for index in [VXLANS[0], VXLANS[4]] {
        facts.overlay.vxlan_fdb.insert((index, MacAddr([0; 6])), vec![entry(remote(0))]);
    }
    // An address that is known at the routed device by its neighbour.
    facts.overlay.neighbours.insert((VXLANS[4], [10, 9, 0, 1].into()), mac(3));
    facts
}

/// A change: the table, the address, what the entry is now.
#[derive(Debug, Clone)]
enum Event {
    Bridge(u32, u8, Option<(u32, bool)>),
    Vxlan(u32, u8, Option<u8>),
}

fn event() -> impl Strategy<Value = Event> {
    let of = |indices: &'static [u32]| prop::sample::select(indices);
    let at = prop_oneof![of(&VXLANS[..4]), of(&PORTS)];
    let entry = prop::option::weighted(0.7, (at, prop::bool::weighted(0.1)));
    let bridge = (of(&BRIDGES), 0..6u8, entry).prop_map(|(of, mac, entry)| {
        // An entry's port is one of the bridge's.
        let second = [VXLANS[3], PORTS[3]];
        let entry = entry.filter(|(at, _)| second.contains(at) == (of == BRIDGES[1]));
        Event::Bridge(of, mac, entry)
    });
    let vxlan = (of(&VXLANS), 0..6u8, prop::option::weighted(0.8, 0..6u8))
        .prop_map(|(of, mac, to)| Event::Vxlan(of, mac, to));
    prop_oneof![bridge, vxlan]
}

fn apply(facts: &mut Facts, event: &Event) -> EntryChange {
    let overlay = &mut facts.overlay;
    match *event {
        Event::Bridge(bridge, last, entry) => {
            let key = (bridge, mac(last));
            match entry {
                Some((port, own)) => overlay.bridge_fdb.insert(key, BridgeEntry { port, own }),
                None => overlay.bridge_fdb.remove(&key),
            };
            EntryChange { table: Table::Bridge(bridge), mac: key.1, gone: entry.is_none() }
        }
        Event::Vxlan(device, last, to) => {
            let key = (device, mac(last));
            let to = to.map(remote);
            match to {
                Some(to) => overlay.vxlan_fdb.insert(key, vec![entry(to)]),
                None => overlay.vxlan_fdb.remove(&key),
            };
            EntryChange { table: Table::Device(device), mac: key.1, gone: to.is_none() }
        }
    }
}

/// One change after the other; how many could be followed.
fn follow_all(events: &[Event]) -> usize {
    let plan_of = |seen: &Seen| Plan::new(&seen.home, &seen.sandboxes, |_| true);
    let mut seen = Seen { home: facts(), sandboxes: BTreeMap::new() };
    let mut plan = plan_of(&seen);
    let mut followed = 0;
    for event in events {
        let change = apply(&mut facts(), event);
        let keys = seen.keys(&[(0, Change::Entry(change))]).unwrap_or_default();
        let behind = |key: &Key| plan.behind(seen.space(0).unwrap(), *key).map(|at| (*key, at));
        let before: Result<Vec<_>, Beyond> = keys.iter().map(behind).collect();
        apply(&mut seen.home, event);
        let anew = plan_of(&seen);
        let follow = |(key, at)| plan.follow(seen.space(0).unwrap(), key, at);
        match before.and_then(|before| before.into_iter().try_for_each(follow)) {
            Ok(()) => {
                assert_eq!(plan, anew, "{event:?}");
                followed += 1;
            }
            Err(Beyond) => plan = anew,
        }
    }
    followed
}

proptest! {
    #[test]
    fn what_is_followed_is_what_is_planned_anew(
        events in prop::collection::vec(event(), 1..60)
    ) {
        follow_all(&events);
    }
}

#[test]
fn a_move_between_known_vteps_and_ports_is_followed() {
    let [bridge, _] = BRIDGES;
    let start = [
        Event::Vxlan(VXLANS[0], 4, Some(0)),
        Event::Bridge(bridge, 4, Some((VXLANS[0], false))),
        Event::Vxlan(VXLANS[0], 5, Some(1)),
        Event::Bridge(bridge, 5, Some((VXLANS[0], false))),
    ];
    let then = [
        Event::Vxlan(VXLANS[0], 4, Some(1)),
        Event::Vxlan(VXLANS[0], 4, Some(2)),
        Event::Bridge(bridge, 4, Some((PORTS[0], false))),
        Event::Bridge(bridge, 4, Some((PORTS[1], false))),
        Event::Bridge(bridge, 4, None),
    ];
    let before = follow_all(&start);
    assert_eq!(follow_all(&[&start[..], &then].concat()) - before, then.len());
}

#[test]
fn a_neighbour_is_a_change_only_where_its_address_is_another() {
    let seen = Seen { home: facts(), sandboxes: BTreeMap::new() };
    let told = |address, mac| {
        let link = NICS[0];
        seen.keys(&[(0, Change::Neighbour { link, address, mac })]).map(|keys| keys.len())
    };
    let (known, unknown) = (remote(0), remote(4));
    assert_eq!(told(known, Some(mac(100))), Ok(0));
    assert_eq!(told(known, Some(mac(101))), Err(Beyond));
    assert_eq!(told(known, None), Err(Beyond));
    assert_eq!(told(unknown, None), Ok(0));
    assert_eq!(told(unknown, Some(mac(100))), Err(Beyond));
}
