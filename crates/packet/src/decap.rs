//! Decapsulates VXLAN packets.
//!
//! The outer headers are validated here, but not the sender: the caller knows the remote endpoints
//! and networks.

use std::net::IpAddr;
use std::ops::Range;

use crate::checksum::{Sum, replace_word};
use crate::ecn::{Ecn, Egress, decapsulate};
use crate::ethernet::{EtherType, Ethernet};
use crate::frame::{Headers, Network, Transport, Unsupported};
use crate::ipv4::{Ipv4, Protocol};
use crate::ipv6::Ipv6;
use crate::vlan::Vlan;
use crate::vnet_hdr::{VnetHdr, flags, gso_type};
use crate::vxlan::{self, Vni, Vxlan};
use crate::{ParseError, get16, put16};

/// A decapsulated frame.
#[derive(Debug, Clone, Copy)]
pub struct Decapsulated<'a> {
    /// Underlay address of the remote endpoint.
    pub source: IpAddr,
    /// Destination address: this endpoint, or a multicast group.
    pub destination: IpAddr,
    /// Source port, which the remote endpoint derives from the flow.
    pub source_port: u16,
    /// Network that the frame belongs to.
    pub vni: Vni,
    /// The outer ECN bits, for [`apply_ecn`].
    pub ecn: Ecn,
    /// Whether all reserved bits of the VXLAN header are zero.
    pub reserved_bits_are_zero: bool,
    /// Offset of the frame from the start of the outer frame, bytes.
    pub offset: usize,
    /// The inner Ethernet frame, without outer headers.
    pub frame: &'a [u8],
    /// The vnet header for the inner frame alone.
    pub vnet: VnetHdr,
}

/// Why a packet cannot be decapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DecapError {
    /// The outer headers are malformed or not UDP.
    #[error("outer headers: {0}")]
    Outer(#[from] Unsupported),
    /// The destination port is not the tunnel's.
    #[error("UDP port: expected {wanted}, got {got}")]
    Port {
        /// Port of the tunnel.
        wanted: u16,
        /// Destination port of the packet.
        got: u16,
    },
    /// The IPv4 header checksum is wrong.
    #[error("outer IPv4 header checksum is wrong")]
    HeaderChecksum,
    /// The outer UDP checksum is present and wrong.
    #[error("outer UDP checksum is wrong")]
    Checksum,
    /// There is no VXLAN header with a valid VNI.
    #[error(transparent)]
    Vxlan(#[from] ParseError),
    /// An offset of the vnet header points into the outer headers.
    #[error("{field} {got} is before the inner frame at {frame}")]
    Offset {
        /// Name of the vnet header's field.
        field: &'static str,
        /// Value of that field.
        got: u16,
        /// Offset of the inner frame.
        frame: usize,
    },
    /// The GSO packet is not inside the tunnel: its segments are outer UDP datagrams, merged
    /// without knowledge of VXLAN.
    #[error("gso_type {0:#04x} on the outer packet, not inside the tunnel")]
    OuterGso(u8),
}

/// Parses a UDP payload, as a socket delivers it; returns the VNI and the frame.
///
/// # Errors
/// If it is shorter than a header or has no valid VNI.
pub fn payload(bytes: &[u8]) -> Result<(Vni, &[u8]), ParseError> {
    let view = Vxlan::parse(bytes)?;
    Ok((view.vni(), view.frame()))
}

/// Decapsulates a complete frame of the underlay with its vnet header.
///
/// The outer UDP checksum is verified, unless it is absent, the vnet header marks it as valid, or
/// the packet is a GSO packet (its checksum is not computed yet).
///
/// # Errors
/// See [`DecapError`].
pub fn frame<'a>(
    bytes: &'a [u8],
    vnet: &VnetHdr,
    port: u16,
) -> Result<Decapsulated<'a>, DecapError> {
    let Outer { headers: outer, source, destination, ecn } = Outer::parse(bytes, port)?;
    // If `csum_start` points further in, the partial checksum is an inner one and the outer one is
    // complete.
    let start = usize::from(vnet.csum_start);
    let outer_is_partial = vnet.needs_csum() && start == outer.transport_offset;
    let trusted = vnet.flags & flags::DATA_VALID != 0 || outer_is_partial || vnet.gso_type != 0;
    // With a partial inner checksum, the outer one covers unfinished data and cannot be verified.
    // Such a packet has never been on a wire.
    if !trusted && !vnet.needs_csum() && !outer.checksum_is_valid(bytes) {
        return Err(DecapError::Checksum);
    }
    // Use the UDP length: further data of the IP packet is not part of the datagram.
    let udp_end = outer.transport_offset + usize::from(get16(bytes, outer.transport_offset + 4));
    let vxlan = Vxlan::parse(&bytes[outer.payload_offset..udp_end])
        .map_err(|e| e.shifted(outer.payload_offset))?;
    let frame_offset = outer.payload_offset + vxlan::HEADER_LEN;
    Ok(Decapsulated {
        source,
        destination,
        source_port: get16(bytes, outer.transport_offset),
        vni: vxlan.vni(),
        ecn,
        reserved_bits_are_zero: vxlan.reserved_bits_are_zero(),
        offset: frame_offset,
        frame: vxlan.frame(),
        vnet: inner_vnet(vnet, frame_offset, outer_is_partial)?,
    })
}

