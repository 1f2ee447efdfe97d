//! Limits and flags: tunnels, segments, merged datagrams, checksums.

use crate::build;
use crate::sample;

use build::Spec;
use packet::checksum::{Sum, complete_partial, pseudo_header_v4};
use packet::coalesce::{Coalescer, Options, Outcome, Refusal};
use packet::decap::{self, DecapError};
use packet::ecn::Ecn;
use packet::encap::{Encap, EncapError, OuterChecksum, SOURCE_PORTS, Tunnel, source_port};
use packet::segment::{SegmentError, Segmenter};
use packet::vnet_hdr::{VnetHdr, flags, gso_type};
use packet::vxlan::{self};
use sample::tunnel;

fn encap(checksum: OuterChecksum) -> Encap {
    Encap::new(&Tunnel { checksum, ..tunnel() })
}

fn needs_csum(csum_start: usize, csum_offset: usize) -> VnetHdr {
    let (csum_start, csum_offset) = (csum_start as u16, csum_offset as u16);
    VnetHdr { flags: flags::NEEDS_CSUM, csum_start, csum_offset, ..VnetHdr::default() }
}

/// `udp_flow_src_port` of the kernel: `hash ^= hash << 16`, then
/// `((u64) hash * (max - min) >> 32) + min`.
#[test]
fn source_ports_are_the_kernels() {
    for (hash, port) in [
        (0, 49_152),
        (0x8000_0000, 49_152 + 8191),
        (0xffff_0000, 65_534),
        // The low half counts like the high one.
        (0x0000_ffff, 65_534),
        (0x0000_8000, 49_152 + 8191),
        (0xffff_ffff, 49_152),
    ] {
        assert_eq!(source_port(hash, &SOURCE_PORTS), port, "{hash:#x}");
    }
}

/// A checksum field may be the last two bytes of a frame, but not beyond.
#[test]
fn a_checksum_field_may_end_with_the_frame() {
    let frame = [7; 60];
    let (full, fits, beyond) = (encap(OuterChecksum::Full), needs_csum(34, 24), needs_csum(34, 25));
    assert!(full.headers(&frame, &fits, 0, 0).is_ok());
    let error = full.headers(&frame, &beyond, 0, 0).unwrap_err();
    assert!(matches!(error, EncapError::ChecksumPlace { start: 34, offset: 25, length: 60 }));
    assert_eq!(Segmenter::new(&frame, &fits).unwrap().count(), 1);
    let error = Segmenter::new(&frame, &beyond).unwrap_err();
    assert!(matches!(error, SegmentError::OutOfFrame(_)), "{error}");
}

/// The outer checksum is right once the inner one is completed, for an even or an odd start.
#[test]
fn an_outer_checksum_before_an_unfinished_one_is_right() {
    for start in [34, 35] {
        let frame: Vec<u8> = (0..61).map(|n: u8| n.wrapping_mul(37)).collect();
        let outer = encap(OuterChecksum::Full).headers(&frame, &needs_csum(start, 6), 1, 2);
        let outer = outer.unwrap();
        let mut whole = [outer.bytes(), &frame].concat();
        let (at, offset) = (outer.vnet.csum_start.into(), outer.vnet.csum_offset.into());
        assert_eq!((at, offset), (50 + start, 6));
        complete_partial(&mut whole, at, offset).unwrap();
        decap::frame(&whole, &VnetHdr::default(), vxlan::PORT).unwrap();
        whole[60] ^= 1;
        let error = decap::frame(&whole, &VnetHdr::default(), vxlan::PORT).unwrap_err();
        assert_eq!(error, DecapError::Checksum);
    }
}

/// "Verified" refers to the inner packet; the outer one is unverified.
#[test]
fn only_the_need_for_a_checksum_goes_out() {
    let (mut vnet, frame) = Spec::PLAIN.build();
    vnet.flags |= flags::DATA_VALID;
    for (checksum, wanted) in [
        (OuterChecksum::Zero, flags::NEEDS_CSUM),
        (OuterChecksum::Full, flags::NEEDS_CSUM | flags::UDP_TUNNEL_CSUM),
    ] {
        let outer = encap(checksum).headers(&frame, &vnet, 1, 2).unwrap();
        assert_eq!(outer.vnet.flags, wanted);
        assert_eq!(outer.vnet.gso_type, gso_type::TCPV4 | gso_type::UDP_TUNNEL_IPV4);
    }
}

/// A tunnel's datagrams as the kernel's UDP GRO merges them without knowing the tunnel.
#[test]
fn merged_datagrams_are_found() {
    let udp = Spec { udp: true, payload: 2500, gso_size: 1000, tos: 3, ..Spec::PLAIN };
    let (vnet, frame) = udp.build();
    let port = 5201;
    let merged = decap::merged(&frame, &vnet, port).unwrap().unwrap();
    assert_eq!((merged.payload, merged.size), (42..2542, 1000));
    assert_eq!(merged.source.to_string(), "10.0.0.1");
    assert_eq!(merged.ecn, Ecn::Ce);
    // Not merged, without a size, or TCP: left to `frame`.
    for (gso_type, gso_size) in [(0, 0), (0, 1000), (gso_type::UDP_L4, 0), (gso_type::TCPV4, 1000)]
    {
        let other = VnetHdr { gso_type, gso_size, ..vnet };
        assert_eq!(decap::merged(&frame, &other, port), Ok(None), "{gso_type} {gso_size}");
    }
    let error = decap::merged(&frame, &vnet, 4789).unwrap_err();
    assert_eq!(error, DecapError::Port { wanted: 4789, got: port });
}

