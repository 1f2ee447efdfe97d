//! IPv4 with options: RFC 791.

use std::net::Ipv4Addr;

use crate::checksum::Sum;
use crate::ecn::Ecn;
use crate::error::room;
use crate::{EmitError, Layer, ParseError, Wanted, be16, be32};

/// Length of a header without options in bytes.
pub const HEADER_LEN: usize = 20;
/// Length of the longest header in bytes.
pub const MAX_HEADER_LEN: usize = 60;

/// Don't Fragment, in the field of flags and fragment offset.
pub(crate) const DF: u16 = 0x4000;
/// More Fragments and the fragment offset: non-zero only in fragments.
pub(crate) const FRAGMENT: u16 = 0x3fff;

/// A protocol number, in IPv4's protocol field and IPv6's next header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP, `IPPROTO_ICMP` (RFC 792).
    pub const ICMP: Protocol = Protocol(1);
    /// TCP, `IPPROTO_TCP` (RFC 9293).
    pub const TCP: Protocol = Protocol(6);
    /// UDP, `IPPROTO_UDP` (RFC 768).
    pub const UDP: Protocol = Protocol(17);
    /// ICMPv6, `IPPROTO_ICMPV6` (RFC 4443).
    pub const ICMPV6: Protocol = Protocol(58);
}

/// A validated view of a packet.
#[derive(Debug, Clone, Copy)]
pub struct Ipv4<'a> {
    header: &'a [u8; HEADER_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Parses a packet. Data after its total length is padding and not part of the view.
    ///
    /// The header checksum is not verified, see [`Ipv4::checksum_is_valid`].
    ///
    /// # Errors
    /// If the version is not 4, the packet is shorter than its lengths state, or the lengths
    /// contradict each other.
    pub fn parse(bytes: &'a [u8]) -> Result<Ipv4<'a>, ParseError> {
        let got = bytes.len();
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(ParseError::short(Layer::Ipv4, HEADER_LEN, got));
        };
        let error = |offset, wanted, got: usize| {
            Err(ParseError::new(Layer::Ipv4, offset, wanted, got as u64))
        };
        let version = usize::from(header[0] >> 4);
        if version != 4 {
            return error(0, Wanted::Value("version", 4), version);
        }
        let header_len = usize::from(header[0] & 0xf) * 4;
        // The header would overlap the payload.
        if header_len < HEADER_LEN {
            return error(0, Wanted::AtLeast("header length", HEADER_LEN as u64), header_len);
        }
        let total_len = usize::from(be16(header, 2));
        if total_len < header_len {
            return error(2, Wanted::AtLeast("total length", header_len as u64), total_len);
        }
        // The packet is truncated. Bytes beyond the total length are padding of the link.
        let Some(body) = rest.get(..total_len - HEADER_LEN) else {
            return error(2, Wanted::AtMost("total length", got as u64), total_len);
        };
        // header_len <= total_len, so the split is inside the body.
        let Some((options, payload)) = body.split_at_checked(header_len - HEADER_LEN) else {
            return error(0, Wanted::AtMost("header length", total_len as u64), header_len);
        };
        Ok(Ipv4 { header, options, payload })
    }

    /// Returns the length of the header with options in bytes.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Returns the length of header and payload in bytes.
    pub fn total_len(&self) -> usize {
        self.header_len() + self.payload.len()
    }

    /// Returns DSCP and ECN in one octet.
    pub fn tos(&self) -> u8 {
        self.header[1]
    }

    /// Returns the ECN bits of the TOS octet (RFC 3168).
    pub fn ecn(&self) -> Ecn {
        Ecn::of(self.tos())
    }

    /// Returns the identification, which is the same in all fragments of a packet.
    pub fn id(&self) -> u16 {
        be16(self.header, 4)
    }

    /// Returns whether routers must not fragment the packet (flag DF).
    pub fn dont_fragment(&self) -> bool {
        be16(self.header, 6) & DF != 0
    }

    /// Returns whether more fragments follow.
    pub fn more_fragments(&self) -> bool {
        be16(self.header, 6) & 0x2000 != 0
    }

    /// Returns the offset of this fragment in the whole payload, in bytes.
    pub fn fragment_offset(&self) -> usize {
        usize::from(be16(self.header, 6) & 0x1fff) * 8
    }

    /// Returns whether this is a fragment.
    pub fn is_fragment(&self) -> bool {
        be16(self.header, 6) & FRAGMENT != 0
    }

    /// Returns the time to live: the number of routers that may still forward the packet.
    pub fn ttl(&self) -> u8 {
        self.header[8]
    }

    /// Returns the protocol of the payload.
    pub fn protocol(&self) -> Protocol {
        Protocol(self.header[9])
    }

    /// Returns whether the header checksum is valid.
    pub fn checksum_is_valid(&self) -> bool {
        Sum::of(self.header).plus_bytes(self.options).is_valid()
    }

    /// Returns the source address (RFC 791, section 3.1).
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(be32(self.header, 12))
    }

    /// Returns the destination address (RFC 791, section 3.1).
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(be32(self.header, 16))
    }

    /// Returns the options with their padding.
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// Returns the payload according to the header's lengths.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Sums the pseudo-header for the whole payload.
    pub fn pseudo_header(&self) -> Sum {
        let length = self.payload.len() as u32;
        crate::checksum::pseudo_header_v4(
            self.source(),
            self.destination(),
            self.protocol().0,
            length,
        )
    }
}