/// Datagrams of one length that the kernel has merged without knowledge of VXLAN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// Underlay address of the remote end.
    pub source: IpAddr,
    /// The outer ECN bits, equal for all datagrams.
    pub ecn: Ecn,
    /// Offsets of their payloads from the start of the outer frame, bytes.
    pub payload: Range<usize>,
    /// Length of each payload except the last one, which may be shorter.
    pub size: usize,
}

/// Returns the datagrams that were merged into a frame of the underlay, if its vnet header
/// announces a UDP GSO packet that is not inside a tunnel. Otherwise returns `None`; use [`frame`]
/// then.
///
/// Checksums are not verified, because they were when the datagrams were merged.
///
/// # Errors
/// See [`DecapError`].
pub fn merged(bytes: &[u8], vnet: &VnetHdr, port: u16) -> Result<Option<Merged>, DecapError> {
    // A size of 0 cannot be segmented; `frame` then refuses it as `OuterGso`.
    if vnet.gso_type != gso_type::UDP_L4 || vnet.gso_size == 0 {
        return Ok(None);
    }
    let Outer { headers, source, ecn, .. } = Outer::parse(bytes, port)?;
    let payload = headers.payload_offset..headers.end;
    Ok(Some(Merged { source, ecn, payload, size: vnet.gso_size.into() }))
}

/// The validated outer headers.
struct Outer {
    headers: Headers,
    source: IpAddr,
    destination: IpAddr,
    ecn: Ecn,
}

impl Outer {
    fn parse(bytes: &[u8], port: u16) -> Result<Outer, DecapError> {
        let headers = Headers::parse(bytes)?;
        // VXLAN is carried by UDP only.
        if headers.transport != Transport::Udp {
            return Err(Unsupported::Protocol(Protocol::TCP).into());
        }
        let got = get16(bytes, headers.transport_offset + 2);
        // The packet belongs to another service.
        if got != port {
            return Err(DecapError::Port { wanted: port, got });
        }
        let network = bytes.get(headers.network_offset..).unwrap_or(&[]);
        let (source, destination, tos) = match headers.network {
            Network::Ipv4 => {
                let ip = Ipv4::parse(network).map_err(Unsupported::from)?;
                // A damaged outer header may name a wrong sender.
                if !ip.checksum_is_valid() {
                    return Err(DecapError::HeaderChecksum);
                }
                (ip.source().into(), ip.destination().into(), ip.tos())
            }
            Network::Ipv6 => {
                let ip = Ipv6::parse(network).map_err(Unsupported::from)?;
                (ip.source().into(), ip.destination().into(), ip.traffic_class())
            }
        };
        Ok(Outer { headers, source, destination, ecn: Ecn::of(tos) })
    }
}

