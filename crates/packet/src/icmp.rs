//! ICMP: RFC 792, RFC 1191 (next-hop MTU), RFC 1812 (quoting).

use std::net::Ipv4Addr;

use crate::checksum::Sum;
use crate::error::room;
use crate::ipv4::{self, Ipv4, Ipv4Header, Protocol};
use crate::{EmitError, Layer, ParseError, be16};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 8;

/// Maximum length of an error message with its IPv4 header in bytes: RFC 1812, section 4.3.2.3.
pub const MAX_ERROR_LEN: usize = 576;

/// Content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    /// Echo request (type 8).
    EchoRequest {
        /// Identifier that groups requests (RFC 792).
        id: u16,
        /// Number of the request in its group.
        sequence: u16,
    },
    /// Echo reply (type 0).
    EchoReply {
        /// Identifier that groups requests (RFC 792).
        id: u16,
        /// Number of the request in its group.
        sequence: u16,
    },
    /// Fragmentation needed and DF set (type 3, code 4).
    FragmentationNeeded {
        /// The next hop's MTU in bytes, IPv4 header included; 0 before RFC 1191.
        mtu: u16,
    },
    /// Destination unreachable for another reason (type 3, other codes).
    Unreachable {
        /// Reason, as numbered by RFC 792 and RFC 1812.
        code: u8,
    },
    /// Time exceeded (type 11).
    TimeExceeded {
        /// 0: in transit, 1: in reassembly.
        code: u8,
    },
    /// A message of another type or code.
    Other {
        /// Its type, as IANA numbers it.
        kind: u8,
        /// Its code, whose meaning depends on the type.
        code: u8,
    },
}

impl Message {
    /// Returns whether the payload quotes the packet that caused the message.
    pub const fn is_error(self) -> bool {
        match self {
            Message::FragmentationNeeded { .. }
            | Message::Unreachable { .. }
            | Message::TimeExceeded { .. } => true,
            // Source quench, redirect, parameter problem.
            Message::Other { kind, .. } => matches!(kind, 4 | 5 | 12),
            Message::EchoRequest { .. } | Message::EchoReply { .. } => false,
        }
    }
}

