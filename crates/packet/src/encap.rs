//! Encapsulates frames in VXLAN: outer Ethernet, IP, UDP and VXLAN headers.
//!
//! RFC 7348 (format), RFC 6040 (ECN), RFC 6935 and 6936 (no checksum over IPv6). The headers are
//! returned as separate bytes: the inner frame is neither copied nor changed. GSO packets are not
//! segmented; the returned [`VnetHdr`] tells the kernel or the NIC to do that.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use crate::checksum::{Sum, pseudo_header_v4, pseudo_header_v6};
use crate::ecn::{Ecn, Ingress};
use crate::ethernet::{self, EtherType, Ethernet, EthernetHeader, MacAddr};
use crate::frame::Network;
use crate::ipv4::{self, Ipv4, Ipv4Header, Protocol};
use crate::ipv6::{self, Ipv6, Ipv6Header};
use crate::udp::{self, UdpHeader};
use crate::vlan::Vlan;
use crate::vnet_hdr::{GsoError, VnetHdr, flags, gso_type};
use crate::vxlan::{self, Vni};
use crate::{EmitError, Layer, get16, put16};

/// Length of the outer headers over IPv4 in bytes.
pub const HEADER_LEN_V4: usize =
    ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN + vxlan::HEADER_LEN;
/// Length of the outer headers over IPv6 in bytes.
pub const HEADER_LEN_V6: usize =
    ethernet::HEADER_LEN + ipv6::HEADER_LEN + udp::HEADER_LEN + vxlan::HEADER_LEN;

const _: () = assert!(HEADER_LEN_V4 == 50 && HEADER_LEN_V6 == 70);

/// Underlay addresses of both endpoints of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// The underlay is IPv4.
    V4 {
        /// Underlay address of this endpoint.
        source: Ipv4Addr,
        /// The other endpoint, or a multicast group.
        destination: Ipv4Addr,
    },
    /// The underlay is IPv6.
    V6 {
        /// Underlay address of this endpoint.
        source: Ipv6Addr,
        /// The other endpoint, or a multicast group.
        destination: Ipv6Addr,
    },
}

/// The outer UDP checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OuterChecksum {
    /// The field is zero: no checksum (RFC 7348, section 5).
    #[default]
    Zero,
    /// Computed here. For GSO packets, computed when they are segmented.
    Full,
    /// Left to the kernel or the NIC (`NEEDS_CSUM`) if the vnet header can express that; otherwise
    /// computed here.
    Partial,
}

/// Source of the outer DSCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dscp {
    /// Always this value, 0 to 63; higher bits are ignored.
    Fixed(u8),
    /// The inner packet's DSCP; 0 if it is not IP.
    Inherit,
}

/// A tunnel to one remote endpoint in one network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// Outer hardware addresses: destination (next hop) and source (this NIC).
    pub link: (MacAddr, MacAddr),
    /// Underlay addresses of both endpoints.
    pub addresses: Addresses,
    /// Network that the frames belong to.
    pub vni: Vni,
    /// Destination port, usually [`vxlan::PORT`].
    pub port: u16,
    /// Range of source ports over which flows are spread.
    pub source_ports: RangeInclusive<u16>,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Outer DSCP: a fixed one, or the inner packet's.
    pub dscp: Dscp,
    /// How the outer ECN bits are derived from the inner ones.
    pub ecn: Ingress,
    /// Don't Fragment; IPv4 only.
    pub dont_fragment: bool,
    /// Flow label; IPv6 only.
    pub flow_label: u32,
    /// How the outer UDP checksum is computed.
    pub checksum: OuterChecksum,
}

/// Source ports recommended by RFC 7348.
pub const SOURCE_PORTS: RangeInclusive<u16> = 49152..=65535;

/// Returns the source port for a flow hash: `udp_flow_src_port` of the kernel, which uses the whole
/// range except its last port.
pub fn source_port(hash: u32, ports: &RangeInclusive<u16>) -> u16 {
    // The high bits select the port; mix in the low ones.
    let hash = hash ^ hash << 16;
    let width = u64::from(ports.end().saturating_sub(*ports.start()));
    ports.start().saturating_add(((u64::from(hash) * width) >> 32) as u16)
}

