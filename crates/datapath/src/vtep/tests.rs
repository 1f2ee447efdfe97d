//! Tests the receiving side with forged and malformed packets, without a kernel.

use std::net::IpAddr;

use packet::ecn::Ingress;
use packet::encap::{Addresses, Dscp, Encap, OuterChecksum, SOURCE_PORTS, Tunnel};
use packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use packet::ipv4::{Ipv4Header, Protocol};
use packet::udp::UdpHeader;
use packet::vnet_hdr::{VnetHdr, flags, gso_type};
use packet::vxlan::{self, Vni};
use proptest::prelude::*;

use super::fuzz::{Bench, ELSEWHERE, OTHER, OWN, REMOTE, STRANGER};
use super::place::Place;
use crate::counters::{Counters, DropReason, Learning};

fn packet(vni: u32, source: MacAddr, tos: u8, payload: &[u8]) -> Vec<u8> {
    let link = EthernetHeader { destination: OWN, source, ether_type: EtherType::IPV4 };
    let ip = Ipv4Header {
        tos,
        id: 1,
        dont_fragment: true,
        ttl: 64,
        protocol: Protocol::UDP,
        source: [10, 1, 0, 2].into(),
        destination: [10, 1, 0, 1].into(),
    };
    let udp = UdpHeader { source_port: 1, destination_port: 2 };
    [
        &vxlan::header(Vni::new(vni).unwrap())[..],
        &link.to_bytes(),
        &ip.to_bytes(8 + payload.len()).unwrap(),
        &udp.to_bytes(payload.len(), 0).unwrap(),
        payload,
    ]
    .concat()
}

/// Returns a frame of network 10 with its outer headers, and the vnet header for both.
fn encapsulated(
    vni: u32,
    checksum: OuterChecksum,
    frame: &[u8],
    vnet: &VnetHdr,
) -> (VnetHdr, Vec<u8>) {
    let encap = Encap::new(&Tunnel {
        link: (OWN, OWN),
        addresses: Addresses::V4 {
            source: [127, 0, 0, 2].into(),
            destination: [127, 0, 0, 1].into(),
        },
        vni: Vni::new(vni).unwrap(),
        port: vxlan::PORT,
        source_ports: SOURCE_PORTS,
        ttl: 64,
        dscp: Dscp::Fixed(0),
        ecn: Ingress::Normal,
        dont_fragment: true,
        flow_label: 0,
        checksum,
    });
    let outer = encap.headers(frame, vnet, 1, 1).unwrap();
    (outer.vnet, [outer.bytes(), frame].concat())
}

