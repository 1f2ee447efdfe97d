//! Fragments of events made by hand.

use observe::{
    Capture, Encapsulation, Ending, Event, Flow, Journeys, Kind, Origin, Packet, Tunnel,
};

use super::record::Invented;
use super::{MILLISECOND, TCP, UDP, at, endings, event, flow, origins, read};

/// A fragment of the datagram 7.
fn piece(offset: u16, more: bool) -> Flow {
    Flow { fragment: Some((offset, more)), length: 80, ..flow(UDP, 0, 7) }
}

fn reassembled() -> Option<Ending> {
    Some(Ending::Reassembled)
}

/// Fragments of this flow at three addresses, up to their wait for reassembly.
fn received(pieces: [Flow; 3]) -> Vec<Event> {
    let mut events = Vec::new();
    for (number, piece) in pieces.into_iter().enumerate() {
        let (time, skb) = (number as u64 * 10, 0xa + number as u64);
        events.push(event(time + 1, skb, Kind::Queued, piece));
        events.push(event(time + 2, skb, Kind::Sent, piece));
        events.push(at(event(time + 3, skb, Kind::Received, piece), 2, 3, "eth0"));
    }
    events
}

fn three() -> [Flow; 3] {
    [piece(0, true), piece(1480, true), piece(2960, false)]
}

