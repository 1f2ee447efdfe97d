//! Out of a VXLAN tunnel.
//!
//! The outer headers are checked here. Who may send is not: the caller knows which
//! remote ends and which networks there are.

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

/// A frame taken out of its tunnel.
#[derive(Debug, Clone, Copy)]
pub struct Decapsulated<'a> {
    /// Underlay address of the remote end.
    pub source: IpAddr,
    /// This end, or a multicast group.
    pub destination: IpAddr,
    /// The other end's port: its flow's entropy.
    pub source_port: u16,
    /// Network that the frame belongs to.
    pub vni: Vni,
    /// The outer ECN bits, for [`apply_ecn`].
    pub ecn: Ecn,
    /// Whether all reserved bits of the VXLAN header are zero.
    pub reserved_bits_are_zero: bool,
    /// Where the frame begins, in bytes from the outer frame's start.
    pub offset: usize,
    /// The inner Ethernet frame, without outer headers.
    pub frame: &'a [u8],
    /// The vnet header for the frame alone.
    pub vnet: VnetHdr,
}

/// Why a packet is not taken out of its tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DecapError {
    /// The outer headers are malformed or not UDP.
    #[error("outer headers: {0}")]
    Outer(#[from] Unsupported),
    /// Not for the tunnel's port.
    #[error("UDP port: wanted {wanted}, got {got}")]
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
    /// No VXLAN header with a valid VNI.
    #[error(transparent)]
    Vxlan(#[from] ParseError),
    /// An offset of the vnet header lies in the outer headers.
    #[error("{field} {got} is before the inner frame at {frame}")]
    Offset {
        /// The field of the vnet header.
        field: &'static str,
        /// Value of that field.
        got: u16,
        /// Where the inner frame begins.
        frame: usize,
    },
    /// A GSO packet that is not in the tunnel but around it: UDP segments
    /// merged without knowledge of VXLAN.
    #[error("gso_type {0:#04x} on the outer packet: not cut along VXLAN packets")]
    OuterGso(u8),
}

/// A UDP payload, as a socket delivers it: header and frame.
///
/// # Errors
/// When it is shorter than a header or has no valid VNI.
pub fn payload(bytes: &[u8]) -> Result<(Vni, &[u8]), ParseError> {
    let view = Vxlan::parse(bytes)?;
    Ok((view.vni(), view.frame()))
}

/// A whole frame of the underlay with its vnet header.
///
/// The outer UDP checksum is verified, unless it is absent, the vnet header
/// vouches for it, or the packet is a GSO packet (nobody has computed it yet).
///
/// # Errors
/// See [`DecapError`].
pub fn frame<'a>(
    bytes: &'a [u8],
    vnet: &VnetHdr,
    port: u16,
) -> Result<Decapsulated<'a>, DecapError> {
    let Outer { headers: outer, source, destination, ecn } = Outer::parse(bytes, port)?;
    // A partial checksum further in (`csum_start`) leaves the outer one finished.
    let start = usize::from(vnet.csum_start);
    let outer_is_partial = vnet.needs_csum() && start == outer.transport_offset;
    let trusted = vnet.flags & flags::DATA_VALID != 0 || outer_is_partial || vnet.gso_type != 0;
    // The inner checksum being partial, the outer one can be verified only as
    // far as that: its packet has never been on a wire.
    if !trusted && !vnet.needs_csum() && !outer.checksum_is_valid(bytes) {
        return Err(DecapError::Checksum);
    }
    // By the UDP length: what the IP packet has behind it is not part of the datagram.
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
    /// The outer ECN bits, which are those of all.
    pub ecn: Ecn,
    /// Where their payloads are, in bytes from the outer frame's start.
    pub payload: Range<usize>,
    /// Length of each payload but the last, which may be shorter.
    pub size: usize,
}

