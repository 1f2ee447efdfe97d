//! Fuzz targets: each function takes arbitrary bytes, must not panic, and asserts invariants.
//!
//! libFuzzer calls them from `fuzz_targets/`, and the packet crate's test
//! `fuzz_bounded` calls them for a bounded number of cases with a stable compiler.

use packet::arp::Arp;
use packet::coalesce::{Coalescer, Delivery, Options, Outcome};
use packet::encap::{Addresses, Dscp, Encap, OuterChecksum, SOURCE_PORTS, Tunnel};
use packet::ethernet::{Ethernet, MacAddr};
use packet::frame::{Headers, Packet};
use packet::icmp::{self, Icmp};
use packet::icmpv6::{self, Icmpv6};
use packet::ipv4::Ipv4;
use packet::ipv6::Ipv6;
use packet::segment::{Ids, Policy, Segmenter, TransportChecksum};
use packet::tcp::Tcp;
use packet::udp::Udp;
use packet::vlan::Vlan;
use packet::vnet_hdr::{self, Layout, VnetHdr};
use packet::vxlan::{self, Vni, Vxlan};
use packet::{checksum, decap, ecn, flow};

/// Every view and every iteration over the same bytes.
pub fn views(data: &[u8]) {
    if let Ok(view) = Ethernet::parse(data) {
        let _ = (view.source().is_unicast(), view.destination().is_multicast(), view.ether_type());
        assert_eq!(view.payload().len() + 14, data.len());
    }
    if let Ok(view) = Vlan::parse(data) {
        let _ = (view.id(), view.priority(), view.drop_eligible(), view.ether_type());
    }
    if let Ok(view) = Arp::parse(data) {
        let fields = view.fields();
        assert_eq!(fields.to_bytes(), data[..packet::arp::PACKET_LEN]);
        let _ = fields.reply(MacAddr::ZERO).to_bytes();
    }
    if let Ok(view) = Ipv4::parse(data) {
        assert!(view.total_len() <= data.len());
        let _ = (view.checksum_is_valid(), view.pseudo_header(), view.ecn(), view.is_fragment());
        let mut out = [0; icmp::MAX_ERROR_LEN];
        if icmp::may_answer_with_error(&view) {
            let len = icmp::fragmentation_needed(&view, data, [1, 2, 3, 4].into(), 1400, &mut out);
            let error = Ipv4::parse(&out[..len.unwrap()]).unwrap();
            assert!(error.checksum_is_valid() && !icmp::may_answer_with_error(&error));
        }
    }
    if let Ok(view) = Ipv6::parse(data) {
        let _ = view.upper_layer();
        let mut out = [0; icmpv6::MAX_ERROR_LEN];
        if icmpv6::may_answer_with_error(&view, true) {
            let router = view.destination();
            let len = icmpv6::packet_too_big(&view, data, router, 1400, &mut out).unwrap();
            let error = Ipv6::parse(&out[..len]).unwrap();
            assert!(Icmpv6::parse(error.payload()).unwrap().checksum_is_valid(&error));
        }
        if let Ok(icmp) = Icmpv6::parse(view.payload()) {
            let _ = icmp.checksum_is_valid(&view);
        }
    }
    if let Ok(view) = Icmp::parse(data) {
        let _ = (view.message().is_error(), view.checksum_is_valid());
    }
    if let Ok(view) = Icmpv6::parse(data) {
        let _ = view.message().is_error();
    }
    if let Ok(view) = Tcp::parse(data) {
        assert_eq!(view.header_len() + view.payload().len(), data.len());
        let _ = (view.flags(), view.sequence(), view.options());
    }
    if let Ok(view) = Udp::parse(data) {
        assert!(view.length() <= data.len());
    }
    if let Ok(view) = Vxlan::parse(data) {
        let _ = (view.vni(), view.reserved_bits_are_zero(), view.frame());
    }
    for layout in [Layout::Basic, Layout::V1, Layout::Tunnel] {
        if let Ok((header, frame)) = vnet_hdr::split(data, layout) {
            assert_eq!(frame.len() + layout.size(), data.len());
            let _ = header.gso();
            let mut out = [0; 24];
            if header.emit(layout, &mut out).is_ok() {
                assert_eq!(VnetHdr::parse(&out, layout), Ok(header));
            }
        }
    }
    for headers in
        [Headers::parse(data), Packet::parse_vxlan(data).map(|p| p.inner)].into_iter().flatten()
    {
        assert!(headers.network_offset < headers.transport_offset);
        assert!(headers.transport_offset < headers.payload_offset);
        assert!(headers.payload_offset <= headers.end && headers.end <= data.len());
    }
    flow::hash(data, 1);
    if let Some((start, offset)) = decap::unfinished_checksum(data) {
        let mut completed = data.to_vec();
        checksum::complete_partial(&mut completed, start.into(), offset.into()).unwrap();
    }
    let mut changed = data.to_vec();
    for bits in 0..4 {
        decap::apply_ecn(&mut changed, ecn::Ecn::of(bits));
    }
}

