//! The receiving half against packets that nobody would send, without a kernel.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

use packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use packet::ipv4::{Ipv4Header, Protocol};
use packet::udp::UdpHeader;
use packet::vxlan::{self, Vni};
use proptest::prelude::*;

use super::config::NetworkConfig;
use super::lane::{Lane, Writer};
use super::network::{Network, Policy};
use super::receive::{Intake, Message};
use crate::counters::{Counters, DropReason, Tally};

const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));
const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 3));
const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const ELSEWHERE: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const MTU: u32 = 1450;

/// Networks 10 and 11 behind writers that keep what is written.
fn lanes() -> Vec<Lane> {
    [10, 11]
        .into_iter()
        .map(|vni| {
            let config = NetworkConfig {
                remotes: vec![REMOTE],
                max_learned: 4,
                max_moves: 1,
                ..NetworkConfig::new(Vni::new(vni).unwrap(), format!("tap{vni}"))
            };
            let policy = Policy::without_paths(&config);
            let entries = [(ELSEWHERE, STRANGER)];
            let network = Arc::new(Network::new(&config, &entries, policy, MTU));
            Lane {
                policy: network.policy(),
                generation: 0,
                network,
                tap: Writer::Nowhere(RefCell::default()),
                own: OWN,
                out: Arc::default(),
                back: Arc::default(),
            }
        })
        .collect()
}

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

struct Bench {
    lanes: Vec<Lane>,
    strangers: Tally,
    intake: Intake,
}

impl Bench {
    fn new() -> Bench {
        Bench { lanes: lanes(), strangers: Tally::default(), intake: Intake::new(true, true) }
    }

    fn take(&mut self, from: IpAddr, tos: u8, segment: Option<u16>, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let message = Message { from, tos, segment, truncated: false, bytes: &mut bytes };
        self.intake.message(&self.lanes, &self.strangers, message, 1);
        self.intake.flush(&self.lanes);
    }

    /// Why the last packet was dropped, if one was; and that counters add up.
    fn check(&self) -> Vec<DropReason> {
        let mut reasons = Vec::new();
        for tally in self.lanes.iter().map(|lane| &*lane.back).chain([&self.strangers]) {
            let c = Counters::sum([tally].into_iter());
            assert_eq!(c.received, c.forwarded + c.answered + c.dropped(), "{c:?}");
            reasons.extend(DropReason::ALL.into_iter().filter(|r| c.dropped_by(*r) > 0));
        }
        for lane in &self.lanes {
            let out = Counters::sum([&*lane.out].into_iter());
            assert_eq!(out, Counters::default(), "nothing may go to the wire");
            assert!(lane.network.fdb.count().1 <= 4);
        }
        reasons
    }
}

/// What it is, sender, outer TOS octet, bytes, why it is dropped.
type Case = (&'static str, IpAddr, u8, Vec<u8>, Option<DropReason>);

#[test]
fn each_lie_is_dropped_for_its_reason() {
    let good = packet(10, MacAddr([2, 0, 0, 0, 0, 7]), 0, &[5; 100]);
    let cases: [Case; 11] = [
        ("good", REMOTE, 0, good.clone(), None),
        ("stranger", STRANGER, 0, good.clone(), Some(DropReason::Stranger)),
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

#[test]
fn an_address_that_two_ends_claim_is_not_moved_forever() {
    let mut bench = Bench::new();
    let mac = MacAddr([2, 0, 0, 0, 0, 7]);
    let (network, policy) = (bench.lanes[0].network.clone(), bench.lanes[0].policy.clone());
    for _ in 0..5 {
        bench.take(REMOTE, 0, None, &packet(10, mac, 0, &[1]));
        network.learn(&policy, mac, super::fdb::Place::Local, 1);
    }
    assert_eq!(bench.check(), [DropReason::Moving]);
}

#[test]
fn congestion_is_told_to_who_understands() {
    let mut bench = Bench::new();
    bench.take(REMOTE, 3, None, &packet(10, MacAddr([2, 0, 0, 0, 0, 7]), 2, &[1; 20]));
    assert_eq!(bench.check(), []);
    let Writer::Nowhere(written) = &bench.lanes[0].tap else { unreachable!() };
    let (_, frame) = &written.borrow()[0];
    assert_eq!(frame[15] & 3, 3);
    assert!(packet::ipv4::Ipv4::parse(&frame[14..]).unwrap().checksum_is_valid());
}

#[test]
fn merged_datagrams_come_apart_and_a_udp_super_packet_does_not() {
    let mac = MacAddr([2, 0, 0, 0, 0, 7]);
    let one = packet(10, mac, 0, &[1; 100]);
    let mut bench = Bench::new();
    let merged = [&one[..], &one, &one[..one.len()]].concat();
    bench.take(REMOTE, 0, Some(one.len() as u16), &merged);
    assert_eq!(Counters::sum([&*bench.lanes[0].back].into_iter()).forwarded, 3);

    // As a kernel sender hands it over: uncut, its checksum unfinished.
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
    let Writer::Nowhere(written) = &bench.lanes[0].tap else { unreachable!() };
    let (header, frame) = &written.borrow()[0];
    let vnet = packet::vnet_hdr::VnetHdr::parse(header, packet::vnet_hdr::Layout::Tunnel).unwrap();
    assert_eq!((vnet.gso_type, vnet.gso_size, vnet.needs_csum()), (5, 1000, true));
    assert_eq!(frame.len(), whole.len() - 8);
}

proptest! {
    /// Whatever comes: no panic, every packet has one fate, nothing goes back.
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
            // Random bytes, or a packet some of whose bytes were changed.
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
