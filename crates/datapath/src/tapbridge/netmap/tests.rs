use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use packet::checksum::{Sum, pseudo_header_v4};
use packet::vnet_hdr::flags;
use proptest::prelude::*;

use super::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const PLAIN: VnetHdr = VnetHdr {
    flags: 0,
    gso_type: 0,
    hdr_len: 0,
    gso_size: 0,
    csum_start: 0,
    csum_offset: 0,
    num_buffers: 0,
    hash_value: 0,
    hash_report: 0,
    outer_th_offset: 0,
    inner_nh_offset: 0,
};

fn netmap() -> Netmap {
    let address = |ip: [u8; 4]| Address { ip: ip.into(), prefix: 24 };
    Netmap::new(address([192, 168, 64, 64]), address([192, 168, 32, 32])).unwrap()
}

/// Returns a frame with correct checksums, made by etherparse.
fn frame(source: [u8; 4], destination: [u8; 4], kind: u8, payload: &[u8]) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]).ipv4(
        source,
        destination,
        64,
    );
    let mut frame = Vec::new();
    match kind {
        0 => ip.tcp(1000, 2000, 77, 500).write(&mut frame, payload),
        1 => ip.udp(1000, 2000).write(&mut frame, payload),
        _ => ip.icmpv4_echo_request(1, 2).write(&mut frame, payload),
    }
    .unwrap();
    frame
}

/// Verifies every checksum with etherparse's own arithmetic.
fn verify(frame: &[u8]) -> ([u8; 4], [u8; 4]) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(etherparse::NetSlice::Ipv4(ip)) = sliced.net else { panic!("no IPv4") };
    let header = ip.header().to_header();
    assert_eq!(header.calc_header_checksum(), header.header_checksum, "IPv4");
    match sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let wanted = tcp.to_header().calc_checksum_ipv4(&header, tcp.payload()).unwrap();
            assert_eq!(tcp.checksum(), wanted, "TCP");
        }
        Some(TransportSlice::Udp(udp)) => {
            let wanted = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap();
            // etherparse sends 0 as computed; RFC 768 requires 0xffff.
            let wanted = if wanted == 0 { 0xffff } else { wanted };
            assert_eq!(udp.checksum(), wanted, "UDP");
        }
        Some(TransportSlice::Icmpv4(icmp)) => {
            assert!(Sum::of(icmp.slice()).is_valid(), "ICMP");
        }
        other => panic!("{other:?}"),
    }
    (header.source, header.destination)
}

#[test]
fn the_addresses_of_2009() {
    let mut frame = frame([192, 168, 64, 64], [192, 168, 64, 32], 0, b"GET /");
    assert_eq!(netmap().translate(Side::Left, &PLAIN, &mut frame), Ok(NetmapOutcome::Translated));
    assert_eq!(verify(&frame), ([192, 168, 32, 64], [192, 168, 32, 32]));
}

#[test]
fn networks_that_cannot_be_exchanged() {
    let address = |ip: [u8; 4], prefix| Address { ip: ip.into(), prefix };
    let new = |a, b| Netmap::new(a, b).map(|_| ());
    let (left, right) = (address([10, 0, 0, 1], 24), address([10, 0, 0, 2], 24));
    assert_eq!(new(left, right), Err(NetmapError::SameNetwork { left, right }));
    let right = address([10, 1, 0, 2], 16);
    assert_eq!(new(left, right), Err(NetmapError::Lengths { left, right }));
    let left = address([10, 0, 0, 1], 31);
    assert_eq!(new(left, address([10, 1, 0, 1], 31)), Err(NetmapError::Prefix(left)));
}