/// A field is unfinished only if it holds the pseudo-header's sum and is not a valid checksum.
#[test]
fn a_wrong_checksum_is_not_an_unfinished_one() {
    let (_, mut frame) = Spec { udp: true, payload: 100, ..Spec::PLAIN }.build();
    assert_eq!(decap::unfinished_checksum(&frame), Some((34, 6)));
    frame[41] ^= 1;
    assert_eq!(decap::unfinished_checksum(&frame), None, "wrong");
    frame[41] ^= 1;
    // A payload whose checksum equals the sum of the pseudo-header.
    let pseudo = pseudo_header_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 108);
    frame[140..142].fill(0);
    let sum = pseudo.plus_bytes(&frame[34..]);
    frame[140..142].copy_from_slice(&sum.checksum().to_be_bytes());
    assert!(pseudo.plus_bytes(&frame[34..]).is_valid());
    assert_eq!(decap::unfinished_checksum(&frame), None, "right by chance");
}

/// The kernel's `UDP_MAX_SEGMENTS` limits datagrams, not TCP.
#[test]
fn more_than_128_datagrams_are_refused() {
    let count = |udp, segments: usize| {
        let (vnet, frame) =
            Spec { udp, gso_size: 100, payload: 100 * segments, ..Spec::PLAIN }.build();
        Segmenter::new(&frame, &vnet).map(|segmenter| segmenter.count())
    };
    assert_eq!(count(true, 128).unwrap(), 128);
    for segments in [129, 300] {
        let error = count(true, segments).unwrap_err();
        assert!(matches!(error, SegmentError::TooMany(n) if n == segments), "{error}");
        assert_eq!(count(false, segments).unwrap(), segments);
    }
}

/// CWR is on the first segment only, so only the first part keeps the flag. Each part has a partial
/// checksum, even if the GSO packet had a complete one.
#[test]
fn pieces_say_what_they_are() {
    let spec = Spec { payload: 12_000, gso_size: 1000, flags: 0x90, ..Spec::PLAIN };
    let (vnet, frame) = spec.build();
    assert_eq!(vnet.gso_type, gso_type::TCPV4 | gso_type::ECN);
    let finished = VnetHdr { flags: 0, csum_start: 0, csum_offset: 0, ..vnet };
    for vnet in [vnet, finished] {
        let pieces = Segmenter::pieces(&frame, &vnet, 4200).unwrap();
        assert_eq!(pieces.count(), 3);
        for index in 0..3 {
            let header = pieces.header(index);
            let ecn = if index == 0 { gso_type::ECN } else { 0 };
            assert_eq!(header.gso_type, gso_type::TCPV4 | ecn, "piece {index}");
            assert_eq!((header.flags, header.gso_size), (flags::NEEDS_CSUM, 1000));
            assert_eq!((header.csum_start, header.csum_offset), (34, 16));
        }
    }
}

/// A single packet keeps its partial checksum, and loses the flags of a tunnel.
#[test]
fn a_single_packet_is_its_own_piece() {
    let (vnet, frame) = Spec { payload: 1000, ..Spec::PLAIN }.build();
    let flags = flags::NEEDS_CSUM | flags::UDP_TUNNEL_CSUM;
    let single = VnetHdr { gso_type: 0, gso_size: 0, flags, ..vnet };
    let pieces = Segmenter::pieces(&frame, &single, 9000).unwrap();
    assert_eq!(pieces.count(), 1);
    assert_eq!(pieces.header(0), needs_csum(34, 16));
    let mut out = vec![0; frame.len()];
    pieces.write(0, &mut out).unwrap();
    assert_eq!(out, frame);
}

/// `skb_gro_receive` refuses a packet if the GSO packet would reach `gro_max_size` bytes, counted
/// from the IP header on.
#[test]
fn a_gso_packet_stays_below_the_largest_size() {
    let spec = Spec { payload: 3000, gso_size: 1000, tcp_options: 0, ..Spec::PLAIN };
    let (vnet, frame) = spec.build();
    let segmenter = Segmenter::new(&frame, &vnet).unwrap();
    let mut buffer = vec![0; segmenter.total_len(0)];
    let written = segmenter.write_all(&[], &mut buffer).unwrap();
    for (max_size, wanted) in
        [(40 + 2001, Outcome::Merged), (40 + 2000, Outcome::Held(Some(Refusal::Full)))]
    {
        let mut coalescer = Coalescer::new(Options { max_size, ..Options::default() });
        let mut segments = written.segments(&buffer);
        let none = VnetHdr::default();
        let first = coalescer.push(segments.next().unwrap(), &none, &mut |_| ());
        assert_eq!((first, coalescer.held()), (Outcome::Held(None), 1));
        let second = coalescer.push(segments.next().unwrap(), &none, &mut |_| ());
        assert_eq!((second, coalescer.held()), (wanted, 1), "{max_size}");
        coalescer.flush(&mut |_| ());
        assert_eq!(coalescer.held(), 0);
    }
}

/// A tunnel's header that requires a checksum over a frame of odd length.
#[test]
fn sums_of_odd_lengths_are_padded() {
    assert_eq!(Sum::of(&[0x12]).value(), 0x1200);
    assert_eq!(Sum::of(&[0x12, 0x34, 0x56]).value(), 0x1234 + 0x5600);
}
