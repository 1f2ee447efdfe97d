//! Journeys as text.

use observe::{Encapsulation, Event, Flow, Journeys, Kind, Names, Packet, PacketEnding, Tunnel};

use super::{TCP, UDP, at, event, flow, gso};

/// Names for a test.
pub struct Invented;

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
fn a_drop_is_reported_with_flow_hop_reason_and_cause() {
    let one = flow(UDP, 0, 7);
    let outer = Flow {
        source: "10.0.0.7".parse().unwrap(),
        destination: "10.0.0.2".parse().unwrap(),
        ports: (50_000, 4789),
        ..flow(UDP, 0, 8)
    };
    let tunnelled = |mut event: Event| {
        event.tunnel = Some(Tunnel { encapsulation: Encapsulation::Vxlan, vni: Some(42), outer });
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
fn a_segmented_packet_is_reported_with_its_segments() {
    let mut events = vec![
        gso(event(1_000, 0xa, Kind::Queued, flow(TCP, 1000, 7)), 100, 3),
        gso(event(2_000, 0xa, Kind::Consumed, flow(TCP, 1000, 7)), 100, 3),
    ];
    for number in 0..3 {
        let segment = flow(TCP, 1000 + 100 * number, 7 + number);
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
    assert!(text.contains("GSO 3 x 100") && text.contains("segmented"), "{text}");
    assert!(text.contains("left through eth0"), "{text}");
}

#[test]
fn a_segment_is_reported_with_its_header_and_the_time_of_day() {
    let syn = Flow { tcp_flags: 0x12, ..flow(TCP, 77, 1) };
    let ended = Journeys::default().take([event(10, 0xa, Kind::Dropped, syn)]);
    let mut packet = Packet::of(&ended[0], &Invented);
    let text = packet.text();
    assert!(text.contains(" tcp, SYN ACK, seq 77, win 502\n"), "{text}");
    // 1970-01-01, 1 h 2 min 3.004005 s.
    packet.begun_unix_ns = Some(3_723_004_005_999);
    assert!(packet.text().contains(", win 502, at 01:02:03.004005 UTC\n"), "{}", packet.text());
    let json = serde_json::to_value(&packet).unwrap();
    assert_eq!(json["tcp"]["flags"], serde_json::json!(["SYN", "ACK"]));
    assert_eq!((&json["tcp"]["sequence"], &json["tcp"]["window"]), (&77.into(), &502.into()));
    let datagram = Journeys::default().take([event(10, 0xa, Kind::Dropped, flow(UDP, 0, 1))]);
    assert_eq!(Packet::of(&datagram[0], &Invented).tcp, None);
}

#[test]
fn addresses_of_both_families_have_their_usual_text_form() {
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