/// Name, sender, outer TOS octet, bytes, expected drop reason.
type Case = (&'static str, IpAddr, u8, Vec<u8>, Option<DropReason>);

#[test]
fn each_lie_is_dropped_for_its_reason() {
    let good = packet(10, MacAddr([2, 0, 0, 0, 0, 7]), 0, &[5; 100]);
    let cases: [Case; 11] = [
        ("good", REMOTE, 0, good.clone(), None),
        ("stranger", STRANGER, 0, good.clone(), Some(DropReason::UnknownRemote)),
        ("empty", REMOTE, 0, vec![], Some(DropReason::Malformed)),
        ("cut off", REMOTE, 0, good[..7].to_vec(), Some(DropReason::Malformed)),
        ("no frame", REMOTE, 0, good[..15].to_vec(), Some(DropReason::Malformed)),
        ("other VNI", REMOTE, 0, packet(12, ELSEWHERE, 0, &[]), Some(DropReason::UnknownVni)),
        ("reserved", REMOTE, 0, [&[0x0c], &good[1..]].concat(), Some(DropReason::Reserved)),
        ("group", REMOTE, 0, packet(10, MacAddr::BROADCAST, 0, &[]), Some(DropReason::Source)),
        ("loop", REMOTE, 0, packet(11, OWN, 0, &[]), Some(DropReason::Looped)),
        ("spoofed", REMOTE, 0, packet(11, ELSEWHERE, 0, &[]), Some(DropReason::Spoofed)),
        ("congestion", REMOTE, 3, good.clone(), Some(DropReason::Congestion)),
    ];
    for (name, from, tos, bytes, wanted) in cases {
        let mut bench = Bench::new();
        bench.take(from, tos, None, &bytes);
        assert_eq!(bench.check(), Vec::from_iter(wanted), "{name}");
    }
}

/// Another accepted remote endpoint claims a tenant's address again and again.
#[test]
fn packets_of_another_remote_end_take_no_address_from_its_owner() {
    let mut bench = Bench::new();
    let mac = MacAddr([2, 0, 0, 0, 0, 7]);
    for _ in 0..3 {
        bench.take(REMOTE, 0, None, &packet(10, mac, 0, &[1]));
        bench.take(OTHER, 0, None, &packet(10, mac, 0, &[2]));
    }
    bench.take(REMOTE, 0, None, &packet(10, mac, 0, &[1]));
    assert_eq!(bench.check(), [], "the tenant's frames are dropped");
    let (network, policy) = (&bench.thread_networks[0].network, &bench.thread_networks[0].policy);
    assert_eq!(network.find(policy, mac, 1), Some(Place::Remote(REMOTE)));
}

#[test]
fn an_address_of_a_tenant_here_is_not_believed_of_the_wire() {
    let mut bench = Bench::new();
    let mac = MacAddr([2, 0, 0, 0, 0, 7]);
    let (network, policy) =
        (bench.thread_networks[0].network.clone(), bench.thread_networks[0].policy.clone());
    network.learn(&policy, mac, Place::Local, 1);
    bench.take(REMOTE, 0, None, &packet(10, mac, 0, &[1]));
    assert_eq!(bench.check(), [DropReason::InUse]);
    assert_eq!(bench.written(0).len(), 0, "the bridge behind the TAP has learned it");
    assert_eq!(network.find(&policy, mac, 1), Some(Place::Local));
}

#[test]
fn claims_are_counted_by_what_became_of_them() {
    let mut bench = Bench::new();
    let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
    for (from, last) in
        [(REMOTE, 7), (OTHER, 7), (REMOTE, 7), (OTHER, 7), (OTHER, 10), (OTHER, 11), (OTHER, 12)]
    {
        bench.take(from, 0, None, &packet(10, mac(last), 0, &[1]));
    }
    for from in [REMOTE, OTHER] {
        bench.take(from, 0, None, &packet(10, mac(13), 0, &[1]));
    }
    assert_eq!(bench.check(), []);
    let back = Counters::sum([&*bench.thread_networks[0].back].into_iter());
    assert_eq!(back.learnings, [1, 1, 1, 1, 1], "{:?}", Learning::ALL);
    let largest = bench.thread_networks[0].network.fdb.largest();
    assert_eq!(largest, Some((OTHER, 3)));
}

#[test]
fn no_frame_from_zero_or_a_group_is_taken() {
    for source in [MacAddr::ZERO, MacAddr([1, 0, 0x5e, 0, 0, 1]), MacAddr::BROADCAST] {
        let mut bench = Bench::new();
        bench.take(REMOTE, 0, None, &packet(10, source, 0, &[1]));
        assert_eq!(bench.check(), [DropReason::Source], "{source}");
        assert_eq!(bench.thread_networks[0].network.fdb.count().1, 0);
    }
}

#[test]
fn congestion_is_marked_for_senders_that_support_it() {
    let mut bench = Bench::new();
    bench.take(REMOTE, 3, None, &packet(10, MacAddr([2, 0, 0, 0, 0, 7]), 2, &[1; 20]));
    assert_eq!(bench.check(), []);
    let (_, frame) = &bench.written(0)[0];
    assert_eq!(frame[15] & 3, 3);
    assert!(packet::ipv4::Ipv4::parse(&frame[14..]).unwrap().checksum_is_valid());
}

#[test]
fn merged_datagrams_come_apart_and_a_udp_gso_packet_does_not() {
    let mac = MacAddr([2, 0, 0, 0, 0, 7]);
    let one = packet(10, mac, 0, &[1; 100]);
    let mut bench = Bench::new();
    let merged = [&one[..], &one, &one[..one.len()]].concat();
    bench.take(REMOTE, 0, Some(one.len() as u16), &merged);
    assert_eq!(Counters::sum([&*bench.thread_networks[0].back].into_iter()).forwarded, 3);

    // As a kernel sends it: unsegmented, with an unfinished checksum.
    let mut bench = Bench::new();
    let mut whole = packet(10, mac, 0, &[1; 4000]);
    let frame = &mut whole[8..];
    let headers = packet::frame::Headers::parse(frame).unwrap();
    let length = (headers.end - headers.transport_offset) as u32;
    let pseudo =
        packet::checksum::pseudo_header_v4([10, 1, 0, 2].into(), [10, 1, 0, 1].into(), 17, length);
    let at = headers.checksum_at();
    frame[at..at + 2].copy_from_slice(&pseudo.value().to_be_bytes());
    bench.take(REMOTE, 0, Some(1000), &whole);
    assert_eq!(bench.check(), []);
    let (vnet, frame) = &bench.written(0)[0];
    assert_eq!((vnet.gso_type, vnet.gso_size, vnet.needs_csum()), (5, 1000, true));
    assert_eq!(frame.len(), whole.len() - 8);
}

#[test]
fn packets_from_the_second_tap_have_exact_lengths() {
    let mac = MacAddr([2, 0, 0, 0, 0, 7]);
    let frame = &packet(10, mac, 0, &[1; 4000])[8..];
    // A GSO packet whose segments are smaller than the MTU allows.
    let vnet = VnetHdr {
        flags: flags::NEEDS_CSUM,
        gso_type: gso_type::UDP_L4,
        gso_size: 500,
        csum_start: 34,
        csum_offset: 6,
        hdr_len: 42,
        ..VnetHdr::default()
    };
    let mut bench = Bench::new();
    let (outer, whole) = encapsulated(10, OuterChecksum::Partial, frame, &vnet);
    bench.take_encapsulated(&outer, &whole);
    assert_eq!(bench.check(), []);
    assert_eq!(bench.written(0), [(vnet, frame.to_vec())]);

    // Merged as outer UDP datagrams, without knowledge of VXLAN.
    let (_, one) = encapsulated(11, OuterChecksum::Zero, frame, &VnetHdr::default());
    let payload = &one[42..];
    let mut merged = [&one[..42], payload, payload, &payload[..payload.len() - 1]].concat();
    let total = (merged.len() - 14) as u16;
    merged[16..18].copy_from_slice(&total.to_be_bytes());
    merged[24..26].copy_from_slice(&[0; 2]);
    let sum = packet::checksum::Sum::of(&merged[14..34]).checksum();
    merged[24..26].copy_from_slice(&sum.to_be_bytes());
    merged[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    let vnet = VnetHdr {
        gso_type: gso_type::UDP_L4,
        gso_size: payload.len() as u16,
        ..VnetHdr::default()
    };
    let mut bench = Bench::new();
    bench.take_encapsulated(&vnet, &merged);
    // The last one is truncated. That is left to the tenant to detect.
    assert_eq!(Counters::sum([&*bench.thread_networks[1].back].into_iter()).forwarded, 3);
}

#[test]
fn packets_from_the_second_tap_are_checked() {
    let frame = &packet(10, MacAddr([2, 0, 0, 0, 0, 7]), 0, &[5; 100])[8..];
    let none = VnetHdr::default();
    let (_, good) = encapsulated(10, OuterChecksum::Full, frame, &none);
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let tunnel = VnetHdr { gso_type: 0x21, gso_size: 100, flags: 1, ..none };
    let cases = [
        ("good", none, good.clone(), None),
        ("cut off", none, good[..40].to_vec(), Some(DropReason::Malformed)),
        ("IP header", none, changed(22), Some(DropReason::Checksum)),
        ("payload", none, changed(good.len() - 1), Some(DropReason::Checksum)),
        ("port", none, changed(36), Some(DropReason::Malformed)),
        ("checksum outside", tunnel, good.clone(), Some(DropReason::Malformed)),
    ];
    for (name, vnet, bytes, wanted) in cases {
        let mut bench = Bench::new();
        bench.take_encapsulated(&vnet, &bytes);
        assert_eq!(bench.check(), Vec::from_iter(wanted), "{name}");
    }
    let mut bench = Bench::new();
    bench.intake.encapsulated(
        &bench.thread_networks,
        &bench.unassigned,
        &mut [0; 23],
        vxlan::PORT,
        1,
    );
    assert_eq!(bench.check(), [DropReason::Malformed]);
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/");
    let entries = std::fs::read_dir(format!("{directory}{target}")).unwrap();
    entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
}

/// Inputs of the corpus with some bytes changed, doubled or missing.
fn damaged(target: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..4);
    let changes = proptest::collection::vec(change, 0..6);
    (proptest::sample::select(corpus(target)), changes).prop_map(|(mut data, changes)| {
        for (at, value, kind) in changes {
            let at = at.index(data.len().max(1));
            match kind {
                0 if at < data.len() => data[at] = value,
                1 => data.insert(at.min(data.len()), value),
                2 if at < data.len() => drop(data.remove(at)),
                _ => data.truncate(at),
            }
        }
        data
    })
}

#[test]
fn crashes_found_by_fuzzing_are_fixed() {
    corpus("vtep_receive").iter().for_each(|data| super::fuzz::receive(data));
    corpus("vtep_config").iter().for_each(|data| super::fuzz::config(data));
    corpus("vtep_neighbours").iter().for_each(|data| super::fuzz::neighbours(data));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Runs the fuzz targets (`fuzz/`) for a limited number of cases.
    #[test]
    fn damaged_datagrams(data in damaged("vtep_receive")) {
        super::fuzz::receive(&data);
    }

    #[test]
    fn damaged_questions(data in damaged("vtep_neighbours")) {
        super::fuzz::neighbours(&data);
    }

    #[test]
    fn damaged_configurations(data in damaged("vtep_config")) {
        super::fuzz::config(&data);
    }
}

proptest! {
    /// The same for frames from the second TAP.
    #[test]
    fn nothing_that_the_second_tap_delivers_harms(
        packets in proptest::collection::vec(
            (
                proptest::option::of(9u32..13),
                proptest::collection::vec(any::<u8>(), 0..300),
                (any::<u8>(), 0usize..8, 0u16..200, 0u16..200),
                proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            ),
            1..30,
        ),
    ) {
        let mut bench = Bench::new();
        for (vni, payload, (flags, kind, size, place), changes) in packets {
            let gso_type = [0, 0, 1, 3, 5, 0x21, 0x25, 0x81][kind];
            let mut vnet =
                VnetHdr { flags, gso_type, gso_size: size, csum_start: place, ..VnetHdr::default() };
            let mut bytes = payload.clone();
            if let Some(vni) = vni {
                let frame = packet(10, MacAddr([2, 0, 0, 0, 0, 7]), 0, &payload);
                let none = VnetHdr::default();
                let (outer, whole) = encapsulated(vni, OuterChecksum::Full, &frame[8..], &none);
                bytes = whole;
                vnet = if flags == 0 { outer } else { vnet };
            }
            for (at, value) in changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                }
            }
            bench.take_encapsulated(&vnet, &bytes);
            bench.check();
        }
    }

    /// For any input: no panic, every packet has one outcome, nothing is sent back.
    #[test]
    fn nothing_that_arrives_harms(
        messages in proptest::collection::vec(
            (
                any::<bool>(),
                any::<u8>(),
                proptest::option::of(any::<u16>()),
                proptest::option::of((9u32..13, any::<u8>())),
                proptest::collection::vec(any::<u8>(), 0..300),
                proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            ),
            1..30,
        ),
    ) {
        let mut bench = Bench::new();
        for (known, tos, segment, form, payload, changes) in messages {
            // Random bytes, or a packet with some bytes changed.
            let mut bytes = match form {
                Some((vni, last)) => packet(vni, MacAddr([2, 0, 0, 0, 0, last]), tos, &payload),
                None => payload,
            };
            for (at, value) in changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                }
            }
            let from = if known { REMOTE } else { STRANGER };
            bench.take(from, tos, segment, &bytes);
            bench.check();
        }
    }
}
