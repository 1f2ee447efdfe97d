//! Finds the headers of a frame, from Ethernet to the TCP or UDP payload.
//!
//! It returns offsets instead of views, so that a frame can be changed at these positions.

use crate::checksum::{Sum, pseudo_header_v4, pseudo_header_v6};
use crate::ethernet::{self, EtherType, Ethernet};
use crate::ipv4::{Ipv4, Protocol};
use crate::ipv6::Ipv6;
use crate::tcp::Tcp;
use crate::udp::{self, Udp};
use crate::vlan::{self, Vlan};
use crate::vxlan::{self, Vxlan};
use crate::{ParseError, get16, put16};

/// Maximum number of VLAN tags that are skipped (the kernel's `VLAN_MAX_DEPTH` is 8).
const MAX_TAGS: usize = 2;

/// Network layer of a packet that can be segmented or merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Network {
    /// RFC 791.
    Ipv4,
    /// RFC 8200.
    Ipv6,
}

/// Transport of a packet that can be segmented or merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
}

impl Transport {
    /// Returns the protocol number of the IP header (IANA protocol numbers).
    pub const fn protocol(self) -> Protocol {
        match self {
            Transport::Tcp => Protocol::TCP,
            Transport::Udp => Protocol::UDP,
        }
    }

    /// Returns the offset of the checksum in the transport header, in bytes.
    pub const fn checksum_offset(self) -> usize {
        match self {
            Transport::Tcp => crate::tcp::CHECKSUM_OFFSET,
            Transport::Udp => udp::CHECKSUM_OFFSET,
        }
    }
}

/// Why no TCP or UDP headers can be found in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unsupported {
    /// A header is malformed.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// Neither IPv4 nor IPv6.
    #[error("EtherType {:#06x} is neither IPv4 nor IPv6", .0.0)]
    EtherType(EtherType),
    /// There are too many VLAN tags.
    #[error("more than {MAX_TAGS} VLAN tags")]
    Tags,
    /// Neither TCP nor UDP.
    #[error("protocol {} is neither TCP nor UDP", .0.0)]
    Protocol(Protocol),
    /// It is a fragment, without a complete transport header and payload.
    #[error("IP fragment")]
    Fragment,
    /// There is an extension header that the kernel's GSO does not skip.
    #[error("IPv6 extension headers with fragment or authentication header")]
    Extension,
}

/// Offsets of the headers of a TCP or UDP packet, in bytes from the frame's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Headers {
    /// Start of the Ethernet header.
    pub link_offset: usize,
    /// Version of the IP header.
    pub network: Network,
    /// Start of the IP header.
    pub network_offset: usize,
    /// Kind of the transport header.
    pub transport: Transport,
    /// Start of the TCP or UDP header.
    pub transport_offset: usize,
    /// Start of the payload.
    pub payload_offset: usize,
    /// End of the payload according to the IP header's length.
    pub end: usize,
}

impl Headers {
    /// Finds the headers of a frame.
    ///
    /// # Errors
    /// If it is malformed, or not TCP or UDP over IP, see [`Unsupported`].
    pub fn parse(frame: &[u8]) -> Result<Headers, Unsupported> {
        Headers::parse_at(frame, 0)
    }

