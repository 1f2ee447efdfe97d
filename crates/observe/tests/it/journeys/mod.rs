//! Journeys of events made by hand.

mod any;
mod fragments;
mod record;

use std::net::{IpAddr, Ipv4Addr};

use observe::{Checksum, Ending, Event, Flow, Journey, Journeys, Kind, Origin};

const TCP: u8 = 6;
const UDP: u8 = 17;
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 11);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 12);
const MILLISECOND: u64 = 1_000_000;

/// A flow from the client to the server; sequence and identification distinguish packets.
fn flow(protocol: u8, sequence: u32, id: u32) -> Flow {
    Flow {
        source: IpAddr::V4(CLIENT),
        destination: IpAddr::V4(SERVER),
        protocol,
        ports: (4711, 5301),
        tcp_flags: if protocol == TCP { 0x10 } else { 0 },
        sequence,
        window: 502,
        id,
        fragment: None,
        length: 100,
    }
}

/// A packet at the device `eth0` of the namespace 1, on CPU 0.
fn event(time: u64, skb: u64, kind: Kind, flow: Flow) -> Event {
    let is_at_device = !matches!(kind, Kind::Socket | Kind::Read);
    Event {
        time,
        skb,
        location: 0,
        netns: Some(1),
        device: is_at_device.then(|| (2, "eth0".to_owned())),
        bytes: 114,
        reason: 0,
        gso: None,
        kind,
        checksum: Checksum::Partial,
        conntrack: None,
        mark: 0,
        cpu: 0,
        process: (kind == Kind::Read).then(|| (99, "reader".to_owned())),
        macs: None,
        flow: Some(flow),
        tunnel: None,
        headers: None,
    }
}

fn at(mut event: Event, netns: u32, index: u32, device: &str) -> Event {
    (event.netns, event.device) = (Some(netns), Some((index, device.to_owned())));
    event
}

fn gso(mut event: Event, size: u16, packets: u16) -> Event {
    event.gso = Some((size, packets));
    event.bytes = u32::from(size) * u32::from(packets) + 54;
    event
}

fn endings(journey: &Journey) -> Vec<Option<Ending>> {
    journey.legs.iter().map(|leg| leg.ending.clone()).collect()
}

fn origins(journey: &Journey) -> Vec<Origin> {
    journey.legs.iter().map(|leg| leg.origin).collect()
}

fn read() -> Ending {
    Ending::Read(99, "reader".to_owned())
}

#[test]
fn the_same_address_is_the_same_packet_in_every_namespace() {
    let one = flow(UDP, 0, 7);
    let mut journeys = Journeys::default();
    let ended = journeys.take([
        event(10, 0xa, Kind::Queued, one),
        event(20, 0xa, Kind::Sent, one),
        at(event(30, 0xa, Kind::Backlog, one), 3, 9, "veth0"),
        at(event(40, 0xa, Kind::Received, one), 3, 9, "veth0"),
        event(50, 0xa, Kind::Read, one),
    ]);
    let [journey] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!((journey.number, journey.took()), (1, 40));
    assert_eq!(endings(journey), [Some(read())]);
    assert_eq!(origins(journey), [Origin::First]);
    assert_eq!(journey.steps.len(), 5);
    assert_eq!(journey.flow(), Some(one));
    assert_eq!(journeys.finish(), []);
}

#[test]
fn an_address_that_is_used_again_is_another_packet() {
    for (one, other) in [
        (flow(UDP, 0, 7), flow(UDP, 0, 8)),
        (flow(TCP, 1000, 7), flow(TCP, 2000, 8)),
        (flow(TCP, 1000, 0), flow(UDP, 0, 0)),
    ] {
        let mut journeys = Journeys::default();
        let ended = journeys.take([
            event(10, 0xa, Kind::Queued, one),
            event(20, 0xa, Kind::Queued, other),
            event(30, 0xa, Kind::Dropped, other),
        ]);
        let [first, second] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!((first.number, endings(first)), (1, vec![Some(Ending::Unseen)]));
        assert_eq!((second.number, endings(second)), (2, vec![Some(Ending::Dropped(0, 0))]));
        assert_eq!((first.steps.len(), second.steps.len()), (1, 2));
        assert_eq!(journeys.finish(), []);
    }
}

#[test]
fn a_delivered_packet_is_not_sent_again() {
    // None of them has an identification, and no reader was seen.
    for (one, other) in [(0, 0), (7, 0), (0, 7)] {
        let (one, other) = (flow(UDP, 0, one), flow(UDP, 0, other));
        let mut journeys = Journeys::default();
        let mut ended = journeys.take([
            event(10, 0xa, Kind::Queued, one),
            event(20, 0xa, Kind::Received, one),
            event(30, 0xa, Kind::Socket, one),
            event(40, 0xa, Kind::Queued, other),
            event(50, 0xa, Kind::Received, other),
            event(60, 0xa, Kind::Socket, other),
        ]);
        ended.extend(journeys.finish());
        let [first, second] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!(endings(first), [Some(Ending::Received)]);
        assert_eq!(endings(second), [Some(Ending::Received)]);
        assert_eq!((first.steps.len(), second.steps.len()), (3, 3));
    }
}

