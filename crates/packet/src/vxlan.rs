//! VXLAN: RFC 7348, section 5.

use std::fmt;
use std::str::FromStr;

use crate::{Layer, ParseError, Wanted, be32};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 8;
/// Port assigned by IANA.
pub const PORT: u16 = 4789;

/// The I flag: the VNI is valid.
const FLAG_VNI: u8 = 0x08;

/// A 24-bit VXLAN network identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

impl Vni {
    /// Largest identifier, 2^24 − 1.
    pub const MAX: Vni = Vni(0x00ff_ffff);

    /// Checks the range.
    ///
    /// # Errors
    /// For 2^24 and more.
    pub const fn new(vni: u32) -> Result<Vni, VniError> {
        if vni > Vni::MAX.0 { Err(VniError(vni)) } else { Ok(Vni(vni)) }
    }

    /// Returns the identifier, a number below 2²⁴.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<u32> for Vni {
    type Error = VniError;

    fn try_from(vni: u32) -> Result<Vni, VniError> {
        Vni::new(vni)
    }
}

/// The number exceeds 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("VNI {0}: expected at most 16777215")]
pub struct VniError(pub u32);

/// The text is not a VNI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("VNI {0:?}: expected a number from 0 to 16777215")]
pub struct ParseVniError(String);

impl FromStr for Vni {
    type Err = ParseVniError;

    fn from_str(text: &str) -> Result<Vni, ParseVniError> {
        let number = text.parse::<u32>().ok().and_then(|n| Vni::new(n).ok());
        number.ok_or_else(|| ParseVniError(text.to_owned()))
    }
}

/// A validated view of a header and the frame after it.
#[derive(Debug, Clone, Copy)]
pub struct Vxlan<'a> {
    header: &'a [u8; HEADER_LEN],
    frame: &'a [u8],
}

impl<'a> Vxlan<'a> {
    /// Parses a UDP payload.
    ///
    /// Reserved bits are ignored, as the RFC demands. The kernel drops packets with reserved bits
    /// set; [`Vxlan::reserved_bits_are_zero`] checks for that.
    ///
    /// # Errors
    /// If it is shorter than a header or has no valid VNI.
    pub fn parse(bytes: &'a [u8]) -> Result<Vxlan<'a>, ParseError> {
        let Some((header, frame)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(ParseError::short(Layer::Vxlan, HEADER_LEN, bytes.len()));
        };
        // RFC 7348: without the I flag there is no valid VNI.
        if header[0] & FLAG_VNI == 0 {
            let wanted = Wanted::Value("I flag", 1);
            return Err(ParseError::new(Layer::Vxlan, 0, wanted, 0));
        }
        Ok(Vxlan { header, frame })
    }

    /// Returns the VNI of the frame.
    pub fn vni(&self) -> Vni {
        Vni(be32(self.header, 4) >> 8)
    }

    /// Returns whether all bits reserved by the RFC are zero. GBP, GPE and remote checksum offload
    /// use some of them.
    pub fn reserved_bits_are_zero(&self) -> bool {
        be32(self.header, 0) == u32::from(FLAG_VNI) << 24 && self.header[7] == 0
    }

    /// Returns the inner Ethernet frame.
    pub fn frame(&self) -> &'a [u8] {
        self.frame
    }
}

/// Returns the bytes of a header.
pub const fn header(vni: Vni) -> [u8; HEADER_LEN] {
    let [_, a, b, c] = vni.0.to_be_bytes();
    [FLAG_VNI, 0, 0, 0, a, b, c, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_viewed() {
        let mut bytes = header(Vni::new(0xabcdef).unwrap()).to_vec();
        assert_eq!(bytes, [8, 0, 0, 0, 0xab, 0xcd, 0xef, 0]);
        bytes.push(1);
        let view = Vxlan::parse(&bytes).unwrap();
        assert_eq!((view.vni().get(), view.frame()), (0xabcdef, &[1][..]));
        assert!(view.reserved_bits_are_zero());
        bytes[7] = 1;
        assert!(!Vxlan::parse(&bytes).unwrap().reserved_bits_are_zero());
        bytes[0] = 0xf7;
        let error = Vxlan::parse(&bytes).unwrap_err().to_string();
        assert_eq!(error, "VXLAN at byte 0: expected I flag 1, got 0");
    }

    #[test]
    fn numbers_of_25_bits_are_refused() {
        assert!(Vni::new(1 << 24).is_err());
        assert!("16777216".parse::<Vni>().is_err());
        assert_eq!("16777215".parse::<Vni>(), Ok(Vni::MAX));
        assert_eq!(Vni::MAX.to_string(), "16777215");
    }
}