/// A validated view of a message.
#[derive(Debug, Clone, Copy)]
pub struct Icmp<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Icmp<'a> {
    /// Parses an IPv4 payload. The checksum is not verified.
    ///
    /// # Errors
    /// If it is shorter than a header.
    pub fn parse(bytes: &'a [u8]) -> Result<Icmp<'a>, ParseError> {
        match bytes.split_first_chunk() {
            Some((header, payload)) => Ok(Icmp { header, payload }),
            None => Err(ParseError::short(Layer::Icmp, HEADER_LEN, bytes.len())),
        }
    }

    /// Returns type and code with the fields that depend on them.
    pub fn message(&self) -> Message {
        let (high, low) = (be16(self.header, 4), be16(self.header, 6));
        match (self.header[0], self.header[1]) {
            (8, 0) => Message::EchoRequest { id: high, sequence: low },
            (0, 0) => Message::EchoReply { id: high, sequence: low },
            (3, 4) => Message::FragmentationNeeded { mtu: low },
            (3, code) => Message::Unreachable { code },
            (11, code) => Message::TimeExceeded { code },
            (kind, code) => Message::Other { kind, code },
        }
    }

    /// Returns whether the checksum is valid.
    pub fn checksum_is_valid(&self) -> bool {
        Sum::of(self.header).plus_bytes(self.payload).is_valid()
    }

    /// Returns the data of an echo message, or the beginning of the packet that caused an error.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Writes an IPv4 packet that reports to the sender of `original` (an IPv4 packet) that it exceeds
/// the next hop's MTU; returns its length in bytes.
///
/// # Errors
/// If the buffer is too small; [`MAX_ERROR_LEN`] bytes always suffice.
pub fn fragmentation_needed(
    original: &Ipv4<'_>,
    packet: &[u8],
    router: Ipv4Addr,
    mtu: u16,
    buffer: &mut [u8],
) -> Result<usize, EmitError> {
    // If there is less data than the header states, quote what there is.
    let quote = packet.get(..original.total_len()).unwrap_or(packet);
    let quote = &quote[..quote.len().min(MAX_ERROR_LEN - ipv4::HEADER_LEN - HEADER_LEN)];
    let len = ipv4::HEADER_LEN + HEADER_LEN + quote.len();
    let out = room(buffer, Layer::Icmp, len)?;
    let header = Ipv4Header {
        // Network control, as for errors of routers (RFC 1812, section 4.3.2.5).
        tos: 0xc0,
        id: 0,
        dont_fragment: false,
        ttl: 64,
        protocol: Protocol::ICMP,
        source: router,
        destination: original.source(),
    };
    header.emit(&[], HEADER_LEN + quote.len(), out)?;
    let message = &mut out[ipv4::HEADER_LEN..];
    message[..HEADER_LEN].copy_from_slice(&[3, 4, 0, 0, 0, 0, 0, 0]);
    message[6..8].copy_from_slice(&mtu.to_be_bytes());
    message[HEADER_LEN..].copy_from_slice(quote);
    let checksum = Sum::of(message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    Ok(len)
}

/// Returns whether this packet may be answered with an error: RFC 1122, section 3.2.2. ICMP errors,
/// later fragments, and packets from or to a group must not be.
pub fn may_answer_with_error(original: &Ipv4<'_>) -> bool {
    let error = original.protocol() == Protocol::ICMP
        && Icmp::parse(original.payload()).is_ok_and(|icmp| icmp.message().is_error());
    let source = original.source();
    let single = |a: Ipv4Addr| !a.is_multicast() && !a.is_broadcast();
    !error
        && original.fragment_offset() == 0
        && single(source)
        && !source.is_unspecified()
        && !source.is_loopback()
        && single(original.destination())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn original(protocol: Protocol, payload: &[u8]) -> Vec<u8> {
        let header = Ipv4Header {
            tos: 0,
            id: 7,
            dont_fragment: true,
            ttl: 64,
            protocol,
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
        };
        [&header.to_bytes(payload.len()).unwrap()[..], payload].concat()
    }

    #[test]
    fn tells_the_mtu_and_quotes() {
        let packet = original(Protocol::UDP, &[9; 1480]);
        let view = Ipv4::parse(&packet).unwrap();
        assert!(may_answer_with_error(&view));
        let mut out = [0; MAX_ERROR_LEN];
        let len =
            fragmentation_needed(&view, &packet, [10, 0, 0, 254].into(), 1450, &mut out).unwrap();
        assert_eq!(len, MAX_ERROR_LEN);
        let ip = Ipv4::parse(&out[..len]).unwrap();
        assert!(ip.checksum_is_valid());
        assert_eq!(ip.destination(), view.source());
        let icmp = Icmp::parse(ip.payload()).unwrap();
        assert!(icmp.checksum_is_valid());
        assert_eq!(icmp.message(), Message::FragmentationNeeded { mtu: 1450 });
        assert_eq!(icmp.payload(), &packet[..548]);
        let mut wrong = out;
        wrong[len - 1] ^= 1;
        let ip_of_wrong = Ipv4::parse(&wrong[..len]).unwrap();
        assert!(!Icmp::parse(ip_of_wrong.payload()).unwrap().checksum_is_valid());
        assert!(!may_answer_with_error(&ip), "an error about an error");
    }

    /// Data after the packet in its frame (padding to 60 bytes) is not quoted.
    #[test]
    fn padding_is_not_quoted() {
        let packet = original(Protocol::UDP, &[9; 12]);
        let view = Ipv4::parse(&packet).unwrap();
        let padded = [&packet[..], &[0; 14]].concat();
        let mut out = [0; MAX_ERROR_LEN];
        let len =
            fragmentation_needed(&view, &padded, [10, 0, 0, 254].into(), 1450, &mut out).unwrap();
        assert_eq!(len, 20 + 8 + packet.len());
        assert_eq!(out[28..len], packet);
    }

    /// RFC 1122, section 3.2.2.
    #[test]
    fn errors_answer_neither_errors_nor_groups() {
        let answered = |change: &dyn Fn(&mut [u8]), protocol, payload: &[u8]| {
            let mut packet = original(protocol, payload);
            change(&mut packet);
            may_answer_with_error(&Ipv4::parse(&packet).unwrap())
        };
        let source = |a: [u8; 4]| move |p: &mut [u8]| p[12..16].copy_from_slice(&a);
        let destination = |a: [u8; 4]| move |p: &mut [u8]| p[16..20].copy_from_slice(&a);
        let word = |w: u16| move |p: &mut [u8]| p[6..8].copy_from_slice(&w.to_be_bytes());
        let icmp = |kind: u8| [kind, 0, 0, 0, 0, 0, 0, 0];
        assert!(answered(&|_| (), Protocol::ICMP, &icmp(8)), "an echo request");
        for kind in [3, 11] {
            assert!(!answered(&|_| (), Protocol::ICMP, &icmp(kind)), "error {kind}");
            assert!(answered(&|_| (), Protocol::UDP, &icmp(kind)), "not ICMP");
        }
        for from in [[224, 0, 0, 1], [255, 255, 255, 255], [0, 0, 0, 0], [127, 0, 0, 1]] {
            assert!(!answered(&source(from), Protocol::UDP, &[0; 8]), "from {from:?}");
        }
        for to in [[224, 0, 0, 1], [255, 255, 255, 255]] {
            assert!(!answered(&destination(to), Protocol::UDP, &[0; 8]), "to {to:?}");
        }
        assert!(answered(&word(0x2000), Protocol::UDP, &[0; 8]), "the first fragment");
        assert!(!answered(&word(0x0001), Protocol::UDP, &[0; 8]), "a later fragment");
    }

    #[test]
    fn echo_requests_are_distinguished() {
        let icmp = [8, 0, 0, 0, 1, 2, 3, 4];
        let message = Icmp::parse(&icmp).unwrap().message();
        assert_eq!(message, Message::EchoRequest { id: 0x0102, sequence: 0x0304 });
        assert!(!message.is_error());
        assert!(Icmp::parse(&icmp[..7]).is_err());
    }
}