/// Why a frame cannot be encapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EncapError {
    /// It exceeds the outer headers' length fields.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// The vnet header announces an unknown kind of GSO packet.
    #[error(transparent)]
    Gso(#[from] GsoError),
    /// It is in a UDP tunnel already, and the vnet header can describe only one.
    #[error("GSO packet of gso_type {0:#04x} is in a tunnel already")]
    Nested(u8),
    /// The field of its partial checksum is outside the frame.
    #[error("csum_start {start} and csum_offset {offset} are outside a frame of {length} bytes")]
    ChecksumPlace {
        /// `csum_start` of the vnet header, bytes from the frame's start.
        start: u16,
        /// `csum_offset` of the vnet header, bytes from `csum_start`.
        offset: u16,
        /// The frame's length in bytes.
        length: usize,
    },
}

/// The outer headers of one frame.
#[derive(Debug, Clone, Copy)]
pub struct OuterHeaders {
    bytes: [u8; HEADER_LEN_V6],
    len: usize,
    /// The vnet header for outer headers and frame together.
    pub vnet: VnetHdr,
}

impl OuterHeaders {
    /// Returns the bytes that precede the frame.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A prepared [`Tunnel`]: everything that does not change between packets is computed once.
#[derive(Debug, Clone)]
pub struct Encap {
    template: [u8; HEADER_LEN_V6],
    len: usize,
    network_offset: usize,
    network: Network,
    /// Sum of the pseudo-header without the length.
    pseudo: Sum,
    dscp: Dscp,
    ecn: Ingress,
    checksum: OuterChecksum,
    source_ports: RangeInclusive<u16>,
}

impl Encap {
    /// Prepares a tunnel.
    pub fn new(tunnel: &Tunnel) -> Encap {
        let mut template = [0; HEADER_LEN_V6];
        let (destination, source) = tunnel.link;
        let network_offset = ethernet::HEADER_LEN;
        let (network, ether_type, len, pseudo) = match tunnel.addresses {
            Addresses::V4 { source, destination } => {
                let pseudo = pseudo_header_v4(source, destination, Protocol::UDP.0, 0);
                (Network::Ipv4, EtherType::IPV4, HEADER_LEN_V4, pseudo)
            }
            Addresses::V6 { source, destination } => {
                let pseudo = pseudo_header_v6(source, destination, Protocol::UDP.0, 0);
                (Network::Ipv6, EtherType::IPV6, HEADER_LEN_V6, pseudo)
            }
        };
        let link = EthernetHeader { destination, source, ether_type };
        template[..network_offset].copy_from_slice(&link.to_bytes());
        let network_len = match tunnel.addresses {
            Addresses::V4 { source, destination } => {
                let header = Ipv4Header {
                    tos: 0,
                    id: 0,
                    dont_fragment: tunnel.dont_fragment,
                    ttl: tunnel.ttl,
                    protocol: Protocol::UDP,
                    source,
                    destination,
                };
                // A header without options and payload always fits.
                let bytes = header.to_bytes(0).unwrap_or([0; ipv4::HEADER_LEN]);
                template[network_offset..][..bytes.len()].copy_from_slice(&bytes);
                bytes.len()
            }
            Addresses::V6 { source, destination } => {
                let header = Ipv6Header {
                    traffic_class: 0,
                    flow_label: tunnel.flow_label,
                    next_header: Protocol::UDP,
                    hop_limit: tunnel.ttl,
                    source,
                    destination,
                };
                let bytes = header.to_bytes(0).unwrap_or([0; ipv6::HEADER_LEN]);
                template[network_offset..][..bytes.len()].copy_from_slice(&bytes);
                bytes.len()
            }
        };
        let transport = network_offset + network_len;
        let udp = UdpHeader { source_port: 0, destination_port: tunnel.port };
        let udp = udp.to_bytes(0, 0).unwrap_or([0; udp::HEADER_LEN]);
        template[transport..][..udp.len()].copy_from_slice(&udp);
        template[transport + udp.len()..][..vxlan::HEADER_LEN]
            .copy_from_slice(&vxlan::header(tunnel.vni));
        Encap {
            template,
            len,
            network_offset,
            network,
            pseudo,
            dscp: tunnel.dscp,
            ecn: tunnel.ecn,
            checksum: tunnel.checksum,
            source_ports: tunnel.source_ports.clone(),
        }
    }

