//! IPv6 and its extension headers: RFC 8200.

use std::net::Ipv6Addr;

use crate::checksum::{Sum, pseudo_header_v6};
use crate::ecn::Ecn;
use crate::ipv4::Protocol;
use crate::{EmitError, Layer, ParseError, Wanted, be16, be32};

/// Length of the fixed header in bytes.
pub const HEADER_LEN: usize = 40;

/// Extension headers. Their first octets are the next header and the length in 8-byte units, not
/// counting the first unit.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// A validated view of a packet.
#[derive(Debug, Clone, Copy)]
pub struct Ipv6<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Ipv6<'a> {
    /// Parses a packet. Data after its payload length is padding and not part of the view.
    ///
    /// A payload length of 0 means an empty payload: jumbograms (RFC 2675) are not supported.
    ///
    /// # Errors
    /// If the version is not 6, or the packet is shorter than its length states.
    pub fn parse(bytes: &'a [u8]) -> Result<Ipv6<'a>, ParseError> {
        let got = bytes.len();
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(ParseError::short(Layer::Ipv6, HEADER_LEN, got));
        };
        let version = u64::from(header[0] >> 4);
        if version != 6 {
            let wanted = Wanted::Value("version", 6);
            return Err(ParseError::new(Layer::Ipv6, 0, wanted, version));
        }
        let payload_len = usize::from(be16(header, 4));
        // The packet is truncated. Bytes beyond the payload length are padding of the link.
        let Some(payload) = rest.get(..payload_len) else {
            let wanted = Wanted::AtMost("payload length", rest.len() as u64);
            return Err(ParseError::new(Layer::Ipv6, 4, wanted, payload_len as u64));
        };
        Ok(Ipv6 { header, payload })
    }

    /// Returns DSCP and ECN in one octet.
    pub fn traffic_class(&self) -> u8 {
        (be16(self.header, 0) >> 4) as u8
    }

    /// Returns the ECN bits of the traffic class (RFC 3168).
    pub fn ecn(&self) -> Ecn {
        Ecn::of(self.traffic_class())
    }

    /// Returns the flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        be32(self.header, 0) & 0x000f_ffff
    }

    /// Returns the protocol of the data after the fixed header.
    pub fn next_header(&self) -> Protocol {
        Protocol(self.header[6])
    }

    /// Returns the hop limit: the number of routers that may still forward the packet (RFC 8200,
    /// section 3).
    pub fn hop_limit(&self) -> u8 {
        self.header[7]
    }

    /// Returns the source address (RFC 8200, section 3).
    pub fn source(&self) -> Ipv6Addr {
        self.address(8)
    }

    /// Returns the destination address. With a routing header, it is not the final one.
    pub fn destination(&self) -> Ipv6Addr {
        self.address(24)
    }

    /// Returns everything after the fixed header, including extension headers.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Skips the extension headers.
    ///
    /// # Errors
    /// If one of them exceeds the payload.
    pub fn upper_layer(&self) -> Result<UpperLayer<'a>, ParseError> {
        let mut upper = UpperLayer {
            protocol: self.next_header(),
            extensions_len: 0,
            fragment: false,
            later_fragment: false,
            opaque_extensions: false,
            payload: self.payload,
        };
        loop {
            let protocol = upper.protocol.0;
            let Some(fixed) = upper.payload.first_chunk::<8>() else {
                // Fewer than 8 bytes are too few for an extension header. The data of an upper
                // layer may be that short.
                if matches!(
                    protocol,
                    HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION
                ) {
                    let error = ParseError::short(Layer::Ipv6Extension, 8, upper.payload.len());
                    return Err(error.shifted(HEADER_LEN + upper.extensions_len));
                }
                return Ok(upper);
            };
            let len = match protocol {
                HOP_BY_HOP | ROUTING | DESTINATION => 8 + usize::from(fixed[1]) * 8,
                // RFC 4302, section 2.2: in 4-byte units, minus two.
                AUTHENTICATION => 8 + usize::from(fixed[1]) * 4,
                FRAGMENT => {
                    // An offset or More Fragments. With neither it is an atomic fragment (RFC
                    // 6946).
                    upper.fragment |= be16(fixed, 2) & 0xfff9 != 0;
                    upper.later_fragment |= be16(fixed, 2) & 0xfff8 != 0;
                    8
                }
                // No extension header: the upper layer starts here.
                _ => return Ok(upper),
            };
            upper.opaque_extensions |= matches!(protocol, FRAGMENT | AUTHENTICATION);
            let Some(rest) = upper.payload.get(len..) else {
                let error = ParseError::short(Layer::Ipv6Extension, len, upper.payload.len());
                return Err(error.shifted(HEADER_LEN + upper.extensions_len));
            };
            upper.protocol = Protocol(fixed[0]);
            upper.extensions_len += len;
            upper.payload = rest;
            if upper.later_fragment {
                // The rest is from the middle of a payload, so there are no further headers.
                return Ok(upper);
            }
        }
    }

    fn address(&self, at: usize) -> Ipv6Addr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.header[at..at + 16]);
        Ipv6Addr::from(octets)
    }
}