    /// Finds the headers of a frame inside a frame.
    ///
    /// # Errors
    /// As [`Headers::parse`].
    pub fn parse_at(frame: &[u8], link_offset: usize) -> Result<Headers, Unsupported> {
        let link = frame.get(link_offset..).unwrap_or(&[]);
        let ethernet = Ethernet::parse(link).map_err(|e| e.shifted(link_offset))?;
        let mut at = link_offset + ethernet::HEADER_LEN;
        let (mut ether_type, mut rest) = (ethernet.ether_type(), ethernet.payload());
        let mut tags = 0;
        while ether_type.is_vlan() {
            // The number of tags is bounded: a frame must not consist of tags only.
            if tags == MAX_TAGS {
                return Err(Unsupported::Tags);
            }
            let tag = Vlan::parse(rest).map_err(|e| e.shifted(at))?;
            (ether_type, rest) = (tag.ether_type(), tag.payload());
            at += vlan::TAG_LEN;
            tags += 1;
        }
        let network_offset = at;
        let (network, protocol, transport_offset, body) = match ether_type {
            EtherType::IPV4 => {
                let ip = Ipv4::parse(rest).map_err(|e| e.shifted(at))?;
                // Only the first fragment has the transport header.
                if ip.is_fragment() {
                    return Err(Unsupported::Fragment);
                }
                (Network::Ipv4, ip.protocol(), at + ip.header_len(), ip.payload())
            }
            EtherType::IPV6 => {
                let ip = Ipv6::parse(rest).map_err(|e| e.shifted(at))?;
                let upper = ip.upper_layer().map_err(|e| e.shifted(at))?;
                // Only the first fragment has a transport header, and none has a complete checksum.
                if upper.fragment {
                    return Err(Unsupported::Fragment);
                }
                if upper.opaque_extensions {
                    return Err(Unsupported::Extension);
                }
                let len = crate::ipv6::HEADER_LEN + upper.extensions_len;
                (Network::Ipv6, upper.protocol, at + len, upper.payload)
            }
            // Other protocols are neither segmented nor merged.
            other => return Err(Unsupported::EtherType(other)),
        };
        let (transport, header_len) = match protocol {
            Protocol::TCP => {
                let tcp = Tcp::parse(body).map_err(|e| e.shifted(transport_offset))?;
                (Transport::Tcp, tcp.header_len())
            }
            Protocol::UDP => {
                Udp::parse(body).map_err(|e| e.shifted(transport_offset))?;
                (Transport::Udp, udp::HEADER_LEN)
            }
            // Other protocols are neither segmented nor merged.
            other => return Err(Unsupported::Protocol(other)),
        };
        Ok(Headers {
            link_offset,
            network,
            network_offset,
            transport,
            transport_offset,
            payload_offset: transport_offset + header_len,
            end: transport_offset + body.len(),
        })
    }

    /// Returns the length of the payload according to the IP header.
    pub const fn payload_len(&self) -> usize {
        self.end - self.payload_offset
    }

    /// Returns the offset of the transport checksum, in bytes from the frame's start.
    pub const fn checksum_at(&self) -> usize {
        self.transport_offset + self.transport.checksum_offset()
    }

    /// Sums the pseudo-header for `length` bytes of transport header and payload. The headers must
    /// have been parsed from `frame`.
    pub(crate) fn pseudo_header(&self, frame: &[u8], length: usize) -> Sum {
        let (at, protocol) = (self.network_offset, self.transport.protocol().0);
        match self.network {
            Network::Ipv4 => pseudo_header_v4(
                crate::get32(frame, at + 12).into(),
                crate::get32(frame, at + 16).into(),
                protocol,
                length as u32,
            ),
            Network::Ipv6 => {
                let address = |at| {
                    let mut octets = [0; 16];
                    octets.copy_from_slice(&frame[at..at + 16]);
                    octets.into()
                };
                pseudo_header_v6(address(at + 8), address(at + 24), protocol, length as u32)
            }
        }
    }

    /// Returns whether the transport checksum is valid, or absent (UDP only).
    pub(crate) fn checksum_is_valid(&self, frame: &[u8]) -> bool {
        let absent = self.transport == Transport::Udp && get16(frame, self.checksum_at()) == 0;
        let covered = &frame[self.transport_offset..self.end];
        absent || self.pseudo_header(frame, covered.len()).plus_bytes(covered).is_valid()
    }