#[test]
fn fragments_are_legs_of_one_journey_until_they_are_put_together() {
    let mut journeys = Journeys::default();
    let whole = Flow { length: 3000, ..flow(UDP, 0, 7) };
    let mut events = received(three());
    // The kernel finishes with the first one; the last one's address gets the whole packet.
    events.push(event(40, 0xa, Kind::Consumed, piece(0, true)));
    events.push(event(50, 0xc, Kind::Socket, whole));
    events.push(event(60, 0xc, Kind::Read, whole));
    let ended = journeys.take(events);
    let [journey] = &ended[..] else { panic!("{ended:#?}") };
    let fragment = Origin::FragmentOf(0);
    assert_eq!(origins(journey), [Origin::First, fragment, fragment, Origin::ReassembledFrom(0)]);
    assert_eq!(endings(journey), [reassembled(), reassembled(), reassembled(), Some(read())]);
    let text = Packet::of(journey, &Invented).text();
    for part in [
        "first fragment of id 0x0007\n",
        "2 other fragments of its datagram, the first:\n",
        "fragment at 1480 of id 0x0007\n",
        "the datagram, reassembled:\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The kernel frees the others with it, and reports that for each.
    let freed = [Kind::Dropped, Kind::Consumed].map(|kind| event(70, 0xb, kind, piece(1480, true)));
    assert_eq!(journeys.take(freed), []);
    assert_eq!(journeys.finish(), []);
}

#[test]
fn the_first_fragment_may_come_last() {
    let [first, second, third] = three();
    let mut events = received([third, second, first]);
    events.push(event(50, 0xc, Kind::Read, flow(UDP, 0, 7)));
    let ended = Journeys::default().take(events);
    let [journey] = &ended[..] else { panic!("{ended:#?}") };
    assert_eq!(origins(journey)[3], Origin::ReassembledFrom(2));
    assert_eq!(endings(journey), [reassembled(), reassembled(), reassembled(), Some(read())]);
}

#[test]
fn two_fragments_of_a_datagram_are_not_one_packet_seen_twice() {
    let mut journeys = Journeys::default();
    // At one address one after the other, and at two addresses.
    let ended = journeys.take([
        event(10, 0xa, Kind::Queued, piece(1480, true)),
        event(20, 0xa, Kind::Queued, piece(2960, false)),
        at(event(30, 0xb, Kind::Queued, piece(4440, false)), 2, 3, "eth0"),
        event(40, 0xa, Kind::Dropped, piece(2960, false)),
        event(50, 0xb, Kind::Dropped, piece(4440, false)),
    ]);
    assert_eq!(ended, [], "others may come");
    let ended = journeys.settle(50 + 50 * MILLISECOND);
    let [journey] = &ended[..] else { panic!("{ended:#?}") };
    let dropped = Some(Ending::Dropped(0, 0));
    assert_eq!(endings(journey), [Some(Ending::Unseen), dropped.clone(), dropped]);
    let fragment = Origin::FragmentOf(0);
    assert_eq!(origins(journey), [Origin::First, fragment, fragment]);
}

#[test]
fn fragments_of_other_datagrams_are_other_journeys() {
    let other_id = Flow { id: 8, ..piece(1480, false) };
    let other_end = Flow { source: "10.1.0.13".parse().unwrap(), ..piece(1480, false) };
    let other_protocol = Flow { protocol: TCP, ..piece(1480, false) };
    for other in [other_id, other_end, other_protocol] {
        let mut journeys = Journeys::default();
        journeys.take([
            event(10, 0xa, Kind::Queued, piece(0, true)),
            event(20, 0xb, Kind::Queued, other),
        ]);
        assert_eq!(journeys.finish().len(), 2, "{other:?}");
    }
}

#[test]
fn an_identification_that_is_used_again_is_another_datagram_s() {
    let mut journeys = Journeys::default();
    journeys.take([
        event(10, 0xa, Kind::Queued, piece(0, true)),
        event(20, 0xb, Kind::Queued, piece(0, true)),
        event(30, 0xc, Kind::Queued, piece(1480, false)),
    ]);
    // The first one waits for others that never arrive.
    let ended = journeys.take([event(40, 0xa, Kind::Dropped, piece(0, true))]);
    let ended = [ended, journeys.settle(40 + 50 * MILLISECOND)].concat();
    let [journey] = &ended[..] else { panic!("{ended:#?}") };
    assert_eq!(origins(journey), [Origin::First]);
    let rest = journeys.finish();
    let [journey] = &rest[..] else { panic!("{rest:#?}") };
    assert_eq!(origins(journey), [Origin::First, Origin::FragmentOf(0)]);
}

/// In IPv6 only fragments have an identification, a new one for each fragmentation, and the first
/// fragment has the protocol.
#[test]
fn ipv6_packets_reassembled_and_refragmented_are_one_journey() {
    let six = |id, fragment| Flow {
        source: "2001:db8::1".parse().unwrap(),
        destination: "2001:db8::2".parse().unwrap(),
        fragment,
        ..flow(UDP, 0, id)
    };
    let mut journeys = Journeys::default();
    let other_protocol = Flow { protocol: 60, ..six(0x1_0000, Some((1480, false))) };
    journeys.take([
        event(10, 0xa, Kind::Received, six(0x1_0000, Some((0, true)))),
        event(20, 0xb, Kind::Received, other_protocol),
    ]);
    assert_eq!(journeys.finish().len(), 1, "the protocol of an extension header");
    let mut journeys = Journeys::default();
    let ended = journeys.take([
        event(10, 0xa, Kind::Received, six(0x1_0000, Some((0, true)))),
        event(20, 0xb, Kind::Received, six(0x1_0000, Some((1480, false)))),
        event(25, 0xa, Kind::Consumed, six(0x1_0000, Some((0, true)))),
        event(30, 0xb, Kind::Queued, six(0x2_0000, Some((0, true)))),
        event(31, 0xc, Kind::Queued, six(0x2_0000, Some((1480, false)))),
        at(event(32, 0xb, Kind::Received, six(0x2_0000, Some((0, true)))), 2, 3, "eth0"),
        at(event(33, 0xc, Kind::Received, six(0x2_0000, Some((1480, false)))), 2, 3, "eth0"),
        event(40, 0xc, Kind::Read, six(0, None)),
    ]);
    let [journey] = &ended[..] else { panic!("{ended:#?} {journeys:#?}") };
    let legs = [
        Origin::First,
        Origin::FragmentOf(0),
        Origin::ReassembledFrom(0),
        Origin::FragmentOf(2),
        Origin::FragmentOf(2),
        Origin::ReassembledFrom(3),
    ];
    assert_eq!(origins(journey), legs);
    assert_eq!(endings(journey)[2], Some(Ending::Fragmented));
    assert_eq!(endings(journey)[5], Some(read()));
}

/// A tunnel's packet is fragmented: the inner packet is seen before and after.
#[test]
fn fragments_of_a_tunnel_are_of_the_packet_in_it() {
    let inner = flow(UDP, 0, 0);
    let outer = |fragment| Flow {
        source: "10.0.0.1".parse().unwrap(),
        destination: "10.0.0.2".parse().unwrap(),
        ports: (50000, 4789),
        fragment,
        ..flow(UDP, 0, 9)
    };
    let within = |event: Event, fragment| {
        let (encapsulation, vni) = (Encapsulation::Vxlan, Some(42));
        Event { tunnel: Some(Tunnel { encapsulation, vni, outer: outer(fragment) }), ..event }
    };
    let first = |time, skb, kind| within(event(time, skb, kind, inner), Some((0, true)));
    let last = |time, skb, kind| within(event(time, skb, kind, inner), Some((1480, false)));
    let ended = Journeys::default().take([
        event(10, 0xa, Kind::Queued, inner),
        event(20, 0xa, Kind::Sent, inner),
        first(30, 0xb, Kind::Queued),
        first(31, 0xb, Kind::Sent),
        last(32, 0xc, Kind::Queued),
        last(33, 0xc, Kind::Sent),
        within(event(34, 0xa, Kind::Consumed, inner), None),
        first(40, 0xb, Kind::Received),
        last(41, 0xc, Kind::Received),
        first(42, 0xb, Kind::Consumed),
        event(50, 0xc, Kind::Received, inner),
        event(60, 0xc, Kind::Read, inner),
    ]);
    let [journey] = &ended[..] else { panic!("{ended:#?}") };
    let fragment = Origin::FragmentOf(0);
    assert_eq!(origins(journey), [Origin::First, fragment, fragment, Origin::ReassembledFrom(1)]);
    let fragmented = Some(Ending::Fragmented);
    assert_eq!(endings(journey), [fragmented, reassembled(), reassembled(), Some(read())]);
    let packet = Packet::of(journey, &Invented);
    assert_eq!(packet.legs[1].fragment_of, Some(0));
    assert_eq!(packet.legs[3].reassembled_from, Some(1));
    let found = packet.steps.iter().filter_map(|step| step.tunnel_fragment);
    let found: Vec<_> = found.map(|found| (found.id, found.offset, found.more)).collect();
    assert!(found.contains(&(9, 0, true)) && found.contains(&(9, 1480, false)), "{found:?}");
    let text = packet.text();
    assert!(text.contains("outer last fragment, at 1480, of id 0x0009"), "{text}");
    let json = serde_json::to_string(&packet).unwrap();
    assert_eq!(serde_json::from_str::<Packet>(&json).unwrap(), packet);
    let mut capture = Capture::new(0, "a system", "a program");
    capture.add(journey, &packet);
    let file = String::from_utf8_lossy(&capture.take(u64::MAX)).into_owned();
    for comment in [
        "packet 1, leg 2 (a fragment of leg 1), step ",
        "packet 1, leg 4 (reassembled from leg 2), step ",
        "outer first fragment of id 0x0009",
        "end: fragmented",
        "end: reassembled with the other fragments",
    ] {
        assert!(file.contains(comment), "{comment}: {file}");
    }
}

#[test]
fn a_fragment_waits_for_the_others_until_the_kernel_s_timeout() {
    let mut journeys = Journeys::default();
    journeys.take([event(10, 0xa, Kind::Received, piece(0, true))]);
    assert_eq!(journeys.settle(60_000 * MILLISECOND), []);
    let ended = journeys.take([event(60_000 * MILLISECOND, 0xa, Kind::Dropped, piece(0, true))]);
    assert_eq!(ended, [], "others may come");
    let ended = journeys.settle(60_050 * MILLISECOND);
    assert_eq!(endings(&ended[0]), [Some(Ending::Dropped(0, 0))]);

    let mut journeys = Journeys::default();
    journeys.take([event(10, 0xa, Kind::Received, piece(0, true))]);
    let ended = journeys.settle(66_000 * MILLISECOND);
    assert_eq!(endings(&ended[0]), [Some(Ending::Unseen)]);
}
