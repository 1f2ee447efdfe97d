//! Properties of segmentation, coalescing and tunnels over random packets.

use crate::build;
use crate::sample;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use build::{Random, Spec, TunnelSpec};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use packet::coalesce::{Coalescer, Delivery, Options, Outcome};
use packet::decap;
use packet::encap::{Addresses, Encap, OuterChecksum, SOURCE_PORTS, Tunnel};
use packet::frame::{Headers, Network, Packet, Transport};
use packet::ipv4::{Ipv4, Protocol};
use packet::ipv6::Ipv6;
use packet::segment::{Ids, Policy, SegmentError, Segmenter, TransportChecksum};
use packet::vnet_hdr::{VnetHdr, flags};
use packet::vxlan::{self, Vni};
use proptest::prelude::*;

fn spec(tunnels: bool) -> impl Strategy<Value = Spec> {
    any::<u64>().prop_map(move |seed| Spec::random(&mut Random(seed), tunnels))
}

fn segments(vnet: &VnetHdr, frame: &[u8], policy: Policy) -> Vec<Vec<u8>> {
    let segmenter = Segmenter::with_policy(frame, vnet, policy).unwrap();
    let mut buffer = vec![0xaa; segmenter.total_len(0)];
    let written = segmenter.write_all(&[], &mut buffer).unwrap();
    let all: Vec<Vec<u8>> = written.segments(&buffer).map(<[u8]>::to_vec).collect();
    assert_eq!(all.len(), segmenter.count());
    // Single segments give the same bytes.
    for (index, segment) in all.iter().enumerate() {
        let mut buffer = vec![0x55; 70_000];
        let len = segmenter.write(index, &mut buffer).unwrap();
        assert_eq!(&buffer[..len], segment);
    }
    all
}

/// Parses a frame with etherparse, checks all its checksums, and returns the inner frame of VXLAN.
fn check_with_etherparse(frame: &[u8]) -> Option<Vec<u8>> {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let transport = sliced.transport.as_ref().unwrap();
    let net = sliced.net.as_ref().unwrap();
    // In TCP, 0 and 0xffff are equivalent; the kernel sends both.
    let same = |a: u16, b: u16| a == b || (a == 0 && b == 0xffff);
    match net {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum, "IPv4 header");
            let (source, destination) = (header.source, header.destination);
            match transport {
                TransportSlice::Tcp(tcp) => {
                    let wanted = tcp.calc_checksum_ipv4(source, destination).unwrap();
                    assert!(same(wanted, tcp.checksum()), "TCP over IPv4");
                }
                TransportSlice::Udp(udp) if udp.checksum() != 0 => {
                    let header = udp.to_header();
                    let wanted =
                        header.calc_checksum_ipv4_raw(source, destination, udp.payload()).unwrap();
                    assert_eq!(wanted, udp.checksum(), "UDP over IPv4");
                }
                _ => (),
            }
        }
        NetSlice::Ipv6(ip) => {
            let (source, destination) = (ip.header().source(), ip.header().destination());
            match transport {
                TransportSlice::Tcp(tcp) => {
                    let wanted = tcp.calc_checksum_ipv6(source, destination).unwrap();
                    assert!(same(wanted, tcp.checksum()), "TCP over IPv6");
                }
                TransportSlice::Udp(udp) if udp.checksum() != 0 => {
                    let header = udp.to_header();
                    let wanted =
                        header.calc_checksum_ipv6_raw(source, destination, udp.payload()).unwrap();
                    assert_eq!(wanted, udp.checksum(), "UDP over IPv6");
                }
                _ => (),
            }
        }
        other => panic!("neither IPv4 nor IPv6: {other:?}"),
    }
    match transport {
        TransportSlice::Udp(udp) if udp.destination_port() == vxlan::PORT => {
            Some(udp.payload()[vxlan::HEADER_LEN..].to_vec())
        }
        _ => None,
    }
}

/// Everything a coalescer delivers, copied.
#[derive(Default)]
struct Delivered(Vec<(VnetHdr, Vec<u8>, usize, Policy)>);

impl Delivered {
    fn take(&mut self) -> impl FnMut(Delivery<'_>) {
        |d| {
            let ids = |fixed| if fixed { Ids::Fixed } else { Ids::Incrementing };
            let (ids, outer_ids) = (ids(d.fixed_ids), ids(d.fixed_outer_ids));
            let policy = Policy { ids, outer_ids, ..Policy::default() };
            self.0.push((d.vnet, d.frame.to_vec(), d.segments, policy));
        }
    }
}