#[test]
fn a_translated_packet_stays_the_same_packet() {
    let before = flow(UDP, 0, 7);
    let after = Flow { destination: "172.17.0.2".parse().unwrap(), ..before };
    let ended = Journeys::default().take([
        event(10, 0xa, Kind::Queued, before),
        at(event(20, 0xa, Kind::Queued, after), 3, 9, "br0"),
        event(30, 0xa, Kind::Read, after),
    ]);
    let [journey] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(journey.flow(), Some(before));
    assert_eq!(journey.steps[2].event.flow, Some(after));
}

#[test]
fn segments_are_legs_of_the_packet_that_they_were_cut_from() {
    let whole = flow(TCP, 1000, 7);
    let mut journeys = Journeys::default();
    let mut events = vec![
        gso(event(10, 0xa, Kind::Queued, whole), 100, 3),
        gso(event(20, 0xa, Kind::Consumed, whole), 100, 3),
    ];
    for number in 0..3 {
        let segment = flow(TCP, 1000 + 100 * number, 7 + number);
        events.push(event(30 + u64::from(number), 0xb0 + u64::from(number), Kind::Sent, segment));
    }
    for number in 0..3 {
        let segment = flow(TCP, 1000 + 100 * number, 7 + number);
        events.push(event(
            40 + u64::from(number),
            0xb0 + u64::from(number),
            Kind::Dropped,
            segment,
        ));
    }
    let ended = journeys.take(events);
    let [journey] = &ended[..] else { panic!("{ended:?}") };
    let segment = Origin::SegmentOf(0);
    assert_eq!(origins(journey), [Origin::First, segment, segment, segment]);
    let dropped = Some(Ending::Dropped(0, 0));
    assert_eq!(endings(journey)[0], Some(Ending::Cut));
    assert_eq!(endings(journey)[1..], [dropped.clone(), dropped.clone(), dropped]);
    assert_eq!(journey.steps.iter().filter(|step| step.leg > 0).count(), 6);
}

#[test]
fn packets_of_another_cpu_device_or_connection_are_no_segments() {
    let whole = flow(TCP, 1000, 7);
    let segment = || event(20, 0xb, Kind::Sent, flow(TCP, 1100, 8));
    let other_cpu = Event { cpu: 1, ..segment() };
    let other_device = at(segment(), 1, 3, "eth1");
    let elsewhere = at(segment(), 2, 2, "eth0");
    let other_port = Flow { ports: (4712, 5301), ..flow(TCP, 1100, 8) };
    let other_flow = Event { flow: Some(other_port), ..segment() };
    let beyond = Event { flow: Some(flow(TCP, 1300, 8)), ..segment() };
    for sent in [other_cpu, other_device, elsewhere, other_flow, beyond] {
        let mut journeys = Journeys::default();
        let ended = journeys.take([
            gso(event(10, 0xa, Kind::Queued, whole), 100, 3),
            sent.clone(),
            event(40, 0xa, Kind::Dropped, whole),
        ]);
        let [journey] = &ended[..] else { panic!("{sent:?}: {ended:?}") };
        assert_eq!(origins(journey), [Origin::First], "{sent:?}");
    }
}

#[test]
fn copies_are_legs_of_the_packet_that_they_are_of() {
    let one = flow(UDP, 0, 7);
    let ended = Journeys::default().take([
        event(10, 0xa, Kind::Queued, one),
        at(event(20, 0xb, Kind::Queued, one), 1, 3, "veth1"),
        event(30, 0xa, Kind::Read, one),
        event(40, 0xb, Kind::Dropped, one),
    ]);
    let [journey] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(origins(journey), [Origin::First, Origin::CopyOf(0)]);
    assert_eq!(endings(journey), [Some(read()), Some(Ending::Dropped(0, 0))]);
}

