//! ARP for IPv4 over Ethernet: RFC 826.

use std::net::Ipv4Addr;

use crate::ethernet::MacAddr;
use crate::{Layer, ParseError, Wanted, be16};

/// Length of a packet in bytes.
pub const PACKET_LEN: usize = 28;

/// Operation code of a packet (`ar$op`, RFC 826).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation(pub u16);

impl Operation {
    /// Request: who has this address?
    pub const REQUEST: Operation = Operation(1);
    /// Reply: the sender has the address.
    pub const REPLY: Operation = Operation(2);
}

/// A validated view of a packet for IPv4 over Ethernet.
#[derive(Debug, Clone, Copy)]
pub struct Arp<'a> {
    packet: &'a [u8; PACKET_LEN],
}

impl<'a> Arp<'a> {
    /// Parses a packet; padding may follow.
    ///
    /// # Errors
    /// If it is too short, or for other hardware or protocols.
    pub fn parse(bytes: &'a [u8]) -> Result<Arp<'a>, ParseError> {
        // Ethernet pads frames, so more bytes than a packet are usual, fewer are not.
        let Some(packet) = bytes.first_chunk() else {
            return Err(ParseError::short(Layer::Arp, PACKET_LEN, bytes.len()));
        };
        let checks = [
            (0, "hardware type", 1, be16(packet, 0)),
            (2, "protocol type", 0x0800, be16(packet, 2)),
            (4, "hardware address length", 6, u16::from(packet[4])),
            (5, "protocol address length", 4, u16::from(packet[5])),
        ];
        for (offset, field, wanted, got) in checks {
            // Only Ethernet and IPv4 are supported.
            if got != wanted {
                let wanted = Wanted::Value(field, u64::from(wanted));
                return Err(ParseError::new(Layer::Arp, offset, wanted, u64::from(got)));
            }
        }
        Ok(Arp { packet })
    }

    /// Returns the operation code.
    pub fn operation(&self) -> Operation {
        Operation(be16(self.packet, 6))
    }

    /// Returns the hardware address of the sender (`ar$sha`).
    pub fn sender_mac(&self) -> MacAddr {
        self.mac(8)
    }

    /// Returns the IPv4 address of the sender (`ar$spa`); 0.0.0.0 in a probe (RFC 5227).
    pub fn sender_ip(&self) -> Ipv4Addr {
        self.ip(14)
    }

    /// Returns the hardware address of the target (`ar$tha`); meaningless in a request.
    pub fn target_mac(&self) -> MacAddr {
        self.mac(18)
    }

    /// Returns the IPv4 address of the target (`ar$tpa`).
    pub fn target_ip(&self) -> Ipv4Addr {
        self.ip(24)
    }

    /// Returns all fields, to write the packet again.
    pub fn fields(&self) -> ArpPacket {
        ArpPacket {
            operation: self.operation(),
            sender_mac: self.sender_mac(),
            sender_ip: self.sender_ip(),
            target_mac: self.target_mac(),
            target_ip: self.target_ip(),
        }
    }

    fn mac(&self, at: usize) -> MacAddr {
        let p = self.packet;
        MacAddr([p[at], p[at + 1], p[at + 2], p[at + 3], p[at + 4], p[at + 5]])
    }

    fn ip(&self, at: usize) -> Ipv4Addr {
        let p = self.packet;
        Ipv4Addr::new(p[at], p[at + 1], p[at + 2], p[at + 3])
    }
}

/// Fields of a packet to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArpPacket {
    /// 1 for a request, 2 for a reply (`ar$op`).
    pub operation: Operation,
    /// Hardware address of the sender (`ar$sha`).
    pub sender_mac: MacAddr,
    /// IPv4 address of the sender (`ar$spa`).
    pub sender_ip: Ipv4Addr,
    /// Hardware address of the target (`ar$tha`); zero in a request.
    pub target_mac: MacAddr,
    /// IPv4 address of the target (`ar$tpa`).
    pub target_ip: Ipv4Addr,
}

impl ArpPacket {
    /// Returns the reply to this request, from the owner of the target address.
    #[must_use]
    pub fn reply(&self, owner: MacAddr) -> ArpPacket {
        ArpPacket {
            operation: Operation::REPLY,
            sender_mac: owner,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }

    /// Returns the packet in wire format, for IPv4 over Ethernet.
    pub fn to_bytes(&self) -> [u8; PACKET_LEN] {
        let mut bytes = [0; PACKET_LEN];
        bytes[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        bytes[6..8].copy_from_slice(&self.operation.0.to_be_bytes());
        bytes[8..14].copy_from_slice(&self.sender_mac.0);
        bytes[14..18].copy_from_slice(&self.sender_ip.octets());
        bytes[18..24].copy_from_slice(&self.target_mac.0);
        bytes[24..].copy_from_slice(&self.target_ip.octets());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_viewed_and_answered() {
        let request = ArpPacket {
            operation: Operation::REQUEST,
            sender_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            sender_ip: Ipv4Addr::new(10, 0, 0, 1),
            target_mac: MacAddr::ZERO,
            target_ip: Ipv4Addr::new(10, 0, 0, 2),
        };
        let mut padded = [0; 46];
        padded[..PACKET_LEN].copy_from_slice(&request.to_bytes());
        assert_eq!(Arp::parse(&padded).unwrap().fields(), request);
        let reply = request.reply(MacAddr([2, 0, 0, 0, 0, 2]));
        assert_eq!(reply.target_ip, request.sender_ip);
        assert_eq!(Arp::parse(&reply.to_bytes()).unwrap().operation(), Operation::REPLY);
    }

    #[test]
    fn other_hardware_is_named() {
        let mut bytes = [0; PACKET_LEN];
        bytes[..6].copy_from_slice(&[0, 1, 8, 0, 8, 4]);
        assert_eq!(
            Arp::parse(&bytes).unwrap_err().to_string(),
            "ARP at byte 4: expected hardware address length 6, got 8"
        );
    }
}
