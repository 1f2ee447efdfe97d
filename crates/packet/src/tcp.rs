//! TCP segments: RFC 9293, RFC 3168 (ECE, CWR).

use crate::error::room;
use crate::{EmitError, Layer, ParseError, Wanted, be16, be32};

/// Length of a header without options in bytes.
pub const HEADER_LEN: usize = 20;
/// Length of the longest header in bytes.
pub const MAX_HEADER_LEN: usize = 60;
/// Offset of the checksum in the header, in bytes.
pub const CHECKSUM_OFFSET: usize = 16;

/// Control bits of a header, one octet (RFC 9293, section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The sender has no more data.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers: the first segment of a direction.
    pub const SYN: Flags = Flags(0x02);
    /// The connection is reset.
    pub const RST: Flags = Flags(0x04);
    /// Push: the receiver delivers the data without waiting for more.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement number is valid.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is valid.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo: a packet arrived with congestion experienced (RFC 3168).
    pub const ECE: Flags = Flags(0x40);
    /// Congestion window reduced, in answer to ECN echo (RFC 3168).
    pub const CWR: Flags = Flags(0x80);

    /// Returns whether any flag of `other` is set.
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the flags that are set in either.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Returns the flags that are not set in `other`.
    #[must_use]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

/// A validated view of a segment.
#[derive(Debug, Clone, Copy)]
pub struct Tcp<'a> {
    header: &'a [u8; HEADER_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Parses a segment. Not checked: the checksum, which needs the pseudo-header, and the
    /// structure of the options.
    ///
    /// # Errors
    /// If it is shorter than its data offset states, or the data offset is less than 5.
    pub fn parse(bytes: &'a [u8]) -> Result<Tcp<'a>, ParseError> {
        let got = bytes.len();
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(ParseError::short(Layer::Tcp, HEADER_LEN, got));
        };
        let header_len = usize::from(header[12] >> 4) * 4;
        if header_len < HEADER_LEN {
            let wanted = Wanted::AtLeast("header length", HEADER_LEN as u64);
            return Err(ParseError::new(Layer::Tcp, 12, wanted, header_len as u64));
        }
        // The header length exceeds the packet.
        let Some((options, payload)) = rest.split_at_checked(header_len - HEADER_LEN) else {
            let wanted = Wanted::AtMost("header length", got as u64);
            return Err(ParseError::new(Layer::Tcp, 12, wanted, header_len as u64));
        };
        Ok(Tcp { header, options, payload })
    }

    /// Returns the source port, in host byte order.
    pub fn source_port(&self) -> u16 {
        be16(self.header, 0)
    }

    /// Returns the destination port, in host byte order.
    pub fn destination_port(&self) -> u16 {
        be16(self.header, 2)
    }

    /// Returns the sequence number of the payload's first byte, or of SYN.
    pub fn sequence(&self) -> u32 {
        be32(self.header, 4)
    }

    /// Returns the next sequence number that the sender expects, if ACK is set.
    pub fn acknowledgement(&self) -> u32 {
        be32(self.header, 8)
    }

    /// Returns the length of the header with options in bytes.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Returns the control bits (RFC 9293, section 3.1).
    pub fn flags(&self) -> Flags {
        Flags(self.header[13])
    }

    /// Returns the receive window, unscaled.
    pub fn window(&self) -> u16 {
        be16(self.header, 14)
    }

    /// Returns the checksum field; it is not verified.
    pub fn checksum(&self) -> u16 {
        be16(self.header, CHECKSUM_OFFSET)
    }

    /// Returns the offset of the urgent data from the sequence number, if URG is set.
    pub fn urgent(&self) -> u16 {
        be16(self.header, 18)
    }

    /// Returns the options with their padding.
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of a header to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpHeader {
    /// Source port, in host byte order.
    pub source_port: u16,
    /// Destination port, in host byte order.
    pub destination_port: u16,
    /// Sequence number of the payload's first byte, or of SYN.
    pub sequence: u32,
    /// Next sequence number that the sender expects, if ACK is set.
    pub acknowledgement: u32,
    /// Control bits (RFC 9293, section 3.1).
    pub flags: Flags,
    /// Receive window, unscaled.
    pub window: u16,
    /// Offset of the urgent data from the sequence number, if URG is set.
    pub urgent: u16,
}

impl TcpHeader {
    /// Writes the header with `checksum` in the checksum field (the sum of the pseudo-header, if it
    /// is to be completed later); returns its length in bytes.
    ///
    /// # Errors
    /// If options are not whole words or longer than 40 bytes, or if the buffer is too small.
    pub fn emit(
        &self,
        options: &[u8],
        checksum: u16,
        buffer: &mut [u8],
    ) -> Result<usize, EmitError> {
        const LAYER: Layer = Layer::Tcp;
        // The header length is counted in words of 4 bytes.
        if !options.len().is_multiple_of(4) {
            return Err(EmitError::Options { layer: LAYER, got: options.len() });
        }
        let header_len = HEADER_LEN + options.len();
        // The field for the header length has 4 bits.
        if header_len > MAX_HEADER_LEN {
            return Err(EmitError::Length { layer: LAYER, limit: MAX_HEADER_LEN, got: header_len });
        }
        let header = room(buffer, LAYER, header_len)?;
        header[..2].copy_from_slice(&self.source_port.to_be_bytes());
        header[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        header[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        header[8..12].copy_from_slice(&self.acknowledgement.to_be_bytes());
        header[12] = ((header_len / 4) as u8) << 4;
        header[13] = self.flags.0;
        header[14..16].copy_from_slice(&self.window.to_be_bytes());
        header[16..18].copy_from_slice(&checksum.to_be_bytes());
        header[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        header[20..].copy_from_slice(options);
        Ok(header_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_viewed() {
        let header = TcpHeader {
            source_port: 1,
            destination_port: 2,
            sequence: 0x01020304,
            acknowledgement: 0x05060708,
            flags: Flags::ACK.with(Flags::PSH),
            window: 0x0a0b,
            urgent: 0x0c0d,
        };
        let mut bytes = [0; 40];
        assert_eq!(header.emit(&[1, 1, 1, 1], 0xabcd, &mut bytes), Ok(24));
        let view = Tcp::parse(&bytes).unwrap();
        assert_eq!((view.source_port(), view.destination_port()), (1, 2));
        assert_eq!((view.sequence(), view.acknowledgement()), (0x01020304, 0x05060708));
        assert_eq!((view.flags(), view.window(), view.urgent()), (header.flags, 0x0a0b, 0x0c0d));
        assert_eq!((view.checksum(), view.header_len()), (0xabcd, 24));
        assert_eq!((view.options(), view.payload().len()), (&[1, 1, 1, 1][..], 16));
    }

    #[test]
    fn lying_data_offsets_are_named() {
        let mut bytes = [0; 24];
        bytes[12] = 0x40;
        let error = Tcp::parse(&bytes).unwrap_err().to_string();
        assert_eq!(error, "TCP at byte 12: expected header length of at least 20, got 16");
        bytes[12] = 0xf0;
        let error = Tcp::parse(&bytes).unwrap_err().to_string();
        assert_eq!(error, "TCP at byte 12: expected header length of at most 24, got 60");
    }
}