#[test]
fn a_partial_checksum_stays_partial_and_right() {
    let mut frame = frame([192, 168, 64, 64], [192, 168, 64, 32], 0, &[5; 100]);
    let length = frame.len() as u32 - 34;
    let field = |frame: &[u8]| u16::from_be_bytes([frame[50], frame[51]]);
    let pseudo = |a: [u8; 4], b: [u8; 4]| pseudo_header_v4(a.into(), b.into(), 6, length).value();
    let partial = pseudo([192, 168, 64, 64], [192, 168, 64, 32]);
    frame[50..52].copy_from_slice(&partial.to_be_bytes());
    let header = VnetHdr { flags: flags::NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..PLAIN };
    netmap().translate(Side::Left, &header, &mut frame).unwrap();
    assert_eq!(field(&frame), pseudo([192, 168, 32, 64], [192, 168, 32, 32]));
    packet::checksum::complete_partial(&mut frame, 34, 16).unwrap();
    verify(&frame);
}

#[test]
fn udp_without_checksum_keeps_none() {
    let mut frame = frame([192, 168, 64, 64], [192, 168, 64, 32], 1, b"x");
    frame[40..42].fill(0);
    netmap().translate(Side::Left, &PLAIN, &mut frame).unwrap();
    assert_eq!(frame[40..42], [0, 0]);
    assert_eq!(frame[30..34], [192, 168, 32, 32]);
}

#[test]
fn a_udp_checksum_never_becomes_none() {
    // Exactly one value of a word gives a sum whose checksum is 0.
    let mut at_limit = 0;
    for word in 0..=u16::MAX {
        let payload = word.to_be_bytes();
        let mut frame = frame([192, 168, 64, 64], [192, 168, 64, 32], 1, &payload);
        netmap().translate(Side::Left, &PLAIN, &mut frame).unwrap();
        assert_ne!(frame[40..42], [0, 0], "payload {word:#06x}");
        at_limit += u32::from(frame[40..42] == [0xff, 0xff]);
    }
    assert_eq!(at_limit, 1);
}

#[test]
fn later_fragments_have_no_transport_checksum() {
    let mut frame = frame([192, 168, 64, 64], [192, 168, 64, 32], 1, &[7; 64]);
    frame[20..22].copy_from_slice(&[0x20, 0x05]);
    let payload = frame[34..].to_vec();
    netmap().translate(Side::Left, &PLAIN, &mut frame).unwrap();
    assert_eq!(frame[34..], payload);
}

/// Returns an ICMP error from the right about a packet from the left, as seen on the right.
fn icmp_error(kind: u8, quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 3, 0, 0, 192, 168, 32, 7];
    message.extend_from_slice(quoted);
    let checksum = Sum::of(&message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
        .ipv4([192, 168, 32, 32], [192, 168, 32, 64], 64)
        .write(&mut frame, etherparse::IpNumber::ICMP, &message)
        .unwrap();
    frame
}

#[test]
fn an_icmp_error_quotes_what_its_receiver_has_sent() {
    let sent = frame([192, 168, 64, 64], [192, 168, 64, 32], 1, b"datagram");
    let mut seen = sent.clone();
    netmap().translate(Side::Left, &PLAIN, &mut seen).unwrap();
    // Quoted completely, without the transport checksum, and without a complete header.
    for quoted in [seen.len() - 14, 26, 20, 19, 3, 0] {
        let mut error = icmp_error(3, &seen[14..14 + quoted]);
        netmap().translate(Side::Right, &PLAIN, &mut error).unwrap();
        assert_eq!(verify(&error), ([192, 168, 64, 32], [192, 168, 64, 64]));
        if quoted >= 20 {
            assert_eq!(error[42..], sent[14..14 + quoted], "{quoted}");
        }
    }
    let mut redirect = icmp_error(5, &seen[14..]);
    netmap().translate(Side::Right, &PLAIN, &mut redirect).unwrap();
    assert_eq!(redirect[38..42], [192, 168, 64, 7], "the router");
    verify(&redirect);
}

fn arp(operation: Operation, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let packet = ArpPacket {
        operation,
        sender_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        sender_ip: sender.into(),
        target_mac: MacAddr::ZERO,
        target_ip: target.into(),
    };
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 8, 6]);
    frame.extend(packet.to_bytes());
    frame
}