/// Datagrams with DF have no IPv4 identification, and IPv6 datagrams never have one.
#[test]
fn datagrams_that_look_the_same_are_packets_of_their_own() {
    let one = flow(UDP, 0, 0);
    let mut journeys = Journeys::default();
    let mut ended = Vec::new();
    for number in 0..10 {
        // Each waits in the socket while the next is sent.
        ended.extend(journeys.take([
            event(number * 10, 0xa0 + number, Kind::Queued, one),
            event(number * 10 + 1, 0xa0 + number, Kind::Sent, one),
            at(event(number * 10 + 2, 0xa0 + number, Kind::Received, one), 3, 9, "veth0"),
        ]));
    }
    for number in 0..10 {
        ended.extend(journeys.take([event(200 + number, 0xa0 + number, Kind::Read, one)]));
    }
    assert_eq!(ended.len(), 10, "{ended:#?}");
    for journey in &ended {
        assert_eq!(endings(journey), [Some(read())]);
        assert_eq!(journey.steps.len(), 4);
    }
}

#[test]
fn a_merged_packet_names_the_packet_it_became_part_of() {
    let mut journeys = Journeys::default();
    let mut ended = Vec::new();
    for number in 0..3 {
        let part = flow(TCP, 1000 + 100 * number, 7 + number);
        let skb = 0xa0 + u64::from(number);
        ended.extend(journeys.take([event(10 + u64::from(number), skb, Kind::Gro, part)]));
    }
    let whole = flow(TCP, 1000, 7);
    ended.extend(journeys.take([
        gso(event(20, 0xa0, Kind::Received, whole), 100, 3),
        event(30, 0xa0, Kind::Socket, whole),
        event(40, 0xa0, Kind::Read, whole),
    ]));
    let got: Vec<_> = ended.iter().map(|journey| (journey.number, endings(journey))).collect();
    let merged = || vec![Some(Ending::MergedInto(1))];
    assert_eq!(got, [(2, merged()), (3, merged()), (1, vec![Some(read())])]);
}

#[test]
fn packets_that_cannot_be_merged_are_passed_on() {
    let (one, other) = (flow(TCP, 1000, 7), flow(TCP, 1100, 8));
    let ended = Journeys::default().take([
        event(10, 0xa, Kind::Gro, one),
        event(11, 0xa, Kind::Received, one),
        event(12, 0xb, Kind::Gro, other),
        event(13, 0xb, Kind::Received, other),
        event(14, 0xa, Kind::Dropped, one),
        event(15, 0xb, Kind::Dropped, other),
    ]);
    assert_eq!(ended.len(), 2, "{ended:?}");
    assert!(ended.iter().all(|journey| endings(journey) == [Some(Ending::Dropped(0, 0))]));
}

#[test]
fn a_connection_s_packet_waits_for_its_reader_a_moment() {
    let one = flow(TCP, 1000, 7);
    let begin = [event(10, 0xa, Kind::Received, one), event(20, 0xa, Kind::Socket, one)];
    let mut journeys = Journeys::default();
    assert_eq!(journeys.take(begin.clone()), []);
    assert_eq!(journeys.settle(20 + 49 * MILLISECOND), []);
    let ended = journeys.settle(20 + 50 * MILLISECOND);
    let [journey] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(endings(journey), [Some(Ending::Received)]);

    let mut journeys = Journeys::default();
    journeys.take(begin.clone());
    let ended = journeys.take([event(30, 0xa, Kind::Read, one)]);
    assert_eq!(endings(&ended[0]), [Some(read())]);

    let mut journeys = Journeys::default();
    journeys.take(begin.clone());
    let ended = journeys.take([event(30, 0xa, Kind::Consumed, one)]);
    assert_eq!(endings(&ended[0]), [Some(Ending::Received)]);

    let mut journeys = Journeys::default();
    journeys.take(begin);
    assert_eq!(endings(&journeys.finish()[0]), [Some(Ending::Received)]);
}

#[test]
fn packets_unseen_for_long_are_given_up() {
    let one = flow(UDP, 0, 7);
    let mut journeys = Journeys::default();
    assert_eq!(journeys.take([event(10, 0xa, Kind::Queued, one)]), []);
    assert_eq!(journeys.settle(10 + 4_999 * MILLISECOND), [], "as long as in a queue");
    let ended = journeys.settle(10 + 5_000 * MILLISECOND);
    assert_eq!(endings(&ended[0]), [Some(Ending::Unseen)]);
    // The same without times, by events alone.
    assert_eq!(journeys.take([event(10, 0xa, Kind::Queued, one)]), []);
    let late = event(10 + 6_000 * MILLISECOND, 0xb, Kind::Queued, flow(UDP, 0, 8));
    assert_eq!(endings(&journeys.take([late])[0]), [Some(Ending::Unseen)]);
}

#[test]
fn packets_without_a_seen_start_are_no_journeys() {
    for kind in [Kind::Sent, Kind::Socket, Kind::Read, Kind::Consumed] {
        let mut journeys = Journeys::default();
        assert_eq!(journeys.take([event(10, 0xa, kind, flow(TCP, 1, 1))]), [], "{kind:?}");
        assert_eq!(journeys.finish(), [], "{kind:?}");
    }
    // But a drop is reported at any place.
    let ended = Journeys::default().take([event(10, 0xa, Kind::Dropped, flow(TCP, 1, 1))]);
    assert_eq!(endings(&ended[0]), [Some(Ending::Dropped(0, 0))]);
}

