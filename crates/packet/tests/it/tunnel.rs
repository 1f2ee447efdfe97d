//! Encapsulation and decapsulation: refused packets, and carried-over fields.

use crate::build;
use crate::sample;

use std::ops::RangeInclusive;

use build::{Spec, TunnelSpec};

use packet::decap::{self, DecapError};
use packet::ecn::{Ecn, Egress, Ingress};
use packet::encap::{
    Addresses, Dscp, Encap, EncapError, HEADER_LEN_V4, OuterChecksum, SOURCE_PORTS, Tunnel,
    source_port,
};
use packet::ethernet::EtherType;
use packet::frame::{Network, Packet, Unsupported};
use packet::ipv4::Ipv4;
use packet::ipv6::Ipv6;
use packet::vnet_hdr::{VnetHdr, flags, gso_type};
use packet::vxlan;
use sample::tunnel;

fn v6(tunnel: Tunnel) -> Tunnel {
    let addresses = Addresses::V6 { source: 1u128.into(), destination: 2u128.into() };
    Tunnel { addresses, ..tunnel }
}

/// A single packet with finished checksums.
fn single(v6: bool, tos: u8) -> Vec<u8> {
    let (vnet, mut frame) = Spec { v6, tos, udp: true, payload: 100, ..Spec::PLAIN }.build();
    let (start, offset) = (vnet.csum_start.into(), vnet.csum_offset.into());
    packet::checksum::complete_partial(&mut frame, start, offset).unwrap();
    frame
}

fn encapsulated(tunnel: &Tunnel, frame: &[u8]) -> Vec<u8> {
    let outer = Encap::new(tunnel).headers(frame, &VnetHdr::default(), 1, 7).unwrap();
    [outer.bytes(), frame].concat()
}

#[test]
fn packets_that_cannot_be_encapsulated_are_refused() {
    let encap = Encap::new(&tunnel());
    let inside = TunnelSpec { v6: false, checksum: false, id: 1, tos: 0, source_port: 50_000 };
    let (vnet, frame) = Spec { tunnel: Some(inside), ..Spec::PLAIN }.build();
    let error = encap.headers(&frame, &vnet, 0, 0).unwrap_err();
    assert_eq!(error, EncapError::Nested(gso_type::TCPV4 | gso_type::UDP_TUNNEL_IPV4));

    let frame = vec![0; 65_535 - 36];
    assert!(encap.headers(&frame, &VnetHdr::default(), 0, 0).is_ok());
    let error = encap.headers(&vec![0; 65_535 - 35], &VnetHdr::default(), 0, 0).unwrap_err();
    assert_eq!(error.to_string(), "IPv4: length 65536 exceeds the field's limit of 65535");

    for (csum_start, csum_offset) in [(0xffff, 0), (0, 0xffff), (65_498, 0)] {
        let needs = flags::NEEDS_CSUM;
        let vnet = VnetHdr { flags: needs, csum_start, csum_offset, ..VnetHdr::default() };
        let error = encap.headers(&frame, &vnet, 0, 0).unwrap_err();
        assert!(matches!(error, EncapError::ChecksumPlace { .. }), "{error}");
    }
    let vnet = VnetHdr { gso_type: gso_type::UDP, gso_size: 1, ..VnetHdr::default() };
    assert!(matches!(encap.headers(&frame, &vnet, 0, 0), Err(EncapError::Gso(_))));
}

