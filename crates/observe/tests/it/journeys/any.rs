//! Journeys of arbitrary events.

use std::time::Duration;

use observe::{Encapsulation, Ending, Event, Flow, Journeys, Kind, Origin, Packet, Tunnel};
use proptest::prelude::*;

use super::record::Invented;
use super::{MILLISECOND, TCP, UDP, at, event, flow, gso};

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::Queued,
        Kind::Sent,
        Kind::Backlog,
        Kind::Gro,
        Kind::Received,
        Kind::Socket,
        Kind::Read,
        Kind::Dropped,
        Kind::Consumed,
    ])
}

fn fragments() -> impl Strategy<Value = Option<(u16, bool)>> {
    let all = vec![None, None, Some((0, true)), Some((800, true)), Some((1600, false))];
    prop::sample::select(all)
}

prop_compose! {
    /// An event of few packets at few places, so that events of a packet meet.
    fn some_event()(
        skb in 1u64..6,
        kind in kinds(),
        protocol in prop::sample::select(vec![TCP, UDP]),
        sequence in 0u32..4,
        id in 0u32..3,
        fragment in fragments(),
        outer in prop::option::weighted(0.3, fragments()),
        place in 1u32..3,
        cpu in 0u32..2,
        packets in 0u16..4,
        has_flow in prop::bool::weighted(0.9),
        pause in prop::sample::select(vec![1, 10_000, 60 * MILLISECOND, 6_000 * MILLISECOND]),
    ) -> (u64, Event) {
        let flow = Flow { fragment, ..flow(protocol, sequence * 100, id) };
        let event = at(event(0, skb, kind, flow), place, place, "eth0");
        let event = if packets > 1 { gso(event, 100, packets) } else { event };
        let tunnel = outer.map(|fragment| Tunnel {
            encapsulation: Encapsulation::Vxlan,
            vni: Some(42),
            outer: Flow { protocol: UDP, fragment, ..flow },
        });
        let flow = has_flow.then_some(flow);
        (pause, Event { cpu, flow, tunnel, ..event })
    }
}

proptest! {
    /// For arbitrary events in any order: no event is reported twice, each reported journey has
    /// ended, and its legs and steps fit together.
    #[test]
    fn every_event_is_of_one_journey(events in prop::collection::vec(some_event(), 0..200)) {
        let mut time = 0;
        let events: Vec<Event> = events
            .into_iter()
            .map(|(pause, event)| {
                time += pause;
                Event { time, ..event }
            })
            .collect();
        let mut journeys = Journeys::default();
        let mut ended = Vec::new();
        for event in events.clone() {
            ended.extend(journeys.take([event]));
        }
        ended.extend(journeys.settle(time + Duration::from_secs(1).as_nanos() as u64));
        ended.extend(journeys.finish());
        let mut numbers: Vec<u64> = ended.iter().map(|journey| journey.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        prop_assert_eq!(numbers.len(), ended.len(), "each number once");
        let mut times: Vec<u64> = Vec::new();
        for journey in &ended {
            prop_assert!(!journey.steps.is_empty());
            prop_assert!(journey.steps.is_sorted_by_key(|step| step.event.time));
            prop_assert_eq!(journey.legs[0].origin, Origin::First);
            for (at, leg) in journey.legs.iter().enumerate() {
                prop_assert!(leg.ending.is_some());
                // A datagram that is reassembled and fragmented again at once was not seen as a
                // whole.
                let is_unseen = matches!(leg.origin, Origin::ReassembledFrom(_))
                    && matches!(leg.ending, Some(Ending::Fragmented | Ending::Reassembled));
                prop_assert!(is_unseen || journey.steps.iter().any(|step| step.leg == at));
                if let Origin::SegmentOf(parent)
                | Origin::CopyOf(parent)
                | Origin::FragmentOf(parent)
                | Origin::ReassembledFrom(parent) = leg.origin {
                    prop_assert!(parent < at);
                }
            }
            for step in &journey.steps {
                prop_assert!(step.leg < journey.legs.len());
                times.push(step.event.time);
            }
            prop_assert!(!Packet::of(journey, &Invented).text().is_empty());
        }
        let all = times.len();
        times.sort_unstable();
        times.dedup();
        prop_assert_eq!(times.len(), all, "each event once");
        // Events of these kinds do not begin a journey; all others must be reported. Fragments are
        // freed with the reassembled packet.
        let is_fragment = |event: &Event| {
            let outer = event.tunnel.as_ref().and_then(|tunnel| tunnel.outer.fragment);
            outer.or(event.flow.and_then(|flow| flow.fragment)).is_some()
        };
        let must = events.iter().filter(|event| match event.kind {
            Kind::Dropped => !is_fragment(event),
            kind => !matches!(kind, Kind::Sent | Kind::Socket | Kind::Read | Kind::Consumed),
        });
        for event in must {
            prop_assert!(times.binary_search(&event.time).is_ok(), "{:?}", event);
        }
    }
}