fn tunnel(v6: bool, checksum: OuterChecksum) -> Tunnel {
    let addresses = if v6 {
        let (source, destination) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        Addresses::V6 { source, destination }
    } else {
        sample::tunnel().addresses
    };
    Tunnel { addresses, flow_label: 0x12345, checksum, ..sample::tunnel() }
}

/// The checksum field of the tunnel's UDP header.
fn outer_checksum(frame: &[u8]) -> u16 {
    let at = Packet::parse_vxlan(frame).unwrap().outer.unwrap().checksum_at();
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// The kernel's value of this field in a GSO packet: the sum of the pseudo-header.
fn outer_pseudo_header(frame: &[u8]) -> u16 {
    let outer = Packet::parse_vxlan(frame).unwrap().outer.unwrap();
    let network = &frame[outer.network_offset..];
    match outer.network {
        Network::Ipv4 => Ipv4::parse(network).unwrap().pseudo_header().value(),
        Network::Ipv6 => {
            let ip = Ipv6::parse(network).unwrap();
            let length = ip.payload().len() as u32;
            packet::ipv6::pseudo_header(&ip, Protocol::UDP, length).value()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_segment_is_well_formed(spec in spec(true)) {
        let (vnet, frame) = spec.build();
        let all = segments(&vnet, &frame, Policy::default());
        prop_assert_eq!(all.len(), spec.payload.div_ceil(spec.gso_size.into()));
        for segment in &all {
            if let Some(inner) = check_with_etherparse(segment) {
                check_with_etherparse(&inner);
            }
        }
    }

    #[test]
    fn coalescing_segments_gives_the_gso_packet(spec in spec(true)) {
        // IPv4 options are never merged, and 64 UDP packets at most.
        let options = if spec.v6 { spec.ip_options } else { 0 };
        let gso_size = spec.gso_size.max((spec.payload / 60) as u16);
        prop_assume!(spec.payload > gso_size.into());
        let spec = Spec { ip_options: options, gso_size, ..spec };
        let (vnet, frame) = spec.build();
        let vxlan_port = spec.tunnel.map(|_| vxlan::PORT);
        let mut coalescer = Coalescer::new(Options { vxlan_port, ..Options::default() });
        let mut delivered = Delivered::default();
        for (index, segment) in segments(&vnet, &frame, Policy::default()).iter().enumerate() {
            let outcome = coalescer.push(segment, &VnetHdr::default(), &mut delivered.take());
            prop_assert_eq!(outcome, if index == 0 { Outcome::Held(None) } else { Outcome::Merged });
        }
        coalescer.flush(&mut delivered.take());
        prop_assert_eq!(coalescer.held(), 0);
        prop_assert_eq!(delivered.0.len(), 1);
        let (merged_vnet, merged, _, policy) = &delivered.0[0];
        prop_assert_eq!(merged, &frame);
        prop_assert_eq!(merged_vnet, &vnet);
        prop_assert_eq!(policy.ids, Ids::Incrementing);
    }

    /// Random packets of a few flows, some of them damaged or unusual: after segmentation of merged
    /// packets, each flow's packets equal the input in content and order.
    #[test]
    fn nothing_is_lost_changed_or_overtaken(seed in any::<u64>()) {
        let mut random = Random(seed);
        let options = Options {
            flows: 1 + random.below(4),
            max_size: if random.once_in(3) { 20_000 } else { 65_536 },
            udp: !random.once_in(4),
            vxlan_port: (!random.once_in(3)).then_some(vxlan::PORT),
        };
        let mut coalescer = Coalescer::new(options);
        let mut streams: Vec<Vec<Vec<u8>>> = Vec::new();
        for flow in 0..1 + random.below(5) {
            let mut spec = Spec::random(&mut random, true);
            spec.seed = flow as u64;
            spec.payload = spec.payload.min(20 * usize::from(spec.gso_size));
            let ids = if random.once_in(3) { Ids::Fixed } else { Ids::Incrementing };
            let (vnet, frame) = spec.build();
            streams.push(segments(&vnet, &frame, Policy { ids, ..Policy::default() }));
        }
        let (mut sent, mut delivered) = (Vec::new(), Delivered::default());
        while streams.iter().any(|stream| !stream.is_empty()) {
            let stream = random.below(streams.len());
            for _ in 0..1 + random.below(6) {
                if streams[stream].is_empty() {
                    break;
                }
                let mut frame = match random.below(20) {
                    // Reordered, repeated, lost.
                    0 if streams[stream].len() > 1 => streams[stream].remove(1),
                    1 => streams[stream][0].clone(),
                    2 => { streams[stream].remove(0); continue }
                    _ => streams[stream].remove(0),
                };
                if random.once_in(15) {
                    let at = 12 + random.below(frame.len() - 12);
                    frame[at] ^= 1 << random.below(8);
                }
                if random.once_in(40) {
                    frame.push(0);
                }
                sent.push(frame.clone());
                coalescer.push(&frame, &VnetHdr::default(), &mut delivered.take());
            }
        }
        coalescer.flush(&mut delivered.take());

        let mut out = Vec::new();
        for (vnet, frame, count, policy) in &delivered.0 {
            if *count == 1 {
                prop_assert_eq!(vnet, &VnetHdr::default());
                out.push(frame.clone());
                continue;
            }
            let cut = segments(vnet, frame, *policy);
            prop_assert_eq!(cut.len(), *count);
            out.extend(cut);
        }
        let tunnels = options.vxlan_port.is_some();
        let (sent, out) = (by_flow(&sent, tunnels), by_flow(&out, tunnels));
        prop_assert_eq!(sent.len(), out.len(), "flows");
        for (key, sent) in sent {
            let out = &out[&key];
            prop_assert_eq!(sent.len(), out.len(), "packets of a flow");
            for (index, (sent, out)) in sent.iter().zip(out).enumerate() {
                let at = sent.iter().zip(*out).position(|(a, b)| a != b);
                let head = |b: &[u8]| format!("{:02x?}", &b[..b.len().min(140)]);
                prop_assert!(
                    sent == out,
                    "packet {} differs from byte {:?}:\n{}\n{}", index, at, head(sent), head(out)
                );
            }
        }
    }

    #[test]
    fn partial_checksums_are_what_the_kernel_would_leave(spec in spec(false)) {
        let (vnet, frame) = spec.build();
        let policy = Policy { checksum: TransportChecksum::Partial, ..Policy::default() };
        let full = segments(&vnet, &frame, Policy::default());
        for (partial, full) in segments(&vnet, &frame, policy).iter().zip(&full) {
            let mut completed = partial.clone();
            let (start, offset) = (vnet.csum_start.into(), vnet.csum_offset.into());
            packet::checksum::complete_partial(&mut completed, start, offset).unwrap();
            let unfinished = decap::unfinished_checksum(partial);
            // One in 65,536 complete checksums looks the same.
            let wanted = (partial != full).then_some((vnet.csum_start, vnet.csum_offset));
            prop_assert_eq!(unfinished, wanted);
            prop_assert_eq!(decap::unfinished_checksum(full), None);
            prop_assert_eq!(&completed, full);
        }
    }

    /// Smaller GSO packets are segmented into the same wire packets as the large one.
    #[test]
    fn pieces_are_cut_into_the_same_segments(spec in spec(true), max_len in 9000usize..70_000) {
        let (vnet, frame) = spec.build();
        let pieces = match Segmenter::pieces(&frame, &vnet, max_len) {
            Ok(pieces) => pieces,
            Err(error) => {
                prop_assert!(frame.len() - spec.payload + usize::from(spec.gso_size) > max_len, "{}", error);
                return Ok(());
            }
        };
        let mut buffer = vec![0; pieces.total_len(0)];
        let written = pieces.write_all(&[], &mut buffer).unwrap();
        let mut cut = Vec::new();
        for (index, piece) in written.segments(&buffer).enumerate() {
            prop_assert!(piece.len() <= max_len);
            // A single segment has no segmentation fields.
            let headers = Packet::parse_vxlan(piece).map_or_else(
                |_| Headers::parse(piece).unwrap(),
                |packet| packet.inner,
            );
            let one = headers.payload_len() <= usize::from(vnet.gso_size);
            prop_assert_eq!(one, pieces.header(index).gso_type == 0);
            if !one && spec.tunnel.is_some_and(|tunnel| tunnel.checksum) {
                prop_assert_eq!(outer_checksum(piece), outer_pseudo_header(piece));
            }
            cut.extend(segments(&pieces.header(index), piece, Policy::default()));
        }
        let wanted = segments(&vnet, &frame, Policy::default());
        prop_assert_eq!(cut.len(), wanted.len());
        for (mut cut, wanted) in cut.into_iter().zip(wanted) {
            let headers = Packet::parse_vxlan(&wanted).map_or_else(
                |_| Headers::parse(&wanted).unwrap(),
                |packet| packet.inner,
            );
            let at = headers.checksum_at();
            // In TCP, 0 and 0xffff are equivalent.
            if wanted[at..at + 2] == [0, 0] && cut[at..at + 2] == [0xff, 0xff] {
                cut[at..at + 2].fill(0);
            }
            prop_assert!(cut == wanted);
        }
    }

    /// GSO packets, single packets, finished and partial checksums: decapsulated packets equal the
    /// input, and packets on the wire are well formed.
    #[test]
    fn a_tunnel_changes_nothing(
        spec in spec(false),
        v6 in any::<bool>(),
        policy in 0..3,
        single in 0..3,
        hash in any::<u32>(),
        id in any::<u16>(),
    ) {
        let policy = [OuterChecksum::Zero, OuterChecksum::Full, OuterChecksum::Partial][policy as usize];
        let encap = Encap::new(&tunnel(v6, policy));
        let payload = match single {
            0 => spec.payload.min(65_000),
            _ => usize::from(spec.gso_size).min(1400),
        };
        let (mut vnet, mut frame) = Spec { payload, ..spec }.build();
        if single > 0 {
            (vnet.gso_type, vnet.gso_size, vnet.hdr_len) = (0, 0, 0);
        }
        if single > 1 {
            let (start, offset) = (vnet.csum_start.into(), vnet.csum_offset.into());
            packet::checksum::complete_partial(&mut frame, start, offset).unwrap();
            vnet = VnetHdr::default();
        }
        prop_assume!(single > 0 || payload > vnet.gso_size.into());
        let outer = encap.headers(&frame, &vnet, hash, id).unwrap();
        prop_assert_eq!(outer.bytes().len(), encap.header_len());
        let whole = [outer.bytes(), &frame].concat();

        let out = decap::frame(&whole, &outer.vnet, vxlan::PORT).unwrap();
        prop_assert_eq!(out.frame, &frame[..]);
        prop_assert_eq!(out.vnet, vnet);
        prop_assert_eq!((out.vni.get(), out.reserved_bits_are_zero), (77, true));
        prop_assert!(SOURCE_PORTS.contains(&out.source_port));

        let on_the_wire = segments(&outer.vnet, &whole, Policy::default());
        let inner = segments(&vnet, &frame, Policy::default());
        prop_assert_eq!(on_the_wire.len(), inner.len());
        for (index, (wire, inner)) in on_the_wire.iter().zip(&inner).enumerate() {
            let seen = check_with_etherparse(wire).unwrap();
            prop_assert_eq!(&seen, inner);
            check_with_etherparse(inner);
            let checksum = wire[encap.header_len() - 10..][..2] != [0, 0];
            prop_assert_eq!(checksum, policy != OuterChecksum::Zero);
            if !v6 {
                prop_assert_eq!(wire[18..20].to_vec(), id.wrapping_add(index as u16).to_be_bytes());
            }
        }
    }
}

/// Packets by flow (the inner one, if `tunnels`) in their order; packets without a flow are counted
/// by content.
fn by_flow(frames: &[Vec<u8>], tunnels: bool) -> BTreeMap<u64, Vec<&[u8]>> {
    let digest = |bytes: &[u8]| {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        hasher.finish()
    };
    let mut flows: BTreeMap<u64, Vec<&[u8]>> = BTreeMap::new();
    for frame in frames {
        let outer = Headers::parse(frame);
        let is_tunnel = |h: &Headers| {
            let port = &frame[h.transport_offset + 2..][..2];
            tunnels && h.transport == Transport::Udp && port == vxlan::PORT.to_be_bytes()
        };
        let headers = match outer {
            Ok(h) if is_tunnel(&h) => Packet::parse_vxlan(frame).map(|p| p.inner),
            other => other,
        };
        let key = match headers {
            Ok(h) => {
                let addresses = match h.network {
                    Network::Ipv4 => h.network_offset + 12..h.network_offset + 20,
                    Network::Ipv6 => h.network_offset + 8..h.network_offset + 40,
                };
                let ports = h.transport_offset..h.transport_offset + 4;
                let protocol = [h.transport.protocol().0];
                digest(&[&protocol[..], &frame[addresses], &frame[ports]].concat())
            }
            Err(_) => digest(frame),
        };
        flows.entry(key).or_default().push(frame);
    }
    flows
}

#[test]
fn a_buffer_too_small_is_refused_and_left_alone() {
    let tunnel = TunnelSpec { v6: false, checksum: true, id: 1, tos: 0, source_port: 50_000 };
    let (vnet, frame) = Spec { tunnel: Some(tunnel), ..Spec::PLAIN }.build();
    let segmenter = Segmenter::new(&frame, &vnet).unwrap();
    let mut buffer = vec![0xaa; segmenter.total_len(8) - 1];
    assert!(segmenter.write_all(&[0; 8], &mut buffer).is_err());
    assert!(buffer.iter().all(|b| *b == 0xaa));
    assert!(segmenter.write(0, &mut buffer[..100]).is_err());
    assert!(segmenter.write(segmenter.count(), &mut buffer).is_err());
}

#[test]
fn lengths_and_offsets_that_lie_are_refused() {
    let tunnel = TunnelSpec { v6: false, checksum: true, id: 1, tos: 0, source_port: 50_000 };
    let tunnelled = Spec { tunnel: Some(tunnel), ..Spec::PLAIN };
    let udp = Spec { udp: true, ..Spec::PLAIN };
    let change = |spec: &Spec, change: fn(&mut VnetHdr, &mut Vec<u8>)| {
        let (mut vnet, mut frame) = spec.build();
        change(&mut vnet, &mut frame);
        Segmenter::new(&frame, &vnet).map(|s| s.count()).unwrap_err()
    };
    for spec in [&Spec::PLAIN, &udp, &tunnelled] {
        let error = change(spec, |_, frame| frame.push(0));
        assert!(matches!(error, SegmentError::Length { .. }), "{error}");
        let error = change(spec, |vnet, _| vnet.csum_start += 2);
        assert!(matches!(error, SegmentError::Offset { field: "csum_start", .. }), "{error}");
    }
    // The UDP length of the packet, and of the tunnel around one.
    let error = change(&udp, |vnet, frame| frame[usize::from(vnet.csum_start) + 5] -= 1);
    assert!(matches!(error, SegmentError::Length { .. }), "{error}");
    let error = change(&tunnelled, |vnet, frame| frame[usize::from(vnet.outer_th_offset) + 5] -= 1);
    assert!(matches!(error, SegmentError::Length { .. }), "{error}");
    let error = change(&tunnelled, |vnet, _| vnet.outer_th_offset += 2);
    assert!(matches!(error, SegmentError::Offset { field: "outer_th_offset", .. }), "{error}");
    let error = change(&tunnelled, |vnet, _| vnet.inner_nh_offset += 2);
    assert!(matches!(error, SegmentError::Offset { field: "inner_nh_offset", .. }), "{error}");
    let error = change(&tunnelled, |vnet, _| vnet.gso_type ^= 0x60);
    assert!(matches!(error, SegmentError::Type { .. }), "{error}");
}

#[test]
fn a_prefix_precedes_each_segment() {
    let (vnet, frame) = Spec::PLAIN.build();
    let segmenter = Segmenter::new(&frame, &vnet).unwrap();
    let prefix = vxlan::header(Vni::new(5).unwrap());
    let mut buffer = vec![0; segmenter.total_len(prefix.len())];
    let written = segmenter.write_all(&prefix, &mut buffer).unwrap();
    assert_eq!((written.count, written.total), (3, buffer.len()));
    let plain = segments(&vnet, &frame, Policy::default());
    assert_eq!(written.segments(&buffer).len(), plain.len());
    for (with, without) in written.segments(&buffer).zip(&plain) {
        let (vni, inner) = decap::payload(with).unwrap();
        assert_eq!((vni.get(), inner), (5, &without[..]));
    }
}

#[test]
fn flags_say_who_vouches() {
    assert!(VnetHdr { flags: flags::DATA_VALID, ..VnetHdr::default() }.checksum_is_trusted());
    assert!(!VnetHdr::default().checksum_is_trusted());
}