#[test]
fn invalid_tunnel_packets_are_refused() {
    let good = encapsulated(&tunnel(), &single(false, 0));
    let none = VnetHdr::default();
    let change = |at: usize, bits: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= bits;
        decap::frame(&bytes, &none, vxlan::PORT).map(|d| d.vni).unwrap_err()
    };
    assert!(decap::frame(&good, &none, vxlan::PORT).is_ok());
    assert_eq!(change(14 + 5, 1), DecapError::HeaderChecksum);
    assert_eq!(change(14 + 6, 0x20), DecapError::Outer(Unsupported::Fragment));
    assert_eq!(change(37, 1), DecapError::Port { wanted: 4789, got: 4788 });
    assert_eq!(change(41, 1), DecapError::Checksum);
    assert_eq!(change(good.len() - 1, 1), DecapError::Checksum);
    assert_eq!(change(46, 1), DecapError::Checksum);
    assert!(matches!(change(23, 17 ^ 6), DecapError::Outer(_)));
    for len in 0..good.len() {
        assert!(decap::frame(&good[..len], &none, vxlan::PORT).is_err(), "{len}");
    }
    // Without a checksum, the VXLAN header itself is checked.
    let mut bytes =
        encapsulated(&Tunnel { checksum: OuterChecksum::Zero, ..tunnel() }, &single(false, 0));
    bytes[42] ^= 8;
    let error = decap::frame(&bytes, &none, vxlan::PORT).unwrap_err();
    assert_eq!(error.to_string(), "VXLAN at byte 42: expected I flag 1, got 0");
    // A checksum that the kernel has verified is trusted.
    let mut bytes = good.clone();
    bytes[41] ^= 1;
    let verified = VnetHdr { flags: flags::DATA_VALID, ..none };
    assert!(decap::frame(&bytes, &verified, vxlan::PORT).is_ok());
    // UDP merged without regard to VXLAN, and offsets into the outer headers.
    let merged = VnetHdr { gso_type: gso_type::UDP_L4, gso_size: 100, ..none };
    let error = decap::frame(&good, &merged, vxlan::PORT).unwrap_err();
    assert_eq!(error, DecapError::OuterGso(gso_type::UDP_L4));
    let inside = VnetHdr { flags: flags::NEEDS_CSUM, csum_start: 42, csum_offset: 6, ..none };
    let error = decap::frame(&good, &inside, vxlan::PORT).unwrap_err();
    assert_eq!(error.to_string(), "csum_start 42 is before the inner frame at 50");
    // A partial outer checksum has no effect on the inner frame.
    let outer = VnetHdr { csum_start: 34, ..inside };
    assert_eq!(decap::frame(&good, &outer, vxlan::PORT).unwrap().vnet, none);
}

#[test]
fn tos_is_carried_out_by_policy() {
    let outer_tos = |tunnel: &Tunnel, frame: &[u8]| {
        let bytes = encapsulated(tunnel, frame);
        let network = Packet::parse(&bytes).unwrap().inner.network;
        match network {
            Network::Ipv4 => Ipv4::parse(&bytes[14..]).unwrap().tos(),
            Network::Ipv6 => Ipv6::parse(&bytes[14..]).unwrap().traffic_class(),
        }
    };
    for over_v6 in [false, true] {
        let over = |t: Tunnel| if over_v6 { v6(t) } else { t };
        for inner_v6 in [false, true] {
            let inherit = over(tunnel());
            assert_eq!(outer_tos(&inherit, &single(inner_v6, 0xbb)), 0xbb);
            let fixed = over(Tunnel { dscp: Dscp::Fixed(10), ..tunnel() });
            assert_eq!(outer_tos(&fixed, &single(inner_v6, 0xba)), 10 << 2 | 2);
            let compatible = over(Tunnel { ecn: Ingress::Compatibility, ..tunnel() });
            assert_eq!(outer_tos(&compatible, &single(inner_v6, 0xba)), 0xb8);
            let linux = over(Tunnel { ecn: Ingress::Linux, ..tunnel() });
            assert_eq!(outer_tos(&linux, &single(inner_v6, 0x03)), 0x02);
        }
        assert_eq!(outer_tos(&over(tunnel()), &[0xff; 60]), 0, "not IP");
    }
}

#[test]
fn ecn_is_carried_in() {
    for v6 in [false, true] {
        for inner in 0..4u8 {
            for outer in 0..4u8 {
                let mut frame = single(v6, 0xb8 | inner);
                let before = frame.clone();
                let fate = decap::apply_ecn(&mut frame, Ecn::of(outer));
                assert_eq!(fate, packet::ecn::decapsulate(Ecn::of(inner), Ecn::of(outer)));
                let tos = if v6 {
                    Ipv6::parse(&frame[14..]).unwrap().traffic_class()
                } else {
                    let ip = Ipv4::parse(&frame[14..]).unwrap();
                    assert!(ip.checksum_is_valid());
                    ip.tos()
                };
                match fate {
                    Egress::Drop => assert_eq!(frame, before),
                    Egress::Forward(ecn) | Egress::ForwardUnexpected(ecn) => {
                        assert_eq!(tos, ecn.on(0xb8), "{inner} in {outer}");
                    }
                }
            }
        }
    }
    let mut arp = [0; 60];
    arp[12..14].copy_from_slice(&EtherType::ARP.0.to_be_bytes());
    assert_eq!(decap::apply_ecn(&mut arp, Ecn::Ce), Egress::Forward(Ecn::NotEct));
}

#[test]
fn source_ports_stay_in_their_range() {
    for hash in [0, 1, 0xffff, 0x1_0000, u32::MAX] {
        assert!(SOURCE_PORTS.contains(&source_port(hash, &SOURCE_PORTS)));
        assert_eq!(source_port(hash, &(5..=5)), 5);
        assert_eq!(source_port(hash, &RangeInclusive::new(7, 5)), 7, "an empty range");
    }
    assert_eq!(HEADER_LEN_V4, 50);
}