    /// Returns the length of the outer headers in bytes.
    pub fn header_len(&self) -> usize {
        self.len
    }

    /// Returns the outer headers for a frame with that vnet header and flow hash (see
    /// [`crate::flow::hash`]). `id` is the outer IPv4 ID; a GSO packet uses as many consecutive IDs
    /// as it has segments.
    ///
    /// # Errors
    /// As [`Encap::headers_from`].
    pub fn headers(
        &self,
        frame: &[u8],
        vnet: &VnetHdr,
        hash: u32,
        id: u16,
    ) -> Result<OuterHeaders, EncapError> {
        self.headers_from(frame, vnet, source_port(hash, &self.source_ports), id)
    }

    /// [`Encap::headers`] with a source port instead of a hash.
    ///
    /// # Errors
    /// If frame and outer headers exceed an IP packet's 65,535 bytes, or the vnet header is
    /// invalid, see [`EncapError`].
    pub fn headers_from(
        &self,
        frame: &[u8],
        vnet: &VnetHdr,
        port: u16,
        id: u16,
    ) -> Result<OuterHeaders, EncapError> {
        let transport = self.len - udp::HEADER_LEN - vxlan::HEADER_LEN;
        let total = self.len - self.network_offset + frame.len();
        // The limit of IPv6 excludes the header; use the stricter one for both.
        if total > 0xffff {
            let layer = match self.network {
                Network::Ipv4 => Layer::Ipv4,
                Network::Ipv6 => Layer::Ipv6,
            };
            // The length field of the outer header has 16 bits.
            return Err(EmitError::Length { layer, limit: 0xffff, got: total }.into());
        }
        let mut outer = OuterHeaders { bytes: self.template, len: self.len, vnet: *vnet };
        let bytes = &mut outer.bytes;
        let inner_tos = tos(frame);
        let dscp = match self.dscp {
            Dscp::Fixed(dscp) => dscp << 2,
            Dscp::Inherit => inner_tos.unwrap_or(0),
        };
        // Without an inner IP header, congestion could not be signalled to anyone, so the packet
        // must not be ECN-capable.
        let ecn = inner_tos.map_or(Ecn::NotEct, |tos| self.ecn.outer(Ecn::of(tos)));
        let tos = ecn.on(dscp);
        let at = self.network_offset;
        match self.network {
            Network::Ipv4 => {
                bytes[at + 1] = tos;
                put16(bytes, at + 2, total as u16);
                put16(bytes, at + 4, id);
                // The template's checksum covers a total length of 20 and zeros in the other
                // fields. Update all three words at once (RFC 1624).
                let checksum = Sum::from_value(!get16(bytes, at + 10))
                    .plus_word(u16::from(tos))
                    .minus_word(ipv4::HEADER_LEN as u16)
                    .plus_word(total as u16)
                    .plus_word(id);
                put16(bytes, at + 10, checksum.checksum());
            }
            Network::Ipv6 => {
                bytes[at] |= tos >> 4;
                bytes[at + 1] |= tos << 4;
                put16(bytes, at + 4, (total - ipv6::HEADER_LEN) as u16);
            }
        }
        let length = udp::HEADER_LEN + vxlan::HEADER_LEN + frame.len();
        put16(bytes, transport, port);
        put16(bytes, transport + 4, length as u16);
        let pseudo = self.pseudo.plus_word(length as u16);
        let (checksum, vnet) = self.finish(&bytes[transport..self.len], frame, vnet, pseudo)?;
        put16(bytes, transport + udp::CHECKSUM_OFFSET, checksum);
        outer.vnet = vnet;
        Ok(outer)
    }

