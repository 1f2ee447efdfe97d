use packet::ethernet::MacAddr;
use proptest::prelude::*;

use super::*;
use crate::class::Tunnel;
use crate::frame::{Ends, Flow, Frame, build};
use crate::tally::{Counting, Tally};

const SESSION: Session = Session(0x1122_3344_5566_7788);

/// Builds the packets of a class as they are on the wire.
fn wire(class: &Class, at: u16) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for frame in frames(class, at) {
        let cut = Segmenter::new(&frame.bytes, &frame.header).unwrap();
        let mut buffer = vec![0; 200_000];
        let written = cut.write_all(&[], &mut buffer).unwrap();
        packets.extend(written.segments(&buffer).map(<[u8]>::to_vec));
    }
    packets
}

/// Builds the frames of a class as a device gets them.
fn frames(class: &Class, at: u16) -> Vec<Frame> {
    let address = |n: u16| match class.family {
        Family::V4 => std::net::Ipv4Addr::new(10, 0, 0, n as u8).into(),
        Family::V6 => std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into(),
    };
    let ends = Ends {
        source_mac: MacAddr([2; 6]),
        next_hop: MacAddr([4; 6]),
        source: address(1),
        destination: address(2),
    };
    let vni = vni_of(0xe0_0000, class);
    let port = class.port.number(5211);
    let flow = Flow { source_port: 25_000 + at, port, id: 0, ttl: 64, vni, jumbo_option: true };
    let payload = SESSION.payload(at, 0, class.payload as usize);
    build(class, &ends, &flow, &payload, false).unwrap()
}

fn expected(classes: &[Class]) -> Expected<'_> {
    Expected {
        session: SESSION,
        sources: ["10.0.0.1", "fd00::1"].map(|text| text.parse().ok()),
        classes,
        first: 0,
        source_base: 25_000,
        own_port: 5211,
        vni: 0xe0_0000,
    }
}

fn tally(class: Class, packets: &[Vec<u8>]) -> Tally {
    let classes = [class];
    let mut counting = Counting::new(&classes);
    for packet in packets {
        for piece in expected(&classes).read(&Meta::default(), packet) {
            counting.add(&piece);
        }
    }
    counting.finish().remove(0)
}

#[test]
fn every_class_is_read_as_it_was_built() {
    for class in crate::catalogue::full(1500, 1) {
        // The kernel encapsulates these, and cuts those.
        if class.needs_device() || class.needs_big_tcp() {
            continue;
        }
        let packets = wire(&class, 0);
        let tally = tally(class, &packets);
        let seen = (tally.frames, tally.whole, tally.recut, tally.translated);
        assert_eq!(seen, (packets.len() as u32, 1, 0, 0), "{class}: {tally:?}");
        assert!(tally.faults.is_empty(), "{class}: {tally:?}");
    }
}

#[test]
fn a_packet_of_big_tcp_has_no_length() {
    for (family, length) in [(Family::V4, 16), (Family::V6, 18)] {
        let class = Class {
            family,
            transport: Transport::Tcp,
            segment: 1000,
            checksum: Checksum::Partial,
            payload: crate::class::MOST_BIG_PAYLOAD,
            ..Class::PLAIN
        };
        let mut frame = frames(&class, 0).remove(0);
        assert_eq!(frame.bytes[length..length + 2], [0, 0]);
        let classes = [class];
        let expected = expected(&classes);
        let read = |frame: &Frame| {
            expected.read(&Meta { header: frame.header, verified: false }, &frame.bytes).remove(0)
        };
        let piece = read(&frame);
        assert_eq!((piece.length, piece.segment), (class.payload, 1000));
        assert_eq!((piece.offset, piece.faults), (Some(0), Vec::new()));
        *frame.bytes.last_mut().unwrap() ^= 1;
        assert_eq!(read(&frame).faults, [Fault::Tail]);
        let own = frame.clone();
        match family {
            Family::V4 => frame.bytes[22] ^= 1,
            // The type of the option, and its length.
            Family::V6 => {
                frame.bytes[14 + 40 + 7] ^= 1;
                assert!(read(&frame).faults.contains(&Fault::Length));
                frame.bytes[14 + 40 + 2] ^= 1;
            }
        }
        assert!(read(&frame).faults.contains(&Fault::IpHeader));
        // Linux since 7.0 writes no option.
        if family == Family::V6 {
            let mut bare = own;
            *bare.bytes.last_mut().unwrap() ^= 1;
            bare.bytes[14 + 6] = Protocol::TCP.0;
            bare.bytes.drain(14 + 40..14 + 48);
            let piece = read(&bare);
            assert_eq!((piece.length, piece.faults), (class.payload, Vec::new()));
        }
    }
}

