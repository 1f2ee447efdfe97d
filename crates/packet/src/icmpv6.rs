//! ICMPv6: RFC 4443, with the neighbour discovery of RFC 4861.

use std::net::Ipv6Addr;

use crate::checksum::pseudo_header_v6;
use crate::error::room;
use crate::ethernet::MacAddr;
use crate::ipv4::Protocol;
use crate::ipv6::{self, Ipv6, Ipv6Header};
use crate::{EmitError, Layer, ParseError, be16, be32};

/// Length of a header in bytes, including the first four bytes of the body.
pub const HEADER_LEN: usize = 8;

/// Maximum length of an error message with its IPv6 header in bytes: the minimum MTU (RFC 4443,
/// section 2.4 (c)).
pub const MAX_ERROR_LEN: usize = 1280;

/// Length of a neighbour advertisement with its IPv6 header in bytes.
pub const ADVERTISEMENT_LEN: usize = ipv6::HEADER_LEN + HEADER_LEN + 16 + 8;

/// Content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    /// Echo request (type 128).
    EchoRequest {
        /// Identifier that groups requests (RFC 4443).
        id: u16,
        /// Number of the request in its group.
        sequence: u16,
    },
    /// Echo reply (type 129).
    EchoReply {
        /// Identifier that groups requests (RFC 4443).
        id: u16,
        /// Number of the request in its group.
        sequence: u16,
    },
    /// Packet too big (type 2).
    PacketTooBig {
        /// The next hop's MTU in bytes, IPv6 header included.
        mtu: u32,
    },
    /// Neighbour solicitation (type 135): who has this address?
    NeighborSolicitation {
        /// The requested address.
        target: Ipv6Addr,
        /// The requester's hardware address; absent in duplicate address detection.
        source: Option<MacAddr>,
    },
    /// Neighbour advertisement (type 136): the answer.
    NeighborAdvertisement {
        /// The address that the message is about.
        target: Ipv6Addr,
        /// The hardware address of its owner.
        link: Option<MacAddr>,
        /// The R, S and O flags.
        flags: Advertised,
    },
    /// A message of another type or code.
    Other {
        /// The type; types below 128 are errors.
        kind: u8,
        /// Its code, whose meaning depends on the type.
        code: u8,
    },
}

impl Message {
    /// Returns whether the payload quotes the packet that caused the message.
    pub const fn is_error(self) -> bool {
        match self {
            Message::PacketTooBig { .. } => true,
            // RFC 4443: the types of errors have a high bit of zero.
            Message::Other { kind, .. } => kind < 128,
            _ => false,
        }
    }
}

