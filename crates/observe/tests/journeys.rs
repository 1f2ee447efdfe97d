//! Journeys of events made by hand.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use observe::{
    Checksum, Ending, Event, Flow, Journey, Journeys, Kind, Names, Origin, Packet, PacketEnding,
    Tunnel,
};
use proptest::prelude::*;

const TCP: u8 = 6;
const UDP: u8 = 17;
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 11);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 12);
const MILLISECOND: u64 = 1_000_000;

/// A flow from the client to the server; sequence and identification tell packets apart.
fn flow(protocol: u8, sequence: u32, id: u16) -> Flow {
    Flow {
        source: IpAddr::V4(CLIENT),
        destination: IpAddr::V4(SERVER),
        protocol,
        ports: (4711, 5301),
        tcp_flags: if protocol == TCP { 0x10 } else { 0 },
        sequence,
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
        flow: Some(flow),
        tunnel: None,
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
fn what_was_translated_on_its_way_is_the_same_packet() {
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
        let segment = flow(TCP, 1000 + 100 * number, 7 + number as u16);
        events.push(event(30 + u64::from(number), 0xb0 + u64::from(number), Kind::Sent, segment));
    }
    for number in 0..3 {
        let segment = flow(TCP, 1000 + 100 * number, 7 + number as u16);
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
fn what_another_cpu_or_device_or_connection_sends_is_no_segment() {
    let whole = flow(TCP, 1000, 7);
    let segment = || event(20, 0xb, Kind::Sent, flow(TCP, 1100, 8));
    let other_cpu = Event { cpu: 1, ..segment() };
    let other_device = at(segment(), 1, 3, "eth1");
    let elsewhere = at(segment(), 2, 2, "eth0");
    let stranger = Flow { ports: (4712, 5301), ..flow(TCP, 1100, 8) };
    let other_flow = Event { flow: Some(stranger), ..segment() };
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

/// Datagrams have no identification of IPv4 while they may not be cut, and never one of IPv6.
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
fn what_was_merged_says_into_which_packet() {
    let mut journeys = Journeys::default();
    let mut ended = Vec::new();
    for number in 0..3 {
        let part = flow(TCP, 1000 + 100 * number, 7 + number as u16);
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
fn what_merging_left_alone_goes_on() {
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
fn what_is_seen_nowhere_for_long_is_given_up() {
    let one = flow(UDP, 0, 7);
    let mut journeys = Journeys::default();
    assert_eq!(journeys.take([event(10, 0xa, Kind::Queued, one)]), []);
    assert_eq!(journeys.settle(10 + 4_999 * MILLISECOND), [], "as long as in a queue");
    let ended = journeys.settle(10 + 5_000 * MILLISECOND);
    assert_eq!(endings(&ended[0]), [Some(Ending::Unseen)]);
    // Asked by events alone, too.
    assert_eq!(journeys.take([event(10, 0xa, Kind::Queued, one)]), []);
    let late = event(10 + 6_000 * MILLISECOND, 0xb, Kind::Queued, flow(UDP, 0, 8));
    assert_eq!(endings(&journeys.take([late])[0]), [Some(Ending::Unseen)]);
}

#[test]
fn what_was_not_seen_to_begin_is_no_journey() {
    for kind in [Kind::Sent, Kind::Socket, Kind::Read, Kind::Consumed] {
        let mut journeys = Journeys::default();
        assert_eq!(journeys.take([event(10, 0xa, kind, flow(TCP, 1, 1))]), [], "{kind:?}");
        assert_eq!(journeys.finish(), [], "{kind:?}");
    }
    // But a drop is told wherever it is.
    let ended = Journeys::default().take([event(10, 0xa, Kind::Dropped, flow(TCP, 1, 1))]);
    assert_eq!(endings(&ended[0]), [Some(Ending::Dropped(0, 0))]);
}

#[test]
fn what_left_or_was_used_up_says_so() {
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
    assert_eq!(journeys.finish().len(), MOST as usize);
}

#[test]
fn what_is_under_way_at_the_end_is_told() {
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

/// Names as a test would have them.
struct Invented;

impl Names for Invented {
    fn namespace(&self, netns: Option<u32>) -> String {
        match netns {
            Some(1) => "tenant-a".to_owned(),
            Some(_) => "b".to_owned(),
            None => "?".to_owned(),
        }
    }

    fn reason(&self, reason: u32) -> String {
        ["NOT_SPECIFIED", "VXLAN_ENTRY_EXISTS"][reason as usize].to_owned()
    }

    fn function(&self, location: u64) -> Option<String> {
        (location == 0x77).then(|| "vxlan_rcv".to_owned())
    }
}

#[test]
fn a_drop_is_told_with_flow_hop_reason_and_cause() {
    let one = flow(UDP, 0, 7);
    let outer = Flow {
        source: "10.0.0.7".parse().unwrap(),
        destination: "10.0.0.2".parse().unwrap(),
        ports: (50_000, 4789),
        ..flow(UDP, 0, 8)
    };
    let tunnelled = |mut event: Event| {
        event.tunnel = Some(Tunnel { vni: 42, outer });
        event.bytes += 50;
        event
    };
    let dropped = Event {
        reason: 1,
        location: 0x77,
        ..tunnelled(at(event(4_000, 0xa, Kind::Dropped, one), 2, 5, "vxlan0"))
    };
    let ended = Journeys::default().take([
        event(1_000, 0xa, Kind::Queued, one),
        tunnelled(at(event(3_000, 0xa, Kind::Received, one), 2, 4, "nic0")),
        dropped,
    ]);
    let packet = Packet::of(&ended[0], &Invented);
    let text = packet.text();
    for part in [
        "10.1.0.11:4711 -> 10.1.0.12:5301 udp",
        "tenant-a",
        "nic0",
        "vxlan0",
        "in VXLAN 42 10.0.0.7:50000 -> 10.0.0.2:4789 udp",
        "DROPPED: VXLAN_ENTRY_EXISTS in vxlan_rcv",
        "static entry",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!((packet.begun_ns, packet.took_ns), (1_000, 3_000));
    let PacketEnding::Dropped { reason, function, meaning, .. } = &packet.legs[0].ending else {
        panic!("{packet:?}")
    };
    assert_eq!((reason.as_str(), function.as_deref()), ("VXLAN_ENTRY_EXISTS", Some("vxlan_rcv")));
    assert!(meaning.is_some());
    let steps: Vec<_> = packet.steps.iter().map(|step| (step.what.as_str(), step.vni)).collect();
    assert_eq!(steps, [("queued", None), ("received", Some(42)), ("dropped", Some(42))]);
}

#[test]
fn a_cut_packet_is_told_with_its_segments() {
    let mut events = vec![
        gso(event(1_000, 0xa, Kind::Queued, flow(TCP, 1000, 7)), 100, 3),
        gso(event(2_000, 0xa, Kind::Consumed, flow(TCP, 1000, 7)), 100, 3),
    ];
    for number in 0..3 {
        let segment = flow(TCP, 1000 + 100 * number, 7 + number as u16);
        let (time, skb) = (3_000 + 10 * u64::from(number), 0xb0 + u64::from(number));
        events.push(event(time, skb, Kind::Sent, segment));
        events.push(event(time + 1, skb, Kind::Consumed, segment));
    }
    let ended = Journeys::default().take(events);
    let packet = Packet::of(&ended[0], &Invented);
    assert_eq!(packet.legs.len(), 4);
    assert_eq!(packet.legs[0].ending, PacketEnding::Cut);
    assert!(packet.legs[1..].iter().all(|leg| leg.segment_of == Some(0)));
    let text = packet.text();
    assert!(text.contains("GSO 3 x 100") && text.contains("cut"), "{text}");
    assert!(text.contains("left by eth0"), "{text}");
}

#[test]
fn addresses_of_both_families_are_told_as_people_write_them() {
    let six = Flow {
        source: "2001:db8::1".parse().unwrap(),
        destination: "2001:db8::2".parse().unwrap(),
        ..flow(TCP, 1, 0)
    };
    let echo = Flow { protocol: 1, ports: (0, 0), ..flow(UDP, 0, 7) };
    let unknown = Flow { protocol: 132, ports: (0, 0), ..flow(UDP, 0, 7) };
    for (flow, text) in [
        (six, "[2001:db8::1]:4711 -> [2001:db8::2]:5301 tcp"),
        (echo, "10.1.0.11 -> 10.1.0.12 icmp"),
        (unknown, "10.1.0.11 -> 10.1.0.12 protocol 132"),
    ] {
        assert_eq!(flow.to_string(), text);
        let ended = Journeys::default().take([event(10, 0xa, Kind::Dropped, flow)]);
        let packet = Packet::of(&ended[0], &Invented);
        assert_eq!(packet.flow.as_ref().unwrap().to_string(), text);
        assert!(packet.text().contains(text), "{}", packet.text());
    }
}

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

prop_compose! {
    /// An event of few packets at few places, so that they meet.
    fn some_event()(
        skb in 1u64..6,
        kind in kinds(),
        protocol in prop::sample::select(vec![TCP, UDP]),
        sequence in 0u32..4,
        id in 0u16..3,
        place in 1u32..3,
        cpu in 0u32..2,
        packets in 0u16..4,
        has_flow in prop::bool::weighted(0.9),
        pause in prop::sample::select(vec![1, 10_000, 60 * MILLISECOND, 6_000 * MILLISECOND]),
    ) -> (u64, Event) {
        let flow = flow(protocol, sequence * 100, id);
        let event = at(event(0, skb, kind, flow), place, place, "eth0");
        let event = if packets > 1 { gso(event, 100, packets) } else { event };
        let flow = has_flow.then_some(flow);
        (pause, Event { cpu, flow, ..event })
    }
}

proptest! {
    /// Whatever comes, in whatever order: no event is told twice, what is told has ended, and
    /// its legs and steps fit together.
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
        let mut told: Vec<u64> = Vec::new();
        for journey in &ended {
            prop_assert!(!journey.steps.is_empty());
            prop_assert!(journey.steps.is_sorted_by_key(|step| step.event.time));
            prop_assert_eq!(journey.legs[0].origin, Origin::First);
            for (at, leg) in journey.legs.iter().enumerate() {
                prop_assert!(leg.ending.is_some());
                prop_assert!(journey.steps.iter().any(|step| step.leg == at));
                if let Origin::SegmentOf(parent) | Origin::CopyOf(parent) = leg.origin {
                    prop_assert!(parent < at);
                }
            }
            for step in &journey.steps {
                prop_assert!(step.leg < journey.legs.len());
                told.push(step.event.time);
            }
            prop_assert!(!Packet::of(journey, &Invented).text().is_empty());
        }
        let all = told.len();
        told.sort_unstable();
        told.dedup();
        prop_assert_eq!(told.len(), all, "each event once");
        // What ends was not begun by these: nothing else is left out.
        let must = events.iter().filter(|event| {
            !matches!(event.kind, Kind::Sent | Kind::Socket | Kind::Read | Kind::Consumed)
        });
        for event in must {
            prop_assert!(told.binary_search(&event.time).is_ok(), "{:?}", event);
        }
    }
}
