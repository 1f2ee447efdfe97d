//! UDP datagrams: RFC 768, RFC 6935 and 6936 (no checksum over IPv6 in tunnels).

use crate::{EmitError, Layer, ParseError, Wanted, be16};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum in the header, in bytes.
pub const CHECKSUM_OFFSET: usize = 6;

/// A validated view of a datagram.
#[derive(Debug, Clone, Copy)]
pub struct Udp<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Parses a datagram. Data after its length is not part of the view. Not checked: the checksum,
    /// which needs the pseudo-header.
    ///
    /// # Errors
    /// If it is shorter than its length states, or the length is less than 8.
    pub fn parse(bytes: &'a [u8]) -> Result<Udp<'a>, ParseError> {
        let got = bytes.len();
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(ParseError::short(Layer::Udp, HEADER_LEN, got));
        };
        let length = usize::from(be16(header, 4));
        // A length below the header's own is invalid (RFC 768).
        let Some(payload_len) = length.checked_sub(HEADER_LEN) else {
            let wanted = Wanted::AtLeast("length", HEADER_LEN as u64);
            return Err(ParseError::new(Layer::Udp, 4, wanted, length as u64));
        };
        // The datagram is truncated.
        let Some(payload) = rest.get(..payload_len) else {
            let wanted = Wanted::AtMost("length", got as u64);
            return Err(ParseError::new(Layer::Udp, 4, wanted, length as u64));
        };
        Ok(Udp { header, payload })
    }

    /// Returns the source port, in host byte order.
    pub fn source_port(&self) -> u16 {
        be16(self.header, 0)
    }

    /// Returns the destination port, in host byte order.
    pub fn destination_port(&self) -> u16 {
        be16(self.header, 2)
    }

    /// Returns the length of header and payload in bytes.
    pub fn length(&self) -> usize {
        HEADER_LEN + self.payload.len()
    }

    /// Returns the checksum field; 0: no checksum.
    pub fn checksum(&self) -> u16 {
        be16(self.header, CHECKSUM_OFFSET)
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of a header to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UdpHeader {
    /// Source port, in host byte order.
    pub source_port: u16,
    /// Destination port, in host byte order.
    pub destination_port: u16,
}

impl UdpHeader {
    /// Returns the header for a payload of that length in bytes. The checksum field is set to
    /// `checksum`: 0 for none, or the sum of the pseudo-header if it is completed later.
    ///
    /// # Errors
    /// If header and payload exceed 65,535 bytes.
    pub fn to_bytes(
        &self,
        payload_len: usize,
        checksum: u16,
    ) -> Result<[u8; HEADER_LEN], EmitError> {
        let got = payload_len.saturating_add(HEADER_LEN);
        // The length field has 16 bits.
        let Ok(length) = u16::try_from(got) else {
            return Err(EmitError::Length { layer: Layer::Udp, limit: 0xffff, got });
        };
        let mut bytes = [0; HEADER_LEN];
        bytes[..2].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        bytes[6..].copy_from_slice(&checksum.to_be_bytes());
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_viewed() {
        let header = UdpHeader { source_port: 0x0102, destination_port: 0x0304 };
        let mut bytes = header.to_bytes(2, 0x0506).unwrap().to_vec();
        bytes.extend_from_slice(&[7, 8, 9]);
        let view = Udp::parse(&bytes).unwrap();
        assert_eq!((view.source_port(), view.destination_port()), (0x0102, 0x0304));
        assert_eq!((view.length(), view.checksum()), (10, 0x0506));
        assert_eq!(view.payload(), [7, 8]);
        assert!(header.to_bytes(65_528, 0).is_err());
    }

    #[test]
    fn lying_lengths_are_named() {
        let mut bytes = [0; 8];
        bytes[5] = 7;
        let error = Udp::parse(&bytes).unwrap_err().to_string();
        assert_eq!(error, "UDP at byte 4: expected length of at least 8, got 7");
        bytes[5] = 9;
        let error = Udp::parse(&bytes).unwrap_err().to_string();
        assert_eq!(error, "UDP at byte 4: expected length of at most 8, got 9");
    }
}