/// A validated view of a message.
#[derive(Debug, Clone, Copy)]
pub struct Icmpv6<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Icmpv6<'a> {
    /// Parses an IPv6 payload. The checksum is not verified.
    ///
    /// # Errors
    /// If it is shorter than a header.
    pub fn parse(bytes: &'a [u8]) -> Result<Icmpv6<'a>, ParseError> {
        match bytes.split_first_chunk() {
            Some((header, payload)) => Ok(Icmpv6 { header, payload }),
            None => Err(ParseError::short(Layer::Icmpv6, HEADER_LEN, bytes.len())),
        }
    }

    /// Returns the content. A neighbour message without a complete target is [`Message::Other`].
    pub fn message(&self) -> Message {
        let (high, low) = (be16(self.header, 4), be16(self.header, 6));
        let (kind, code) = (self.header[0], self.header[1]);
        match (kind, self.payload.split_first_chunk::<16>()) {
            (128, _) => Message::EchoRequest { id: high, sequence: low },
            (129, _) => Message::EchoReply { id: high, sequence: low },
            (2, _) => Message::PacketTooBig { mtu: be32(self.header, 4) },
            (135, Some((target, options))) => Message::NeighborSolicitation {
                target: (*target).into(),
                source: link_address(options, 1),
            },
            (136, Some((target, options))) => Message::NeighborAdvertisement {
                target: (*target).into(),
                link: link_address(options, 2),
                flags: Advertised(self.header[4] >> 5),
            },
            _ => Message::Other { kind, code },
        }
    }

    /// Returns whether the checksum is valid, for a packet with that header.
    pub fn checksum_is_valid(&self, ip: &Ipv6<'_>) -> bool {
        let length = (HEADER_LEN + self.payload.len()) as u32;
        let pseudo = ipv6::pseudo_header(ip, Protocol::ICMPV6, length);
        pseudo.plus_bytes(self.header).plus_bytes(self.payload).is_valid()
    }

    /// Returns the data of an echo message, the beginning of the packet that caused an error, or
    /// target and options of a neighbour message.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Returns the link-layer address option of that type: RFC 4861, section 4.6.1.
fn link_address(mut options: &[u8], kind: u8) -> Option<MacAddr> {
    while let Some((head, _)) = options.split_first_chunk::<2>() {
        // A length of 0 is malformed and would cause an endless loop.
        let len = usize::from(head[1]) * 8;
        let option = options.get(..len).filter(|option| !option.is_empty())?;
        if head[0] == kind && len == 8 {
            return option[2..].first_chunk::<6>().map(|mac| MacAddr(*mac));
        }
        options = options.get(len..)?;
    }
    None
}

/// Writes an IPv6 packet with a message. `fill` writes everything after the four bytes of type,
/// code and checksum.
fn emit(
    header: Ipv6Header,
    (kind, code): (u8, u8),
    message_len: usize,
    buffer: &mut [u8],
    fill: impl FnOnce(&mut [u8]),
) -> Result<usize, EmitError> {
    let len = ipv6::HEADER_LEN + message_len;
    let out = room(buffer, Layer::Icmpv6, len)?;
    let (ip, message) = out.split_at_mut(ipv6::HEADER_LEN);
    ip.copy_from_slice(&header.to_bytes(message_len)?);
    message[..4].copy_from_slice(&[kind, code, 0, 0]);
    fill(&mut message[4..]);
    let protocol = Protocol::ICMPV6.0;
    let pseudo = pseudo_header_v6(header.source, header.destination, protocol, message_len as u32);
    let checksum = pseudo.plus_bytes(message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    Ok(len)
}

/// Writes an IPv6 packet that reports to the sender of `original` (whose bytes are `packet`) that
/// it exceeds the next hop's MTU; returns its length in bytes.
///
/// # Errors
/// If the buffer is too small; [`MAX_ERROR_LEN`] bytes always suffice.
pub fn packet_too_big(
    original: &Ipv6<'_>,
    packet: &[u8],
    router: Ipv6Addr,
    mtu: u32,
    buffer: &mut [u8],
) -> Result<usize, EmitError> {
    // If there is less data than the header states, quote what there is.
    let quote = packet.get(..ipv6::HEADER_LEN + original.payload().len()).unwrap_or(packet);
    let quote = &quote[..quote.len().min(MAX_ERROR_LEN - ipv6::HEADER_LEN - HEADER_LEN)];
    let header = Ipv6Header {
        traffic_class: 0,
        flow_label: 0,
        next_header: Protocol::ICMPV6,
        hop_limit: 64,
        source: router,
        destination: original.source(),
    };
    emit(header, (2, 0), HEADER_LEN + quote.len(), buffer, |body| {
        body[..4].copy_from_slice(&mtu.to_be_bytes());
        body[4..].copy_from_slice(quote);
    })
}

/// The flags of a neighbour advertisement; R is the highest of the three bits: RFC 4861, section
/// 4.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Advertised(pub u8);

impl Advertised {
    /// O: it overrides a known address.
    pub const OVERRIDE: Advertised = Advertised(1);
    /// S: it answers a solicitation.
    pub const SOLICITED: Advertised = Advertised(2);
    /// R: the sender is a router.
    pub const ROUTER: Advertised = Advertised(4);

    /// Returns whether all flags of `other` are set.
    pub const fn contains(self, other: Advertised) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these flags, with those of `other` added if `set`.
    #[must_use]
    pub const fn with(self, other: Advertised, set: bool) -> Advertised {
        Advertised(if set { self.0 | other.0 } else { self.0 })
    }
}

/// Returns the solicited-node multicast group of an address: RFC 4291, section 2.7.1.
pub fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    let low = u16::from_be_bytes([b, c]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low)
}

/// Writes a neighbour advertisement: an IPv6 packet in which `owner` answers `asker` that it has
/// the address `target`. Returns its length in bytes ([`ADVERTISEMENT_LEN`]).
///
/// # Errors
/// If the buffer is too small.
pub fn neighbor_advertisement(
    target: Ipv6Addr,
    owner: MacAddr,
    asker: Ipv6Addr,
    flags: Advertised,
    buffer: &mut [u8],
) -> Result<usize, EmitError> {
    let header = Ipv6Header {
        traffic_class: 0,
        flow_label: 0,
        next_header: Protocol::ICMPV6,
        // RFC 4861, section 7.1.2: receivers discard smaller values.
        hop_limit: 255,
        source: target,
        destination: asker,
    };
    emit(header, (136, 0), HEADER_LEN + 24, buffer, |body| {
        body[..4].copy_from_slice(&[flags.0 << 5, 0, 0, 0]);
        body[4..20].copy_from_slice(&target.octets());
        body[20..22].copy_from_slice(&[2, 1]);
        body[22..28].copy_from_slice(&owner.0);
    })
}

/// ICMPv6 Redirect (RFC 4861, section 4.5).
const REDIRECT: u8 = 137;

/// Returns whether this packet may be answered with an error: RFC 4443, section 2.4 (e). Only
/// Packet Too Big may answer a packet to a group.
pub fn may_answer_with_error(original: &Ipv6<'_>, too_big: bool) -> bool {
    // If the headers cannot be parsed, the packet may be an ICMPv6 error, which must not be
    // answered with another one.
    let Ok(upper) = original.upper_layer() else { return false };
    let error = upper.protocol == Protocol::ICMPV6
        && Icmpv6::parse(upper.payload).is_ok_and(|icmp| match icmp.message() {
            Message::Other { kind: REDIRECT, .. } => true,
            message => message.is_error(),
        });
    let source = original.source();
    !error
        && !upper.later_fragment
        && !source.is_multicast()
        && !source.is_unspecified()
        && (too_big || !original.destination().is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

    #[test]
    fn a_flag_that_is_set_stays_set() {
        let both = Advertised::ROUTER.with(Advertised::OVERRIDE, true);
        assert!(both.contains(Advertised::ROUTER) && both.contains(Advertised::OVERRIDE));
        assert_eq!(both.with(Advertised::ROUTER, true), both);
        assert_eq!(both.with(Advertised::SOLICITED, false), both);
        assert!(!both.contains(Advertised::SOLICITED));
    }

    #[test]
    fn tells_the_mtu_and_quotes() {
        let header = Ipv6Header {
            traffic_class: 0,
            flow_label: 1,
            next_header: Protocol::UDP,
            hop_limit: 64,
            source: A,
            destination: B,
        };
        let packet = [&header.to_bytes(1460).unwrap()[..], &[9; 1460]].concat();
        let view = Ipv6::parse(&packet).unwrap();
        assert!(may_answer_with_error(&view, true));
        let mut out = [0; MAX_ERROR_LEN];
        let len = packet_too_big(&view, &packet, B, 1430, &mut out).unwrap();
        assert_eq!(len, MAX_ERROR_LEN);
        let ip = Ipv6::parse(&out).unwrap();
        let icmp = Icmpv6::parse(ip.payload()).unwrap();
        assert!(icmp.checksum_is_valid(&ip));
        assert_eq!(icmp.message(), Message::PacketTooBig { mtu: 1430 });
        assert_eq!(icmp.payload(), &packet[..1232]);
        let mut wrong = out;
        wrong[len - 1] ^= 1;
        let ip_of_wrong = Ipv6::parse(&wrong).unwrap();
        let wrong = Icmpv6::parse(ip_of_wrong.payload()).unwrap();
        assert!(!wrong.checksum_is_valid(&ip_of_wrong));
        // Data after the packet in its frame is not quoted.
        let short = [&header.to_bytes(9).unwrap()[..], &[9; 9]].concat();
        let padded = [&short[..], &[0; 11]].concat();
        let view = Ipv6::parse(&padded).unwrap();
        let len = packet_too_big(&view, &padded, B, 1430, &mut [0; MAX_ERROR_LEN]).unwrap();
        assert_eq!(len, 40 + 8 + short.len());
        assert!(!may_answer_with_error(&ip, true), "an error about an error");
    }

    /// RFC 4443, section 2.1: types 0 to 127 are errors, 128 to 255 are not.
    #[test]
    fn the_type_tells_errors() {
        for (kind, error) in
            [(1, true), (3, true), (4, true), (127, true), (128, false), (255, false)]
        {
            assert_eq!(Message::Other { kind, code: 0 }.is_error(), error, "{kind}");
        }
        assert!(Message::PacketTooBig { mtu: 1280 }.is_error());
    }

    /// RFC 4443, section 2.4 (e).
    #[test]
    fn errors_answer_neither_errors_nor_groups() {
        let all: Ipv6Addr = "ff02::1".parse().unwrap();
        let answered = |next_header, source, destination, payload: &[u8], too_big| {
            let header = Ipv6Header {
                traffic_class: 0,
                flow_label: 0,
                next_header: Protocol(next_header),
                hop_limit: 64,
                source,
                destination,
            };
            let packet = [&header.to_bytes(payload.len()).unwrap()[..], payload].concat();
            may_answer_with_error(&Ipv6::parse(&packet).unwrap(), too_big)
        };
        let icmp = |kind| [kind, 0, 0, 0, 0, 0, 0, 0];
        for too_big in [false, true] {
            assert!(answered(17, A, B, &[0; 8], too_big));
            assert!(answered(58, A, B, &icmp(128), too_big), "an echo request");
            assert!(!answered(58, A, B, &icmp(1), too_big), "an error");
            assert!(!answered(58, A, B, &icmp(137), too_big), "a redirect");
            assert!(answered(17, A, B, &icmp(1), too_big), "not ICMPv6");
            assert!(!answered(17, all, B, &[0; 8], too_big), "from a group");
            assert!(!answered(17, Ipv6Addr::UNSPECIFIED, B, &[0; 8], too_big), "from nobody");
            assert_eq!(answered(17, A, all, &[0; 8], too_big), too_big, "to a group");
            let fragment = |offset| [17, 0, 0, offset, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
            assert!(answered(44, A, B, &fragment(1), too_big), "the first fragment");
            assert!(!answered(44, A, B, &fragment(8), too_big), "a later fragment");
            assert!(!answered(0, A, B, &[17, 9, 0, 0, 0, 0, 0, 0], too_big), "malformed");
        }
    }

    #[test]
    fn an_advertisement_answers() {
        let mut out = [0; ADVERTISEMENT_LEN];
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let flags = Advertised::SOLICITED.with(Advertised::OVERRIDE, true);
        let flags = flags.with(Advertised::ROUTER, false);
        assert_eq!(neighbor_advertisement(A, mac, B, flags, &mut out), Ok(ADVERTISEMENT_LEN));
        let ip = Ipv6::parse(&out).unwrap();
        assert_eq!((ip.hop_limit(), ip.destination()), (255, B));
        let icmp = Icmpv6::parse(ip.payload()).unwrap();
        assert!(icmp.checksum_is_valid(&ip));
        let wanted = Message::NeighborAdvertisement { target: A, link: Some(mac), flags };
        assert_eq!(icmp.message(), wanted);
    }

    #[test]
    fn solicitations_go_to_a_group() {
        let target = "fe80::1:2345:6789".parse().unwrap();
        assert_eq!(solicited_node(target).to_string(), "ff02::1:ff45:6789");
    }

    #[test]
    fn options_that_lie_end_the_search() {
        for options in [&[1, 0][..], &[1, 2, 0, 0, 0, 0, 0, 0], &[9, 1, 0, 0, 0, 0, 0, 0, 1]] {
            assert_eq!(link_address(options, 1), None);
        }
        let second = [9, 1, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(link_address(&second, 1), Some(MacAddr([2, 3, 4, 5, 6, 7])));
    }
}