    /// Computes the outer checksum field and the vnet header of the complete packet.
    fn finish(
        &self,
        udp_and_vxlan: &[u8],
        frame: &[u8],
        vnet: &VnetHdr,
        pseudo: Sum,
    ) -> Result<(u16, VnetHdr), EncapError> {
        let wanted = self.checksum != OuterChecksum::Zero;
        let shift = self.len as u16;
        let place = EncapError::ChecksumPlace {
            start: vnet.csum_start,
            offset: vnet.csum_offset,
            length: frame.len(),
        };
        let (start, offset) = (usize::from(vnet.csum_start), usize::from(vnet.csum_offset));
        // The checksum field must be inside the frame.
        if vnet.needs_csum() && start + offset + 2 > frame.len() {
            return Err(place);
        }
        if let Some(gso) = vnet.gso()? {
            // The vnet header can describe only one tunnel.
            if gso.tunnel.is_some() {
                return Err(EncapError::Nested(vnet.gso_type));
            }
            let (tunnel, transport) = match self.network {
                Network::Ipv4 => (gso_type::UDP_TUNNEL_IPV4, HEADER_LEN_V4),
                Network::Ipv6 => (gso_type::UDP_TUNNEL_IPV6, HEADER_LEN_V6),
            };
            let transport = transport - udp::HEADER_LEN - vxlan::HEADER_LEN;
            let inner_network = ethernet_len(frame);
            let checksum = if wanted { flags::UDP_TUNNEL_CSUM } else { 0 };
            let shifted = VnetHdr {
                flags: vnet.flags & flags::NEEDS_CSUM | checksum,
                gso_type: vnet.gso_type | tunnel,
                hdr_len: vnet.hdr_len.saturating_add(shift),
                csum_start: vnet.csum_start.saturating_add(shift),
                outer_th_offset: transport as u16,
                inner_nh_offset: (self.len + inner_network) as u16,
                ..*vnet
            };
            // When the packet is segmented, the length is replaced by that of each segment.
            return Ok((if wanted { pseudo.value() } else { 0 }, shifted));
        }
        if vnet.needs_csum() {
            let shifted = VnetHdr {
                flags: flags::NEEDS_CSUM,
                csum_start: vnet.csum_start.saturating_add(shift),
                ..VnetHdr::default()
            };
            let shifted = VnetHdr { csum_offset: vnet.csum_offset, ..shifted };
            // A checksum of 0 means that there is none (RFC 7348).
            if !wanted {
                return Ok((0, shifted));
            }
            // `lco_csum`: once the inner checksum is complete, the data that it covers will sum to
            // the complement of its field's present value.
            let covered = Sum::of(udp_and_vxlan).plus_bytes(frame.get(..start).unwrap_or(&[]));
            let rest = Sum::from_value(!get16(frame, start + offset));
            let rest = if start % 2 == 1 { rest.at_odd_place() } else { rest };
            return Ok((pseudo.plus(covered).plus(rest).udp_checksum(), shifted));
        }
        Ok(match self.checksum {
            OuterChecksum::Zero => (0, VnetHdr::default()),
            OuterChecksum::Full => {
                let sum = pseudo.plus_bytes(udp_and_vxlan).plus_bytes(frame);
                (sum.udp_checksum(), VnetHdr::default())
            }
            OuterChecksum::Partial => {
                let start = self.len - udp::HEADER_LEN - vxlan::HEADER_LEN;
                let partial = VnetHdr {
                    flags: flags::NEEDS_CSUM,
                    csum_start: start as u16,
                    csum_offset: udp::CHECKSUM_OFFSET as u16,
                    ..VnetHdr::default()
                };
                (pseudo.value(), partial)
            }
        })
    }
}

/// Returns the length of the Ethernet header and its tags in bytes.
fn ethernet_len(frame: &[u8]) -> usize {
    let tag = |at: usize| frame.get(at..at + 2).is_some_and(|b| EtherType(get16(b, 0)).is_vlan());
    let mut len = ethernet::HEADER_LEN;
    while tag(len - 2) {
        len += crate::vlan::TAG_LEN;
    }
    len
}

/// Returns the TOS octet or traffic class of an IP packet in a frame; `None` if it is not IP or
/// malformed.
pub fn tos(frame: &[u8]) -> Option<u8> {
    let link = Ethernet::parse(frame).ok()?;
    let (mut ether_type, mut rest) = (link.ether_type(), link.payload());
    while ether_type.is_vlan() {
        let tag = Vlan::parse(rest).ok()?;
        (ether_type, rest) = (tag.ether_type(), tag.payload());
    }
    match ether_type {
        EtherType::IPV4 => Some(Ipv4::parse(rest).ok()?.tos()),
        EtherType::IPV6 => Some(Ipv6::parse(rest).ok()?.traffic_class()),
        // Other protocols have no traffic class to inherit.
        _ => None,
    }
}
