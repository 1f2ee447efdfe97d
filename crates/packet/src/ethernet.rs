//! Ethernet II frames (IEEE 802.3), without preamble and frame check sequence.

use std::fmt;
use std::str::FromStr;

use crate::{Layer, ParseError, be16};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 14;

/// A 48-bit hardware address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);
    /// 00:00:00:00:00:00; the default entry in a VXLAN FDB.
    pub const ZERO: MacAddr = MacAddr([0; 6]);

    /// Returns whether the group bit is set (multicast or broadcast).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether it is ff:ff:ff:ff:ff:ff.
    pub fn is_broadcast(self) -> bool {
        self == MacAddr::BROADCAST
    }

    /// Returns whether it can be a source address: neither multicast nor zero.
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self != MacAddr::ZERO
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a hardware address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "hardware address {0:?}: expected six pairs of hex digits with colons, as 02:00:00:00:00:01"
)]
pub struct MacAddrError(String);

impl FromStr for MacAddr {
    type Err = MacAddrError;

    fn from_str(text: &str) -> Result<MacAddr, MacAddrError> {
        let error = || MacAddrError(text.to_owned());
        let mut bytes = [0; 6];
        let mut pairs = text.split(':');
        for byte in &mut bytes {
            let pair = pairs.next().filter(|p| p.len() == 2).ok_or_else(error)?;
            // Check the digits, because `from_str_radix` also accepts a sign (`+1`).
            if !pair.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(error());
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| error())?;
        }
        if pairs.next().is_some() { Err(error()) } else { Ok(MacAddr(bytes)) }
    }
}

/// Protocol of an Ethernet payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4, `ETH_P_IP`.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP, `ETH_P_ARP` (RFC 826).
    pub const ARP: EtherType = EtherType(0x0806);
    /// IEEE 802.1Q tag (customer).
    pub const VLAN: EtherType = EtherType(0x8100);
    /// IPv6, `ETH_P_IPV6`.
    pub const IPV6: EtherType = EtherType(0x86dd);
    /// IEEE 802.1ad tag (service).
    pub const QINQ: EtherType = EtherType(0x88a8);

    /// Returns whether a VLAN tag follows.
    pub fn is_vlan(self) -> bool {
        self == EtherType::VLAN || self == EtherType::QINQ
    }
}

/// A validated view of a frame.
#[derive(Debug, Clone, Copy)]
pub struct Ethernet<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    /// Parses a frame.
    ///
    /// # Errors
    /// If it is shorter than a header.
    pub fn parse(bytes: &'a [u8]) -> Result<Ethernet<'a>, ParseError> {
        match bytes.split_first_chunk() {
            Some((header, payload)) => Ok(Ethernet { header, payload }),
            None => Err(ParseError::short(Layer::Ethernet, HEADER_LEN, bytes.len())),
        }
    }

    /// Returns the destination hardware address.
    pub fn destination(&self) -> MacAddr {
        let h = self.header;
        MacAddr([h[0], h[1], h[2], h[3], h[4], h[5]])
    }

    /// Returns the source hardware address.
    pub fn source(&self) -> MacAddr {
        let h = self.header;
        MacAddr([h[6], h[7], h[8], h[9], h[10], h[11]])
    }

    /// Returns the protocol of the payload, or the first tag's type.
    pub fn ether_type(&self) -> EtherType {
        EtherType(be16(self.header, 12))
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of a header to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EthernetHeader {
    /// Hardware address of the receiver, or of a group.
    pub destination: MacAddr,
    /// Hardware address of the sender.
    pub source: MacAddr,
    /// Protocol of the payload.
    pub ether_type: EtherType,
}

impl EthernetHeader {
    /// Returns the header in wire format.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..6].copy_from_slice(&self.destination.0);
        bytes[6..12].copy_from_slice(&self.source.0);
        bytes[12..].copy_from_slice(&self.ether_type.0.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_viewed() {
        let header = EthernetHeader {
            destination: MacAddr::BROADCAST,
            source: "02:00:00:00:0a:01".parse().unwrap(),
            ether_type: EtherType::ARP,
        };
        let bytes = header.to_bytes();
        let view = Ethernet::parse(&bytes).unwrap();
        assert_eq!(view.destination(), header.destination);
        assert_eq!(view.source().to_string(), "02:00:00:00:0a:01");
        assert_eq!(format!("{:?}", view.source()), "02:00:00:00:0a:01");
        assert_eq!(view.ether_type(), EtherType::ARP);
        assert!(view.payload().is_empty());
        assert!(view.destination().is_multicast() && view.source().is_unicast());
    }

    /// IEEE 802: the lowest bit of the first byte is the group bit. The next one, "locally
    /// administered", does not restrict who can send.
    #[test]
    fn a_sender_is_neither_a_group_nor_zero() {
        for (text, unicast, multicast, broadcast) in [
            ("02:00:00:00:00:01", true, false, false),
            ("00:00:00:00:00:01", true, false, false),
            ("fe:ff:ff:ff:ff:ff", true, false, false),
            ("00:00:00:00:00:00", false, false, false),
            ("01:00:5e:00:00:fb", false, true, false),
            ("33:33:00:00:00:01", false, true, false),
            ("03:00:00:00:00:01", false, true, false),
            ("ff:ff:ff:ff:ff:ff", false, true, true),
        ] {
            let mac: MacAddr = text.parse().unwrap();
            let got = (mac.is_unicast(), mac.is_multicast(), mac.is_broadcast());
            assert_eq!(got, (unicast, multicast, broadcast), "{text}");
        }
    }

    #[test]
    fn a_short_frame_is_named() {
        let error = Ethernet::parse(&[0; 13]).unwrap_err();
        assert_eq!(error.to_string(), "Ethernet at byte 0: expected 14 bytes, got 13");
    }

    #[test]
    fn bad_addresses_are_refused() {
        for text in
            ["", "02:00:00:00:0a", "02:00:00:00:0a:01:02", "02:00:00:00:0a:+1", "2:0:0:0:0:1"]
        {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }
}