#[test]
fn endings_of_packets_have_texts() {
    let one = flow(UDP, 0, 7);
    let left = [
        event(10, 0xa, Kind::Queued, one),
        event(20, 0xa, Kind::Sent, one),
        event(30, 0xa, Kind::Consumed, one),
    ];
    let ended = Journeys::default().take(left);
    assert_eq!(endings(&ended[0]), [Some(Ending::Left("eth0".to_owned()))]);
    let used = [event(10, 0xa, Kind::Received, one), event(30, 0xa, Kind::Consumed, one)];
    assert_eq!(endings(&Journeys::default().take(used)[0]), [Some(Ending::Consumed)]);
}

#[test]
fn the_oldest_goes_where_there_are_too_many() {
    const MOST: u64 = 65_536;
    let mut journeys = Journeys::default();
    let begin = |number: u64| {
        let one = Flow { ports: ((number % 60_000) as u16, 5301), ..flow(TCP, number as u32, 0) };
        event(number, number, Kind::Queued, one)
    };
    assert_eq!(journeys.take((1..=MOST).map(begin)), []);
    let ended = journeys.take((MOST + 1..=MOST + 3).map(begin));
    let numbers: Vec<u64> = ended.iter().map(|journey| journey.number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert!(ended.iter().all(|journey| endings(journey) == [Some(Ending::Unseen)]));
    // A packet in its connection's socket counts as received, even before it is read.
    let received = |number: u64| Event { kind: Kind::Socket, ..begin(number) };
    assert_eq!(journeys.take([received(4)]), []);
    let ended = journeys.take([begin(MOST + 4)]);
    assert_eq!(endings(&ended[0]), [Some(Ending::Received)]);
    assert_eq!(journeys.finish().len(), MOST as usize);
}

#[test]
fn much_that_is_under_way_is_looked_at_less_often() {
    let begin = |number: u64| event(1, number, Kind::Queued, flow(UDP, 0, number as u32));
    for (count, pause) in [(1, 50), (8192, 100)] {
        let mut journeys = Journeys::default();
        assert_eq!(journeys.take((0..count).map(begin)), []);
        let began = 5000 * MILLISECOND;
        assert_eq!(journeys.settle_when_due(began).len(), 0);
        let received = event(began, 0, Kind::Socket, flow(UDP, 0, 0));
        assert_eq!(journeys.take([received]), []);
        assert_eq!(journeys.settle_when_due(began + pause * MILLISECOND).len(), 0);
        let ended = journeys.settle_when_due(began + pause * MILLISECOND + 1);
        assert_eq!(ended.len() as u64, count);
    }
}

#[test]
fn packets_in_flight_at_the_end_are_reported() {
    let mut journeys = Journeys::default();
    journeys.take([
        gso(event(10, 0xa, Kind::Queued, flow(TCP, 1000, 7)), 100, 3),
        gso(event(20, 0xa, Kind::Consumed, flow(TCP, 1000, 7)), 100, 3),
        event(30, 0xb, Kind::Sent, flow(TCP, 1000, 7)),
        event(40, 0xc, Kind::Queued, flow(UDP, 0, 9)),
    ]);
    let ended = journeys.finish();
    assert_eq!(ended.len(), 2);
    assert_eq!(endings(&ended[0]), [Some(Ending::Cut), Some(Ending::Unseen)]);
    assert_eq!(endings(&ended[1]), [Some(Ending::Unseen)]);
}

/// Memory must not grow in months of watching.
#[test]
fn ended_journeys_are_freed() {
    let mut journeys = Journeys::default();
    let mut time = 0;
    for number in 0..1000 {
        // A packet that was merged without a trace, one that was dropped, and one that was read.
        let [lost, dropped, read] = [0, 1, 2].map(|at| flow(TCP, number * 300 + at * 100, 0));
        let skb = u64::from(number) * 3;
        time += MILLISECOND;
        journeys.take([
            event(time, skb, Kind::Gro, lost),
            event(time + 1, skb + 1, Kind::Gro, dropped),
            event(time + 2, skb + 1, Kind::Dropped, dropped),
            event(time + 3, skb + 2, Kind::Queued, read),
            event(time + 4, skb + 2, Kind::Read, read),
        ]);
    }
    let ended = journeys.settle(time + 6_000 * MILLISECOND);
    assert_eq!(ended.len(), 1000);
    let held = format!("{journeys:?}");
    assert!(held.len() < 2000, "{} bytes: {}", held.len(), &held[..2000]);
}