/// The data after the extension headers.
#[derive(Debug, Clone, Copy)]
pub struct UpperLayer<'a> {
    /// Protocol of the payload.
    pub protocol: Protocol,
    /// Length of all extension headers in bytes.
    pub extensions_len: usize,
    /// Whether this is a fragment of a larger packet.
    pub fragment: bool,
    /// Whether it is a fragment that begins in the middle of the upper layer's data.
    pub later_fragment: bool,
    /// Whether there is an extension header that the kernel's GSO does not skip (fragment,
    /// authentication).
    pub opaque_extensions: bool,
    /// Data after the extension headers.
    pub payload: &'a [u8],
}

/// Fields of a fixed header to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Header {
    /// DSCP and ECN in one octet.
    pub traffic_class: u8,
    /// Flow label; bits above 20 are ignored.
    pub flow_label: u32,
    /// Protocol of the data that follows.
    pub next_header: Protocol,
    /// Hop limit: the number of routers that may still forward the packet (RFC 8200, section 3).
    pub hop_limit: u8,
    /// Source address (RFC 8200, section 3).
    pub source: Ipv6Addr,
    /// Destination address (RFC 8200, section 3).
    pub destination: Ipv6Addr,
}

impl Ipv6Header {
    /// Returns the header for a payload (including extension headers) of that length in bytes.
    ///
    /// # Errors
    /// If the payload exceeds 65,535 bytes.
    pub fn to_bytes(&self, payload_len: usize) -> Result<[u8; HEADER_LEN], EmitError> {
        // The field for the payload length has 16 bits; a jumbogram needs an option.
        let Ok(length) = u16::try_from(payload_len) else {
            return Err(EmitError::Length { layer: Layer::Ipv6, limit: 0xffff, got: payload_len });
        };
        let mut bytes = [0; HEADER_LEN];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        bytes[6] = self.next_header.0;
        bytes[7] = self.hop_limit;
        bytes[8..24].copy_from_slice(&self.source.octets());
        bytes[24..].copy_from_slice(&self.destination.octets());
        Ok(bytes)
    }
}