/// Segments a vnet header and a frame. The segments must have the promised lengths, and coalescing
/// them must not panic.
pub fn segment(data: &[u8]) {
    let Ok((vnet, frame)) = vnet_hdr::split(data, Layout::Tunnel) else { return };
    if let Ok(pieces) = Segmenter::pieces(frame, &vnet, 9000) {
        let mut buffer = vec![0; pieces.total_len(0).min(1 << 18)];
        if let Ok(written) = pieces.write_all(&[], &mut buffer) {
            for (index, piece) in written.segments(&buffer).enumerate() {
                assert!(piece.len() <= 9000 || written.count == 1);
                assert!(Segmenter::new(piece, &pieces.header(index)).is_ok() || written.count == 1);
            }
        }
    }
    for checksum in [TransportChecksum::Full, TransportChecksum::Partial] {
        let policy = Policy { checksum, ..Policy::default() };
        let Ok(segmenter) = Segmenter::with_policy(frame, &vnet, policy) else { continue };
        let total = segmenter.total_len(8);
        // A segment of one byte repeats its headers: the caller's buffer is the limit.
        let mut buffer = vec![0; total.min(1 << 18)];
        let Ok(written) = segmenter.write_all(&[7; 8], &mut buffer) else {
            assert!(total > buffer.len());
            continue;
        };
        assert_eq!((written.total, written.count), (total, segmenter.count()));
        let mut payload = 0;
        for (index, segment) in written.segments(&buffer).enumerate() {
            assert_eq!(segment[..8], [7; 8]);
            let mut single = vec![0; 1 << 17];
            let len = segmenter.write(index, &mut single).unwrap();
            assert_eq!(&single[..len], &segment[8..]);
            payload += len;
        }
        assert!(payload >= frame.len());
    }
}

/// Merges frames with length prefixes: no frame is lost, only merging changes frames, and held
/// memory is bounded.
pub fn coalesce(mut data: &[u8]) {
    let Some((options, rest)) = data.split_first() else { return };
    data = rest;
    let mut coalescer = Coalescer::new(Options {
        flows: 1 + usize::from(options & 3),
        max_size: if options & 4 == 0 { 65_536 } else { 3000 },
        udp: options & 8 == 0,
        vxlan_port: (options & 16 == 0).then_some(vxlan::PORT),
    });
    let (mut sent, mut out) = (Vec::new(), Vec::new());
    while let Some((head, rest)) = data.split_first_chunk::<2>() {
        let len = usize::from(u16::from_le_bytes(*head)).min(rest.len());
        let (frame, rest) = rest.split_at(len);
        data = rest;
        sent.push(frame);
        let before = out.len();
        let outcome =
            coalescer.push(frame, &VnetHdr::default(), &mut |d| check_delivery(&d, &mut out));
        if let Outcome::Passed(_) = outcome {
            assert!(out.len() > before);
            assert_eq!(out.last().map(Vec::as_slice), Some(frame));
        }
        assert!(coalescer.held() <= 4);
    }
    coalescer.flush(&mut |d| check_delivery(&d, &mut out));
    let mut out: Vec<&[u8]> = out.iter().map(Vec::as_slice).collect();
    sent.sort_unstable();
    out.sort_unstable();
    assert_eq!(sent, out);
}

/// Segments a delivery into its input.
fn check_delivery(delivery: &Delivery<'_>, out: &mut Vec<Vec<u8>>) {
    if delivery.segments == 1 {
        out.push(delivery.frame.to_vec());
        return;
    }
    let ids = |fixed| if fixed { Ids::Fixed } else { Ids::Incrementing };
    let (ids, outer_ids) = (ids(delivery.fixed_ids), ids(delivery.fixed_outer_ids));
    let policy = Policy { ids, outer_ids, ..Policy::default() };
    let segmenter = Segmenter::with_policy(delivery.frame, &delivery.vnet, policy).unwrap();
    let mut buffer = vec![0; segmenter.total_len(0)];
    let written = segmenter.write_all(&[], &mut buffer).unwrap();
    assert_eq!(written.count, delivery.segments);
    out.extend(written.segments(&buffer).map(<[u8]>::to_vec));
}

/// Encapsulates and decapsulates a vnet header and a frame; and decapsulates the same bytes
/// directly.
pub fn tunnel(data: &[u8]) {
    let Ok((vnet, frame)) = vnet_hdr::split(data, Layout::Tunnel) else { return };
    for port in [vxlan::PORT, u16::from(data[0]) << 8 | u16::from(data[1])] {
        if let Ok(out) = decap::frame(frame, &vnet, port) {
            assert!(out.frame.len() <= frame.len());
            let _ = Segmenter::new(out.frame, &out.vnet).map(|s| s.total_len(0));
        }
    }
    let ends = [
        Addresses::V4 { source: [1, 1, 1, 1].into(), destination: [2, 2, 2, 2].into() },
        Addresses::V6 { source: 1u128.into(), destination: 2u128.into() },
    ];
    for addresses in ends {
        for checksum in [OuterChecksum::Zero, OuterChecksum::Full, OuterChecksum::Partial] {
            let encap = Encap::new(&Tunnel {
                link: (MacAddr::ZERO, MacAddr::ZERO),
                addresses,
                vni: Vni::MAX,
                port: vxlan::PORT,
                source_ports: SOURCE_PORTS,
                ttl: 64,
                dscp: Dscp::Inherit,
                ecn: ecn::Ingress::Normal,
                dont_fragment: true,
                flow_label: 1,
                checksum,
            });
            let Ok(outer) = encap.headers(frame, &vnet, flow::hash(frame, 1), 1) else { continue };
            let whole = [outer.bytes(), frame].concat();
            let Ok(out) = decap::frame(&whole, &outer.vnet, vxlan::PORT) else {
                // Only offsets beyond the field's range may be lost.
                assert!(vnet.csum_start > 60_000);
                continue;
            };
            assert_eq!((out.frame, out.vni), (frame, Vni::MAX));
        }
    }
}
