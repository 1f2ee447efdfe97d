//! Two IPv4 networks exchanged: whatever address of one network a packet has,
//! as source or destination, becomes the same host's of the other network.
//!
//! With 192.168.64.0/24 on the left and 192.168.32.0/24 on the right, who sends
//! from 192.168.64.64 to 192.168.64.32 is seen as 192.168.32.64 at 192.168.32.32
//! on the other side: two devices of one machine can talk to each other through
//! both, which its routing would never let them do by their own addresses.
//!
//! Translating twice gives the packet back. Checksums are updated, not computed
//! (RFC 1624), complete and partial ones; so a wrong one stays wrong. ICMP errors
//! and redirects are translated within. ARP requests are answered by the bridge,
//! with the address of the device on the other side; all other ARP is translated.
//!
//! Limits: addresses in IPv4 options and payloads stay. A checksum that an ICMP
//! error quotes is taken for a complete one; nothing tells. IPv6 and the rest
//! pass as they are, as do addresses of neither network. More than two VLAN tags
//! hide what is behind them.

use std::net::Ipv4Addr;

use packet::arp::{self, Arp, ArpPacket, Operation};
use packet::checksum::{replace, replace_partial};
use packet::ethernet::{self, EtherType, MacAddr};
use packet::ipv4::{self, Ipv4, Protocol};
use packet::vlan::{self, Vlan};
use packet::vnet_hdr::{VnetHdr, gso_type};
use packet::{ParseError, icmp};

use super::Side;

/// Tags that are looked behind.
const MAX_TAGS: usize = 2;

/// Place of the addresses in an IPv4 header, source first.
const ADDRESSES: std::ops::Range<usize> = 12..20;
/// Place of the checksum in an IPv4 header.
const IP_CHECKSUM: usize = 10;
/// Place of the checksum in an ICMP header.
const ICMP_CHECKSUM: usize = 2;

/// Two networks that cannot be exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NetmapError {
    /// Host parts must be as long.
    #[error("{left} and {right}: wanted prefixes of the same length")]
    Lengths {
        /// Network of the left port.
        left: Address,
        /// Network of the right port.
        right: Address,
    },
    /// There must be two.
    #[error("{left} and {right}: wanted two networks, this is one")]
    SameNetwork {
        /// Network of the left port.
        left: Address,
        /// Network of the right port.
        right: Address,
    },
    /// No host part, or no network part.
    #[error("{0}: wanted a prefix of 1 to 30 bits")]
    Prefix(Address),
}

/// A device's own address, and the network it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// Address of the device itself, not of its network.
    pub ip: Ipv4Addr,
    /// Length of the network part in bits.
    pub prefix: u8,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// To be forwarded as it is now.
    Translated,
    /// To be answered, see [`Netmap::answer`]; it was not changed.
    ArpRequest,
}

/// Two IPv4 networks of one prefix length whose host addresses are exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Netmap {
    own: [u32; 2],
    networks: [u32; 2],
    mask: u32,
}

impl Netmap {
    /// The networks that the two devices' addresses are in.
    ///
    /// # Errors
    /// See [`NetmapError`].
    pub fn new(left: Address, right: Address) -> Result<Netmap, NetmapError> {
        if left.prefix != right.prefix {
            return Err(NetmapError::Lengths { left, right });
        }
        if !(1..=30).contains(&left.prefix) {
            return Err(NetmapError::Prefix(left));
        }
        let mask = u32::MAX << (32 - left.prefix);
        let own = [left.ip.to_bits(), right.ip.to_bits()];
        let networks = own.map(|ip| ip & mask);
        if networks[0] == networks[1] {
            return Err(NetmapError::SameNetwork { left, right });
        }
        Ok(Netmap { own, networks, mask })
    }