/// Sums the pseudo-header of a packet without a routing header, for `length` bytes of `protocol`.
pub fn pseudo_header(ip: &Ipv6<'_>, protocol: Protocol, length: u32) -> Sum {
    pseudo_header_v6(ip.source(), ip.destination(), protocol.0, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Ipv6Header = Ipv6Header {
        traffic_class: 0xb9,
        flow_label: 0xabcde,
        next_header: Protocol::UDP,
        hop_limit: 64,
        source: Ipv6Addr::LOCALHOST,
        destination: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
    };

    fn packet(next_header: u8, payload: &[u8]) -> Vec<u8> {
        let header = Ipv6Header { next_header: Protocol(next_header), ..HEADER };
        let mut bytes = header.to_bytes(payload.len()).unwrap().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn written_and_viewed() {
        let bytes = packet(17, &[1, 2, 3]);
        let view = Ipv6::parse(&bytes).unwrap();
        assert_eq!((view.traffic_class(), view.flow_label()), (0xb9, 0xabcde));
        assert_eq!((view.next_header(), view.hop_limit()), (Protocol::UDP, 64));
        assert_eq!((view.source(), view.destination()), (HEADER.source, HEADER.destination));
        assert_eq!(view.payload(), [1, 2, 3]);
        let upper = view.upper_layer().unwrap();
        assert_eq!((upper.protocol, upper.extensions_len), (Protocol::UDP, 0));
    }

    #[test]
    fn walks_extension_headers() {
        let mut payload = vec![0; 8 + 16 + 3];
        payload[0] = 60; // hop-by-hop, then destination options of 16 bytes, then UDP
        payload[8] = 17;
        payload[9] = 1;
        let bytes = packet(0, &payload);
        let upper = Ipv6::parse(&bytes).unwrap().upper_layer().unwrap();
        assert_eq!((upper.protocol, upper.extensions_len), (Protocol::UDP, 24));
        assert_eq!(upper.payload.len(), 3);
        assert!(!upper.fragment && !upper.opaque_extensions);
    }

    /// RFC 4302, section 2.2: a 96-bit integrity check value makes 24 bytes. The length field is
    /// then 4: six 32-bit words minus two.
    #[test]
    fn an_authentication_header_counts_words_of_four_bytes() {
        let mut payload = vec![0; 24 + 5];
        payload[0] = 6;
        payload[1] = 4;
        let bytes = packet(51, &payload);
        let upper = Ipv6::parse(&bytes).unwrap().upper_layer().unwrap();
        assert_eq!((upper.protocol, upper.extensions_len), (Protocol::TCP, 24));
        assert_eq!(upper.payload.len(), 5);
        assert!(upper.opaque_extensions && !upper.fragment);
    }

    #[test]
    fn tells_fragments() {
        for (word, fragment, later) in [(0u16, false, false), (1, true, false), (8, true, true)] {
            let mut payload = [0; 16];
            payload[0] = 17;
            payload[2..4].copy_from_slice(&word.to_be_bytes());
            let bytes = packet(44, &payload);
            let upper = Ipv6::parse(&bytes).unwrap().upper_layer().unwrap();
            assert_eq!((upper.fragment, upper.later_fragment), (fragment, later), "{word}");
            assert!(upper.opaque_extensions);
        }
    }

    #[test]
    fn an_extension_past_the_end_is_named() {
        let bytes = packet(0, &[17, 9, 0, 0, 0, 0, 0, 0]);
        let error = Ipv6::parse(&bytes).unwrap().upper_layer().unwrap_err();
        let wanted = "IPv6 extension header at byte 40: expected 80 bytes, got 8";
        assert_eq!(error.to_string(), wanted);
        assert!(Ipv6::parse(&packet(60, &[17])).unwrap().upper_layer().is_err());
        // The offset leads to the extension that is too short, not to the first one.
        let first = [60, 0, 0, 0, 0, 0, 0, 0];
        let place = |second: &[u8]| {
            let bytes = packet(0, &[&first[..], second].concat());
            Ipv6::parse(&bytes).unwrap().upper_layer().unwrap_err().to_string()
        };
        let wanted = "IPv6 extension header at byte 48: expected 8 bytes, got 3";
        assert_eq!(place(&[17, 0, 0]), wanted);
        let wanted = "IPv6 extension header at byte 48: expected 16 bytes, got 8";
        assert_eq!(place(&[17, 1, 0, 0, 0, 0, 0, 0]), wanted);
        assert!(Ipv6::parse(&bytes[..47]).is_err());
    }
}