/// Fields of a header to be written. It cannot describe a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Header {
    /// DSCP and ECN in one octet.
    pub tos: u8,
    /// Identification, which is the same in all fragments of a packet.
    pub id: u16,
    /// Whether routers must not fragment the packet (flag DF).
    pub dont_fragment: bool,
    /// Time to live: the number of routers that may still forward the packet.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: Protocol,
    /// Source address (RFC 791, section 3.1).
    pub source: Ipv4Addr,
    /// Destination address (RFC 791, section 3.1).
    pub destination: Ipv4Addr,
}

impl Ipv4Header {
    /// Returns a header without options, for a payload of that length in bytes.
    ///
    /// # Errors
    /// If header and payload exceed 65,535 bytes.
    pub fn to_bytes(&self, payload_len: usize) -> Result<[u8; HEADER_LEN], EmitError> {
        let mut bytes = [0; HEADER_LEN];
        self.emit(&[], payload_len, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes a header with options; returns its length in bytes.
    ///
    /// # Errors
    /// If options are not whole words or longer than 40 bytes, if header and payload exceed 65,535
    /// bytes, or if the buffer is too small.
    pub fn emit(
        &self,
        options: &[u8],
        payload_len: usize,
        buffer: &mut [u8],
    ) -> Result<usize, EmitError> {
        const LAYER: Layer = Layer::Ipv4;
        // The header length counts words of four bytes.
        if !options.len().is_multiple_of(4) {
            return Err(EmitError::Options { layer: LAYER, got: options.len() });
        }
        let header_len = HEADER_LEN + options.len();
        // The field for the header length has 4 bits.
        if header_len > MAX_HEADER_LEN {
            return Err(EmitError::Length { layer: LAYER, limit: MAX_HEADER_LEN, got: header_len });
        }
        let total_len = header_len.saturating_add(payload_len);
        // The field for the total length has 16 bits.
        let Ok(total) = u16::try_from(total_len) else {
            return Err(EmitError::Length { layer: LAYER, limit: 0xffff, got: total_len });
        };
        let header = room(buffer, LAYER, header_len)?;
        header[0] = 0x40 | (header_len / 4) as u8;
        header[1] = self.tos;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[4..6].copy_from_slice(&self.id.to_be_bytes());
        let flags = if self.dont_fragment { DF } else { 0 };
        header[6..8].copy_from_slice(&flags.to_be_bytes());
        header[8] = self.ttl;
        header[9] = self.protocol.0;
        header[10..12].fill(0);
        header[12..16].copy_from_slice(&self.source.octets());
        header[16..20].copy_from_slice(&self.destination.octets());
        header[20..].copy_from_slice(options);
        let checksum = Sum::of(header).checksum();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        Ok(header_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Ipv4Header = Ipv4Header {
        tos: 0xb9,
        id: 0x1234,
        dont_fragment: true,
        ttl: 63,
        protocol: Protocol::UDP,
        source: Ipv4Addr::new(10, 1, 2, 3),
        destination: Ipv4Addr::new(10, 4, 5, 6),
    };

    #[test]
    fn written_and_viewed_with_options() {
        let mut bytes = [0; 64];
        let len = HEADER.emit(&[1, 1, 1, 0], 8, &mut bytes).unwrap();
        assert_eq!(len, 24);
        let view = Ipv4::parse(&bytes).unwrap();
        assert!(view.checksum_is_valid());
        assert_eq!((view.header_len(), view.total_len(), view.payload().len()), (24, 32, 8));
        assert_eq!((view.tos(), view.id(), view.ttl()), (0xb9, 0x1234, 63));
        assert_eq!(view.ecn(), Ecn::Ect1);
        assert!(view.dont_fragment() && !view.is_fragment());
        assert_eq!((view.source(), view.destination()), (HEADER.source, HEADER.destination));
        assert_eq!(view.options(), [1, 1, 1, 0]);
    }

    /// RFC 791, section 3.1: reserved, DF and MF are bits 0 to 2, followed by the offset in units
    /// of eight bytes.
    #[test]
    fn flags_and_offset_share_a_word() {
        for (word, dont, more, offset, fragment) in [
            (0x0000, false, false, 0, false),
            (0x4000, true, false, 0, false),
            (0x2000, false, true, 0, true),
            (0x6000, true, true, 0, true),
            (0x0001, false, false, 8, true),
            (0x1fff, false, false, 65_528, true),
            (0x20b9, false, true, 1480, true),
            (0x8000, false, false, 0, false),
        ] {
            let mut bytes = HEADER.to_bytes(0).unwrap();
            bytes[6..8].copy_from_slice(&u16::to_be_bytes(word));
            let view = Ipv4::parse(&bytes).unwrap();
            assert_eq!((view.dont_fragment(), view.more_fragments()), (dont, more), "{word:#06x}");
            assert_eq!((view.fragment_offset(), view.is_fragment()), (offset, fragment));
        }
    }

    #[test]
    fn each_contradiction_is_named() {
        let good = HEADER.to_bytes(0).unwrap();
        for (at, value, wanted) in [
            (0, 0x65, "IPv4 at byte 0: expected version 4, got 6"),
            (0, 0x44, "IPv4 at byte 0: expected header length of at least 20, got 16"),
            (0, 0x46, "IPv4 at byte 2: expected total length of at least 24, got 20"),
            (3, 0x15, "IPv4 at byte 2: expected total length of at most 20, got 21"),
            (3, 0x13, "IPv4 at byte 2: expected total length of at least 20, got 19"),
        ] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Ipv4::parse(&bytes).unwrap_err().to_string(), wanted);
        }
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        assert!(HEADER.to_bytes(65_516).is_err());
        assert!(HEADER.to_bytes(65_515).is_ok());
        assert!(HEADER.to_bytes(usize::MAX).is_err());
        assert!(HEADER.emit(&[0; 3], 0, &mut [0; 64]).is_err());
        assert!(HEADER.emit(&[0; 44], 0, &mut [0; 80]).is_err());
        // The four bits of the header length allow at most 15 words.
        let mut longest = [0; 60];
        assert_eq!(HEADER.emit(&[1; 40], 0, &mut longest), Ok(60));
        assert_eq!(longest[0], 0x4f);
        assert_eq!(Ipv4::parse(&longest).unwrap().options(), [1; 40]);
        assert!(HEADER.emit(&[], 0, &mut [0; 19]).is_err());
    }
}