/// The datagrams that were merged into a frame of the underlay, if its vnet header
/// announces a UDP GSO packet outside of any tunnel. `None` if it does not; then see
/// [`frame`].
///
/// Checksums are not verified: who merged the datagrams has done it.
///
/// # Errors
/// See [`DecapError`].
pub fn merged(bytes: &[u8], vnet: &VnetHdr, port: u16) -> Result<Option<Merged>, DecapError> {
    // With a size of 0 nothing can be cut; `frame` then refuses it as `OuterGso`.
    if vnet.gso_type != gso_type::UDP_L4 || vnet.gso_size == 0 {
        return Ok(None);
    }
    let Outer { headers, source, ecn, .. } = Outer::parse(bytes, port)?;
    let payload = headers.payload_offset..headers.end;
    Ok(Some(Merged { source, ecn, payload, size: vnet.gso_size.into() }))
}

/// The outer headers, checked.
struct Outer {
    headers: Headers,
    source: IpAddr,
    destination: IpAddr,
    ecn: Ecn,
}

impl Outer {
    fn parse(bytes: &[u8], port: u16) -> Result<Outer, DecapError> {
        let headers = Headers::parse(bytes)?;
        if headers.transport != Transport::Udp {
            return Err(Unsupported::Protocol(Protocol::TCP).into());
        }
        let got = get16(bytes, headers.transport_offset + 2);
        if got != port {
            return Err(DecapError::Port { wanted: port, got });
        }
        let network = bytes.get(headers.network_offset..).unwrap_or(&[]);
        let (source, destination, tos) = match headers.network {
            Network::Ipv4 => {
                let ip = Ipv4::parse(network).map_err(Unsupported::from)?;
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

/// What the vnet header says of the inner frame alone.
fn inner_vnet(
    vnet: &VnetHdr,
    frame_offset: usize,
    outer_is_partial: bool,
) -> Result<VnetHdr, DecapError> {
    let tunnel = gso_type::UDP_TUNNEL_IPV4 | gso_type::UDP_TUNNEL_IPV6;
    // The segments are those of the outer UDP packet; `merged` gives their payloads.
    if vnet.gso_type != 0 && vnet.gso_type & tunnel == 0 {
        return Err(DecapError::OuterGso(vnet.gso_type));
    }
    let mut inner = VnetHdr::default();
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
        // A hint, which may be 0 or too small.
        inner.hdr_len = vnet.hdr_len.saturating_sub(frame_offset as u16);
    }
    Ok(inner)
}

/// Carries the outer ECN bits into the frame's IP header: RFC 6040, section 4.2.
/// The IPv4 header checksum is updated (RFC 1624). What is not IP is left alone.
///
/// The answer says what was done; for [`Egress::Drop`] nothing was.
pub fn apply_ecn(frame: &mut [u8], outer: Ecn) -> Egress {
    // As the kernel's `IP_ECN_decapsulate`: without an IP header there is nothing to mark or to
    // drop for.
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

/// Where the IP header of a frame is, and which.
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
        _ => false,
    };
    known.then(|| (frame.len() - rest.len(), ether_type))
}

/// Finds an unfinished transport checksum: a field that holds nothing but the
/// pseudo-header's sum. Packets that never left the machine (veth, between VMs) have it,
/// and a plain UDP socket does not say so.
///
/// Returns where the checksum starts, and its field's offset from there, as `NEEDS_CSUM`
/// wants them. One finished checksum in 65,536 has the same value by chance. Completing
/// it again would corrupt it, so a checksum that verifies as it is gives `None`.
pub fn unfinished_checksum(frame: &[u8]) -> Option<(u16, u16)> {
    let headers = Headers::parse(frame).ok()?;
    let length = headers.end - headers.transport_offset;
    let field = get16(frame, headers.checksum_at());
    let pseudo: Sum = headers.pseudo_header(frame, length);
    if field != pseudo.value() || headers.checksum_is_valid(frame) {
        return None;
    }
    Some((headers.transport_offset as u16, headers.transport.checksum_offset() as u16))
}
