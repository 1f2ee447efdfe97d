//! IEEE 802.1Q (customer) and 802.1ad (service) tags.

use std::fmt;

use crate::ethernet::EtherType;
use crate::{Layer, ParseError, Wanted, be16};

/// Length of a tag in bytes: the control information and the EtherType after it, without the
/// EtherType that announces the tag.
pub const TAG_LEN: usize = 4;

/// A 12-bit VLAN identifier. 0 means "priority only", 4095 is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanId(u16);

impl VlanId {
    /// A tag with a priority but no VLAN: the frame counts as untagged.
    pub const PRIORITY: VlanId = VlanId(0);
    /// Reserved by IEEE 802.1Q.
    pub const RESERVED: VlanId = VlanId(0x0fff);

    /// Checks the range.
    ///
    /// # Errors
    /// For 4096 and more.
    pub const fn new(id: u16) -> Result<VlanId, ParseError> {
        // The ID has 12 bits.
        if id > 0x0fff {
            return Err(ParseError::new(Layer::Vlan, 0, Wanted::AtMost("id", 0x0fff), id as u64));
        }
        Ok(VlanId(id))
    }

    /// Returns the identifier, 0 to 4095.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A validated view of a tag and the data after it.
#[derive(Debug, Clone, Copy)]
pub struct Vlan<'a> {
    tag: &'a [u8; TAG_LEN],
    payload: &'a [u8],
}

impl<'a> Vlan<'a> {
    /// Parses the data after an EtherType of 0x8100 or 0x88a8.
    ///
    /// # Errors
    /// If it is shorter than a tag.
    pub fn parse(bytes: &'a [u8]) -> Result<Vlan<'a>, ParseError> {
        match bytes.split_first_chunk() {
            Some((tag, payload)) => Ok(Vlan { tag, payload }),
            None => Err(ParseError::short(Layer::Vlan, TAG_LEN, bytes.len())),
        }
    }

    /// Returns the VLAN of the frame.
    pub fn id(&self) -> VlanId {
        VlanId(be16(self.tag, 0) & 0x0fff)
    }

    /// Returns the priority code point, 0 to 7.
    pub fn priority(&self) -> u8 {
        self.tag[0] >> 5
    }

    /// Returns whether the frame may be dropped first under congestion (DEI).
    pub fn drop_eligible(&self) -> bool {
        self.tag[0] & 0x10 != 0
    }

    /// Returns the protocol of the payload, or the next tag's type.
    pub fn ether_type(&self) -> EtherType {
        EtherType(be16(self.tag, 2))
    }

    /// Returns the bytes after the tag.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the tag, to write it again.
    pub fn tag(&self) -> VlanTag {
        VlanTag {
            id: self.id(),
            priority: self.priority(),
            drop_eligible: self.drop_eligible(),
            ether_type: self.ether_type(),
        }
    }
}

/// Fields of a tag to be written after an EtherType of 0x8100 or 0x88a8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTag {
    /// VLAN of the frame.
    pub id: VlanId,
    /// Priority code point, 0 to 7; higher bits are ignored.
    pub priority: u8,
    /// Whether the frame may be dropped first under congestion (DEI).
    pub drop_eligible: bool,
    /// Protocol of the data that follows.
    pub ether_type: EtherType,
}

impl VlanTag {
    /// Returns the tag in wire format, starting with its control information (TCI).
    pub fn to_bytes(&self) -> [u8; TAG_LEN] {
        let tci =
            u16::from(self.priority & 7) << 13 | u16::from(self.drop_eligible) << 12 | self.id.0;
        let ([a, b], [c, d]) = (tci.to_be_bytes(), self.ether_type.0.to_be_bytes());
        [a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IEEE 802.1Q: three bits of priority, one of drop eligibility, twelve of the VLAN.
    #[test]
    fn each_bit_belongs_to_one_field() {
        for (tci, priority, drop_eligible, id) in [
            (0x0000_u16, 0, false, 0),
            (0x1000, 0, true, 0),
            (0xe000, 7, false, 0),
            (0x2fff, 1, false, 4095),
            (0xf001, 7, true, 1),
        ] {
            let [a, b] = tci.to_be_bytes();
            let bytes = [a, b, 8, 0];
            let view = Vlan::parse(&bytes).unwrap();
            let got = (view.priority(), view.drop_eligible(), view.id().get());
            assert_eq!(got, (priority, drop_eligible, id), "{tci:#06x}");
            assert_eq!(view.tag().to_bytes(), bytes);
        }
    }

    #[test]
    fn written_and_viewed() {
        let tag = VlanTag {
            id: VlanId::new(0xabc).unwrap(),
            priority: 5,
            drop_eligible: true,
            ether_type: EtherType::IPV6,
        };
        let bytes = tag.to_bytes();
        assert_eq!(bytes, [0xba, 0xbc, 0x86, 0xdd]);
        let view = Vlan::parse(&bytes).unwrap();
        assert_eq!((view.id(), view.priority(), view.drop_eligible()), (tag.id, 5, true));
        assert_eq!(view.ether_type(), EtherType::IPV6);
        assert_eq!(VlanId::new(4095), Ok(VlanId::RESERVED));
        assert_eq!(tag.id.to_string(), "2748");
        assert_eq!(view.tag(), tag);
        assert!(VlanId::new(4096).is_err());
        assert!(Vlan::parse(&bytes[..3]).is_err());
    }
}