#[test]
fn arp_requests_are_answered_except_for_the_sender_s_own_address() {
    let own = [192, 168, 64, 64];
    let mut request = arp(Operation::REQUEST, own, [192, 168, 64, 32]);
    let outcome = netmap().translate(Side::Left, &PLAIN, &mut request);
    assert_eq!(outcome, Ok(NetmapOutcome::ArpRequest));
    assert_eq!(Netmap::answer(&mut request, MAC), Some(42));
    assert_eq!(request[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9]);
    let answer = Arp::parse(&request[14..]).unwrap().fields();
    assert_eq!((answer.operation, answer.sender_mac), (Operation::REPLY, MAC));
    assert_eq!(answer.sender_ip, Ipv4Addr::new(192, 168, 64, 32));

    for (sender, target) in [
        ([0, 0, 0, 0], own),
        (own, own),
        (own, [192, 168, 64, 0]),
        (own, [192, 168, 64, 255]),
        (own, [10, 0, 0, 1]),
    ] {
        let mut request = arp(Operation::REQUEST, sender, target);
        let outcome = netmap().translate(Side::Left, &PLAIN, &mut request);
        assert_eq!(outcome, Ok(NetmapOutcome::Translated), "{target:?}");
    }
    let mut reply = arp(Operation::REPLY, own, [192, 168, 64, 1]);
    netmap().translate(Side::Left, &PLAIN, &mut reply).unwrap();
    let reply = Arp::parse(&reply[14..]).unwrap().fields();
    assert_eq!(reply.sender_ip, Ipv4Addr::new(192, 168, 32, 64));
    assert_eq!(reply.target_ip, Ipv4Addr::new(192, 168, 32, 1));
}

fn address() -> impl Strategy<Value = [u8; 4]> {
    prop_oneof![
        any::<u8>().prop_map(|host| [192, 168, 64, host]),
        any::<u8>().prop_map(|host| [192, 168, 32, host]),
        any::<[u8; 4]>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn translated_twice_is_the_same_and_always_right(
        source in address(),
        destination in address(),
        kind in 0u8..3,
        payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let sent = frame(source, destination, kind, &payload);
        let mut frame = sent.clone();
        netmap().translate(Side::Left, &PLAIN, &mut frame).unwrap();
        let (source_there, destination_there) = verify(&frame);
        prop_assert_eq!(source_there, netmap().address(source.into()).octets());
        prop_assert_eq!(destination_there, netmap().address(destination.into()).octets());
        netmap().translate(Side::Right, &PLAIN, &mut frame).unwrap();
        // etherparse writes 0 for UDP where 0xffff is required; everything else must be unchanged.
        if !(kind == 1 && sent[40..42] == [0, 0]) {
            prop_assert_eq!(frame, sent);
        }
    }

    #[test]
    fn no_frame_is_too_strange(
        mut frame in proptest::collection::vec(any::<u8>(), 0..200),
        ether_type in prop_oneof![Just([8u8, 0]), Just([8, 6]), Just([0x81, 0]), any::<[u8; 2]>()],
        version in any::<bool>(),
        header in any::<[u8; 24]>(),
        protocol in prop_oneof![Just(1u8), Just(6), Just(17), any::<u8>()],
        left in any::<bool>(),
    ) {
        if let Some(field) = frame.get_mut(12..14) {
            field.copy_from_slice(&ether_type);
        }
        if version && frame.len() > 34 {
            let length = (frame.len() - 14) as u16;
            frame[14] = 0x45;
            frame[16..18].copy_from_slice(&length.to_be_bytes());
            frame[23] = protocol;
        }
        let header = VnetHdr::parse(&header, packet::vnet_hdr::Layout::Tunnel).unwrap();
        let side = if left { Side::Left } else { Side::Right };
        let _ = netmap().translate(side, &header, &mut frame);
        let _ = Netmap::answer(&mut frame, MAC);
    }
}