    /// Sets the length in the IP header (and, for IPv4, ID and checksum) for a packet that ends at
    /// `end`.
    pub(crate) fn set_network_length(&self, frame: &mut [u8], end: usize, id: Option<u16>) {
        let at = self.network_offset;
        match self.network {
            Network::Ipv4 => {
                put16(frame, at + 2, (end - at) as u16);
                if let Some(id) = id {
                    put16(frame, at + 4, id);
                }
                put16(frame, at + 10, 0);
                let header_len = usize::from(frame[at] & 0xf) * 4;
                let checksum = Sum::of(&frame[at..at + header_len]).checksum();
                put16(frame, at + 10, checksum);
            }
            Network::Ipv6 => put16(frame, at + 4, (end - at - crate::ipv6::HEADER_LEN) as u16),
        }
    }
}

/// The headers of a packet, and those of the tunnel around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet {
    /// Headers of the VXLAN tunnel's UDP packet, if there is one.
    pub outer: Option<Headers>,
    /// Headers of the packet itself.
    pub inner: Headers,
}

impl Packet {
    /// Finds the headers of a frame, without looking for a tunnel.
    ///
    /// # Errors
    /// As [`Headers::parse`].
    pub fn parse(frame: &[u8]) -> Result<Packet, Unsupported> {
        Ok(Packet { outer: None, inner: Headers::parse(frame)? })
    }

    /// Finds the headers of a UDP packet, a VXLAN header and the inner frame.
    ///
    /// # Errors
    /// As [`Headers::parse`], for both, and if the VXLAN header is invalid.
    pub fn parse_vxlan(frame: &[u8]) -> Result<Packet, Unsupported> {
        Packet::parse_inside(frame, Headers::parse(frame)?)
    }

    /// [`Packet::parse_vxlan`] for a frame whose outer headers are known.
    pub(crate) fn parse_inside(frame: &[u8], outer: Headers) -> Result<Packet, Unsupported> {
        // Only UDP tunnels are known.
        if outer.transport != Transport::Udp {
            return Err(Unsupported::Protocol(Protocol::TCP));
        }
        let payload = &frame[outer.payload_offset..outer.end];
        Vxlan::parse(payload).map_err(|e| e.shifted(outer.payload_offset))?;
        let link_offset = outer.payload_offset + vxlan::HEADER_LEN;
        let inner = Headers::parse_at(&frame[..outer.end], link_offset)?;
        Ok(Packet { outer: Some(outer), inner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet with tags, IPv4, UDP with four bytes of payload and two of padding.
    fn frame(tags: usize) -> Vec<u8> {
        let mut frame = vec![0; 12];
        for _ in 0..tags {
            frame.extend([0x81, 0, 0, 5]);
        }
        frame.extend([8, 0]);
        frame.extend([0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 1, 0, 2, 0, 12, 0, 0, 1, 2, 3, 4]);
        frame.extend([0, 0]);
        frame
    }

    #[test]
    fn finds_headers_behind_tags_and_payload_before_padding() {
        for tags in 0..=MAX_TAGS {
            let headers = Headers::parse(&frame(tags)).unwrap();
            assert_eq!(headers.network_offset, 14 + 4 * tags);
            assert_eq!(headers.transport_offset, 34 + 4 * tags);
            assert_eq!((headers.payload_len(), headers.end), (4, 46 + 4 * tags));
        }
        assert_eq!(Headers::parse(&frame(MAX_TAGS + 1)), Err(Unsupported::Tags));
    }

    #[test]
    fn errors_tell_the_place_in_the_frame() {
        let mut lying = frame(1);
        lying[18 + 20 + 5] = 99;
        let error = Headers::parse(&lying).unwrap_err();
        assert_eq!(error.to_string(), "UDP at byte 42: expected length of at most 12, got 99");
        let mut other = frame(0);
        other[12..14].copy_from_slice(&[8, 6]);
        let error = Headers::parse(&other).unwrap_err();
        assert_eq!(error.to_string(), "EtherType 0x0806 is neither IPv4 nor IPv6");
        other = frame(0);
        other[23] = 1;
        assert_eq!(Headers::parse(&other), Err(Unsupported::Protocol(Protocol::ICMP)));
        assert!(Packet::parse_vxlan(&frame(0)).is_err());
    }
}