/// Derives the vnet header of the inner frame.
fn inner_vnet(
    vnet: &VnetHdr,
    frame_offset: usize,
    outer_is_partial: bool,
) -> Result<VnetHdr, DecapError> {
    let tunnel = gso_type::UDP_TUNNEL_IPV4 | gso_type::UDP_TUNNEL_IPV6;
    // The segments are outer UDP packets; `merged` returns their payloads.
    if vnet.gso_type != 0 && vnet.gso_type & tunnel == 0 {
        return Err(DecapError::OuterGso(vnet.gso_type));
    }
    let mut inner = VnetHdr::default();
    // The incomplete checksum belongs to the inner packet, so its position moves with the frame.
    if vnet.needs_csum() && !outer_is_partial {
        let shifted = usize::from(vnet.csum_start).checked_sub(frame_offset);
        let error =
            DecapError::Offset { field: "csum_start", got: vnet.csum_start, frame: frame_offset };
        inner.csum_start = shifted.ok_or(error)? as u16;
        inner.csum_offset = vnet.csum_offset;
        inner.flags = flags::NEEDS_CSUM;
    }
    if vnet.gso_type != 0 {
        inner.gso_type = vnet.gso_type & !tunnel;
        inner.gso_size = vnet.gso_size;
        // Only a hint, which may be 0 or too small.
        inner.hdr_len = vnet.hdr_len.saturating_sub(frame_offset as u16);
    }
    Ok(inner)
}

/// Applies the outer ECN bits to the IP header of the frame: RFC 6040, section 4.2. The IPv4 header
/// checksum is updated (RFC 1624). Frames without an IP header are not changed.
///
/// Returns what was done. For [`Egress::Drop`], the frame is unchanged.
pub fn apply_ecn(frame: &mut [u8], outer: Ecn) -> Egress {
    // As the kernel's `IP_ECN_decapsulate`: without an IP header there is nothing to mark and no
    // reason to drop.
    let Some((at, ether_type)) = network(frame) else { return Egress::Forward(Ecn::NotEct) };
    let inner = match ether_type {
        EtherType::IPV4 => Ecn::of(frame[at + 1]),
        _ => Ecn::of(frame[at + 1] >> 4),
    };
    let fate = decapsulate(inner, outer);
    let (Egress::Forward(ecn) | Egress::ForwardUnexpected(ecn)) = fate else { return fate };
    if ecn != inner {
        let old = get16(frame, at);
        if ether_type == EtherType::IPV4 {
            frame[at + 1] = ecn.on(frame[at + 1]);
            let checksum = replace_word(get16(frame, at + 10), old, get16(frame, at));
            put16(frame, at + 10, checksum);
        } else {
            frame[at + 1] = frame[at + 1] & 0xcf | ecn.bits() << 4;
        }
    }
    fate
}

/// Returns the offset and type of a frame's IP header.
fn network(frame: &[u8]) -> Option<(usize, EtherType)> {
    let link = Ethernet::parse(frame).ok()?;
    let (mut ether_type, mut rest) = (link.ether_type(), link.payload());
    while ether_type.is_vlan() {
        let tag = Vlan::parse(rest).ok()?;
        (ether_type, rest) = (tag.ether_type(), tag.payload());
    }
    let known = match ether_type {
        EtherType::IPV4 => Ipv4::parse(rest).is_ok(),
        EtherType::IPV6 => Ipv6::parse(rest).is_ok(),
        // Other protocols have no ECN field.
        _ => false,
    };
    known.then(|| (frame.len() - rest.len(), ether_type))
}

/// Finds an unfinished transport checksum: a field that only holds the sum of the pseudo-header.
/// Packets that never left the machine (veth, between VMs) have it, and a plain UDP socket does not
/// report it.
///
/// Returns the start of the checksum's coverage and the offset of its field from there, in the
/// format of `NEEDS_CSUM`. One complete checksum in 65,536 has the same value by chance. Completing
/// it again would corrupt it, so the result is `None` if the checksum is valid as it is.
pub fn unfinished_checksum(frame: &[u8]) -> Option<(u16, u16)> {
    let headers = Headers::parse(frame).ok()?;
    let length = headers.end - headers.transport_offset;
    let field = get16(frame, headers.checksum_at());
    let pseudo: Sum = headers.pseudo_header(frame, length);
    // The field does not hold just the sum of the pseudo-header, so the checksum is complete.
    if field != pseudo.value() || headers.checksum_is_valid(frame) {
        return None;
    }
    Some((headers.transport_offset as u16, headers.transport.checksum_offset() as u16))
}