    /// Network part of an address of that side.
    pub fn network(&self, side: Side) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.networks[side as usize])
    }

    /// The network part's bits.
    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.mask)
    }

    /// The same host in the other network; addresses of neither stay.
    #[must_use]
    pub fn address(&self, address: Ipv4Addr) -> Ipv4Addr {
        let (bits, [left, right]) = (address.to_bits(), self.networks);
        let network = bits & self.mask;
        let host = bits & !self.mask;
        Ipv4Addr::from_bits(if network == left {
            right | host
        } else if network == right {
            left | host
        } else {
            bits
        })
    }

    /// Translates a frame that came from that side, in place. The vnet header
    /// stays as it is.
    ///
    /// # Errors
    /// When the frame is not what its headers say, or has too many tags; it may
    /// be changed in part then.
    pub fn translate(
        &self,
        from: Side,
        header: &VnetHdr,
        frame: &mut [u8],
    ) -> Result<Outcome, ParseError> {
        let (ether_type, at) = network_offset(frame)?;
        match ether_type {
            EtherType::IPV4 => {
                let packet = frame.get_mut(at..).unwrap_or_default();
                self.ipv4(packet, &Partial::of(header, at)).map_err(|e| e.shifted(at))?;
            }
            EtherType::ARP => {
                let bytes = frame.get_mut(at..).unwrap_or_default();
                let arp = Arp::parse(bytes).map_err(|e| e.shifted(at))?.fields();
                if self.is_answered(from, &arp) {
                    return Ok(Outcome::ArpRequest);
                }
                let translated = ArpPacket {
                    sender_ip: self.address(arp.sender_ip),
                    target_ip: self.address(arp.target_ip),
                    ..arp
                };
                bytes[..arp::PACKET_LEN].copy_from_slice(&translated.to_bytes());
            }
            _ => {}
        }
        Ok(Outcome::Translated)
    }

    /// Turns an ARP request into its answer by `owner`, in place; returns its
    /// length in bytes. `None` for a frame that is not an ARP request.
    pub fn answer(frame: &mut [u8], owner: MacAddr) -> Option<usize> {
        let (EtherType::ARP, at) = network_offset(frame).ok()? else { return None };
        let request = Arp::parse(frame.get(at..)?).ok()?.fields();
        if request.operation != Operation::REQUEST {
            return None;
        }
        let end = at + arp::PACKET_LEN;
        frame.copy_within(6..12, 0);
        frame.get_mut(6..12)?.copy_from_slice(&owner.0);
        frame.get_mut(at..end)?.copy_from_slice(&request.reply(owner).to_bytes());
        Some(end)
    }

    /// Whether the bridge stands for the address that is asked for: all hosts of
    /// the asker's network but the asker, so that neither a probe for one's own
    /// address (RFC 5227) nor an announcement meets a conflict.
    fn is_answered(&self, from: Side, arp: &ArpPacket) -> bool {
        let target = arp.target_ip.to_bits();
        let host = target & !self.mask;
        arp.operation == Operation::REQUEST
            && target & self.mask == self.networks[from as usize]
            && target != self.own[from as usize]
            && arp.target_ip != arp.sender_ip
            && host != 0
            && host != !self.mask
    }

    fn ipv4(&self, packet: &mut [u8], partial: &Partial) -> Result<(), ParseError> {
        let view = Ipv4::parse(packet)?;
        let (header_len, total_len) = (view.header_len(), view.total_len());
        let (protocol, first) = (view.protocol(), view.fragment_offset() == 0);
        let whole = packet.get_mut(..total_len).unwrap_or_default();
        // Only a first fragment has the transport header.
        self.header(whole, header_len, protocol, first, partial);
        if protocol == Protocol::ICMP && first {
            let message = whole.get_mut(header_len..).unwrap_or_default();
            self.icmp(message, partial.is_at(header_len + ICMP_CHECKSUM));
        }
        Ok(())
    }

    /// Translates the addresses of a header and the checksums they are in.
    /// `packet` may be cut off anywhere behind the fixed header.
    fn header(
        &self,
        packet: &mut [u8],
        header_len: usize,
        protocol: Protocol,
        has_transport: bool,
        partial: &Partial,
    ) {
        let Some(change) = self.change(packet) else { return };
        packet[ADDRESSES].copy_from_slice(&change.new);
        update(packet, IP_CHECKSUM, |checksum| change.complete(checksum));
        if !has_transport {
            return;
        }
        let offset = match protocol {
            Protocol::TCP => packet::tcp::CHECKSUM_OFFSET,
            Protocol::UDP | UDP_LITE | DCCP => packet::udp::CHECKSUM_OFFSET,
            // No pseudo-header in it, as far as is known.
            _ => return,
        };
        let at = header_len + offset;
        let udp = protocol == Protocol::UDP;
        update(packet, at, |checksum| {
            if partial.is_at(at) {
                replace_partial(checksum, &change.old, &change.new)
            } else if udp && checksum == 0 {
                // There is none.
                0
            } else {
                match change.complete(checksum) {
                    0 if protocol != Protocol::TCP => 0xffff,
                    checksum => checksum,
                }
            }
        });
    }

    /// What becomes of the addresses; `None` if nothing, or if there are none.
    fn change(&self, packet: &[u8]) -> Option<Change> {
        let mut change = Change { old: [0; 8], new: [0; 8] };
        change.old.copy_from_slice(packet.get(ADDRESSES)?);
        let [a, b, c, d, e, f, g, h] = change.old;
        let source = self.address(Ipv4Addr::new(a, b, c, d)).octets();
        let destination = self.address(Ipv4Addr::new(e, f, g, h)).octets();
        change.new[..4].copy_from_slice(&source);
        change.new[4..].copy_from_slice(&destination);
        (change.old != change.new).then_some(change)
    }

    /// Translates the packet that an ICMP error quotes, the router that a
    /// redirect names, and the message's checksum for both.
    fn icmp(&self, message: &mut [u8], partial: bool) {
        const REDIRECT: u8 = 5;
        // Longest header, and of the transport's enough to reach its checksum.
        const LOOKED_AT: usize = icmp::HEADER_LEN + ipv4::MAX_HEADER_LEN + 20;
        let Ok(view) = icmp::Icmp::parse(message) else { return };
        if !view.message().is_error() {
            return;
        }
        let mut before = [0; LOOKED_AT];
        let looked_at = message.len().min(LOOKED_AT);
        before[..looked_at].copy_from_slice(&message[..looked_at]);

        if message[0] == REDIRECT {
            let [_, _, _, _, a, b, c, d] = before[..icmp::HEADER_LEN] else { return };
            let router = self.address(Ipv4Addr::new(a, b, c, d));
            message[4..8].copy_from_slice(&router.octets());
        }
        let quote = &mut message[icmp::HEADER_LEN..];
        if let Some(header_len) = quoted_header_len(quote) {
            let protocol = Protocol(quote[9]);
            let first = u16::from_be_bytes([quote[6], quote[7]]) & 0x1fff == 0;
            self.header(quote, header_len, protocol, first, &Partial::NONE);
        }
        if !partial {
            // The checksum's own field has not changed, so it adds nothing.
            let (old, new) = (&before[..looked_at & !1], looked_at & !1);
            let after = replace(
                u16::from_be_bytes([before[ICMP_CHECKSUM], before[ICMP_CHECKSUM + 1]]),
                old,
                &message[..new],
            );
            if *old != message[..new] {
                message[ICMP_CHECKSUM..ICMP_CHECKSUM + 2].copy_from_slice(&after.to_be_bytes());
            }
        }
    }
}