#[test]
fn damage_is_named() {
    let udp = Class { payload: 301, ..Class::PLAIN };
    let gso = Class { segment: 1000, payload: 2500, checksum: Checksum::Partial, ..udp };
    let tcp = Class { transport: Transport::Tcp, ..gso };
    let tunnel = Tunnel {
        kind: crate::class::TunnelKind::Vxlan,
        checksum: true,
        inner: Family::V4,
        nested: false,
    };
    let inside = Class { tunnel: Some(tunnel), ..udp };
    type Damage = fn(&mut Vec<u8>);
    let cases: [(Class, Damage, Fault); 9] = [
        (udp, |p| p[40] ^= 1, Fault::Checksum),
        (udp, |p| p[40..42].fill(0), Fault::ChecksumRemoved),
        (udp, |p| p[22] = 1, Fault::IpHeader),
        (udp, |p| p[39] += 1, Fault::Length),
        (udp, |p| p[150] ^= 1, Fault::Payload),
        (gso, |p| *p.last_mut().unwrap() ^= 1, Fault::Tail),
        (tcp, |p| p[47] ^= 0x80, Fault::Flags),
        (inside, |p| p[40] ^= 1, Fault::OuterChecksum),
        (inside, |p| p[48] ^= 1, Fault::TunnelHeader),
    ];
    for (class, damage, fault) in cases {
        let mut packets = wire(&class, 0);
        damage(packets.last_mut().unwrap());
        let tally = tally(class, &packets);
        assert!(tally.faults.contains_key(&fault), "{class}: {fault:?} not in {tally:?}");
        assert_eq!(tally.whole, 0, "{class}");
    }
    // A wrong checksum that somebody has repaired.
    let wrong = Class { checksum: Checksum::Wrong, ..udp };
    let seen = tally(wrong, &wire(&udp, 0));
    assert_eq!(seen.faults, [(Fault::ChecksumRepaired, 1)].into());
    assert!(tally(wrong, &wire(&wrong, 0)).faults.is_empty());
}

#[test]
fn datagrams_of_a_tunnel_that_a_receiver_merged_are_read_one_by_one() {
    let tunnel = Tunnel {
        kind: crate::class::TunnelKind::Vxlan,
        checksum: true,
        inner: Family::V4,
        nested: false,
    };
    let class = Class { tunnel: Some(tunnel), payload: 600, ..Class::PLAIN };
    let datagram = wire(&class, 0).remove(0);
    // UDP GRO joins the payloads of equal datagrams behind the first header.
    let payload = &datagram[42..];
    let mut merged = [&datagram[..], payload, payload].concat();
    let length = merged.len() - 14;
    merged[16..18].copy_from_slice(&(length as u16).to_be_bytes());
    merged[24..26].fill(0);
    let sum = Sum::of(&merged[14..34]).checksum();
    merged[24..26].copy_from_slice(&sum.to_be_bytes());
    merged[38..40].copy_from_slice(&((length - 20) as u16).to_be_bytes());
    let pseudo = Ipv4::parse(&merged[14..]).unwrap().pseudo_header();
    merged[40..42].copy_from_slice(&(!pseudo.checksum()).to_be_bytes());
    let header = VnetHdr {
        flags: packet::vnet_hdr::flags::NEEDS_CSUM,
        gso_type: gso_type::UDP_L4,
        hdr_len: 42,
        gso_size: payload.len() as u16,
        csum_start: 34,
        csum_offset: 6,
        ..VnetHdr::default()
    };
    let classes = [class];
    let pieces = expected(&classes).read(&Meta { header, verified: false }, &merged);
    assert_eq!(pieces.len(), 3);
    for piece in pieces {
        assert_eq!((piece.length, piece.segment, piece.faults), (600, 0, Vec::new()));
    }
}

#[test]
fn datagrams_of_another_size_are_damage_and_tcp_segments_are_none() {
    for (transport, faults, recut) in [(Transport::Udp, 3, 0), (Transport::Tcp, 0, 3)] {
        let class = Class { transport, segment: 1000, payload: 2400, ..Class::PLAIN };
        let class = Class { checksum: Checksum::Partial, ..class };
        // The device cut at 900 bytes.
        let other = Class { segment: 900, ..class };
        let tally = tally(class, &wire(&other, 0));
        let found = tally.faults.get(&Fault::Segmentation).copied().unwrap_or(0);
        assert_eq!((found, tally.recut, tally.whole), (faults, recut, 1), "{tally:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_not(bytes: Vec<u8>, header: [u8; 10]) {
        let header = VnetHdr::parse(&header, packet::vnet_hdr::Layout::Basic).unwrap();
        let classes = [Class::PLAIN];
        let _ = expected(&classes).read(&Meta { header, verified: false }, &bytes);
    }

    #[test]
    fn any_changed_byte_is_read_without_panic(
        at: prop::sample::Index, value: u8, which: prop::sample::Index,
    ) {
        let classes = crate::catalogue::quick(1500);
        let index = which.index(classes.len());
        let class = classes[index];
        if !class.needs_device() && !class.needs_big_tcp() {
            for mut packet in wire(&class, index as u16) {
                let at = at.index(packet.len());
                packet[at] = value;
                let _ = expected(&classes).read(&Meta::default(), &packet);
                packet.truncate(at);
                let _ = expected(&classes).read(&Meta::default(), &packet);
            }
        }
    }
}
