//! Tests that incremental changes, in any order, lead to the same plan as planning from scratch.

use std::collections::BTreeMap;

use netstate::overlay::BridgeEntry;
use proptest::prelude::*;

use super::*;
use crate::planning::fixture::{BRIDGES, NICS, PORTS, VXLANS, entry, mac, remote, snapshot};

/// A change: table, address, new value of the entry.
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
        // The port of an entry belongs to the bridge.
        let second = [VXLANS[3], PORTS[3]];
        let entry = entry.filter(|(at, _)| second.contains(at) == (of == BRIDGES[1]));
        Event::Bridge(of, mac, entry)
    });
    let vxlan = (of(&VXLANS), 0..6u8, prop::option::weighted(0.8, 0..6u8))
        .prop_map(|(of, mac, to)| Event::Vxlan(of, mac, to));
    prop_oneof![bridge, vxlan]
}

fn apply(snapshot: &mut NetnsSnapshot, event: &Event) -> EntryChange {
    let overlay = &mut snapshot.overlay;
    match *event {
        Event::Bridge(bridge, last, entry) => {
            let key = (bridge, mac(last));
            match entry {
                Some((port, own)) => overlay.bridge_fdb.insert(key, BridgeEntry { port, own }),
                None => overlay.bridge_fdb.remove(&key),
            };
            let (table, gone) = (Table::Bridge(bridge), entry.is_none());
            let port = entry.map_or(1, |(port, _)| port);
            EntryChange { table, mac: key.1, port, learned: true, gone }
        }
        Event::Vxlan(device, last, to) => {
            let key = (device, mac(last));
            let to = to.map(remote);
            match to {
                Some(to) => overlay.vxlan_fdb.insert(key, vec![entry(to)]),
                None => overlay.vxlan_fdb.remove(&key),
            };
            let (table, gone) = (Table::Device(device), to.is_none());
            EntryChange { table, mac: key.1, port: device, learned: true, gone }
        }
    }
}

/// Applies changes one by one. Returns how many could be applied incrementally.
fn follow_all(events: &[Event]) -> usize {
    let plan_of =
        |machine: &MachineSnapshot| Plan::new(&machine.home, &machine.sandboxes, |_| true);
    let mut machine = MachineSnapshot { home: snapshot(), sandboxes: BTreeMap::new() };
    let mut plan = plan_of(&machine);
    let mut followed = 0;
    for event in events {
        let change = apply(&mut snapshot(), event);
        let keys = machine.keys(&[(0, Change::Entry(change))]).unwrap_or_default();
        let behind =
            |key: &EntryKey| plan.behind(machine.view(0).unwrap(), *key).map(|at| (*key, at));
        let before: Result<Vec<_>, Beyond> = keys.iter().map(behind).collect();
        apply(&mut machine.home, event);
        let anew = plan_of(&machine);
        let follow = |(key, at)| plan.follow(machine.view(0).unwrap(), key, at);
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
    let machine = MachineSnapshot { home: snapshot(), sandboxes: BTreeMap::new() };
    let apply = |address, mac| {
        let link = NICS[0];
        machine.keys(&[(0, Change::Neighbour { link, address, mac })]).map(|keys| keys.len())
    };
    let (known, unknown) = (remote(0), remote(4));
    assert_eq!(apply(known, Some(mac(100))), Ok(0));
    assert_eq!(apply(known, Some(mac(101))), Err(Beyond));
    assert_eq!(apply(known, None), Err(Beyond));
    assert_eq!(apply(unknown, None), Ok(0));
    assert_eq!(apply(unknown, Some(mac(100))), Err(Beyond));
}