/// RFC 3828; its checksum is where UDP's is.
const UDP_LITE: Protocol = Protocol(136);
/// RFC 4340; its checksum is where UDP's is.
const DCCP: Protocol = Protocol(33);

/// Addresses before and after, source and destination.
struct Change {
    old: [u8; 8],
    new: [u8; 8],
}

impl Change {
    fn complete(&self, checksum: u16) -> u16 {
        replace(checksum, &self.old, &self.new)
    }
}

/// Places of checksums that are still partial, from the IP header on.
struct Partial {
    /// Up to two: of an inner packet and of the tunnel around it.
    at: [Option<usize>; 2],
}

impl Partial {
    const NONE: Partial = Partial { at: [None; 2] };

    /// As the vnet header says, for a packet at `network_offset` of the frame.
    fn of(header: &VnetHdr, network_offset: usize) -> Partial {
        let place =
            |start: u16, offset: usize| (usize::from(start) + offset).checked_sub(network_offset);
        let tunnel = gso_type::UDP_TUNNEL_IPV4 | gso_type::UDP_TUNNEL_IPV6;
        let inner = header
            .needs_csum()
            .then(|| place(header.csum_start, header.csum_offset.into()))
            .flatten();
        // A tunnel's GSO packet: the outer checksum is completed per segment.
        let outer = (header.gso_type & tunnel != 0)
            .then(|| place(header.outer_th_offset, packet::udp::CHECKSUM_OFFSET))
            .flatten();
        Partial { at: [inner, outer] }
    }

    fn is_at(&self, place: usize) -> bool {
        self.at.contains(&Some(place))
    }
}

/// Changes the big-endian word at `at`, if the packet reaches that far.
fn update(packet: &mut [u8], at: usize, change: impl FnOnce(u16) -> u16) {
    if let Some(field) = packet.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) {
        *field = change(u16::from_be_bytes(*field)).to_be_bytes();
    }
}

/// Length of an IPv4 header that is quoted whole, followed by anything.
fn quoted_header_len(quote: &[u8]) -> Option<usize> {
    let first = *quote.first()?;
    let header_len = usize::from(first & 0xf) * 4;
    let whole = first >> 4 == 4 && header_len >= ipv4::HEADER_LEN && quote.len() >= header_len;
    whole.then_some(header_len)
}

/// The protocol behind all tags, and where its header starts.
fn network_offset(frame: &[u8]) -> Result<(EtherType, usize), ParseError> {
    let ethernet = ethernet::Ethernet::parse(frame)?;
    let (mut ether_type, mut at) = (ethernet.ether_type(), ethernet::HEADER_LEN);
    for _ in 0..MAX_TAGS {
        if !ether_type.is_vlan() {
            break;
        }
        let tag = Vlan::parse(frame.get(at..).unwrap_or_default()).map_err(|e| e.shifted(at))?;
        ether_type = tag.ether_type();
        at += vlan::TAG_LEN;
    }
    Ok((ether_type, at))
}

#[cfg(test)]
mod tests;
