//! Exchanges two IPv4 networks: a source or destination address in one of the networks becomes the
//! address of the same host in the other network.
//!
//! With 192.168.64.0/24 on the left and 192.168.32.0/24 on the right, a packet from 192.168.64.64
//! to 192.168.64.32 arrives on the other side as one from 192.168.32.64 to 192.168.32.32. So two
//! devices of one machine can talk to each other through both networks, which local routing would
//! prevent with their own addresses.
//!
//! Translating twice gives the original packet. Checksums, complete and partial ones, are updated
//! and not recomputed (RFC 1624), so a wrong one stays wrong. Packets inside ICMP errors and
//! redirects are translated as well. The bridge answers ARP requests, with the address of the
//! device on the other side; other ARP packets are translated.
//!
//! Limits: addresses in IPv4 options and payloads are not translated. A checksum in a packet quoted
//! by an ICMP error is assumed to be complete. IPv6 and other protocols pass unchanged, as do
//! addresses of neither network. Packets with more than two VLAN tags are not translated.

use std::net::Ipv4Addr;

use packet::arp::{self, Arp, ArpPacket, Operation};
use packet::checksum::{replace, replace_partial};
use packet::ethernet::{self, EtherType, MacAddr};
use packet::ipv4::{self, Ipv4, Protocol};
use packet::vlan::{self, Vlan};
use packet::vnet_hdr::{VnetHdr, gso_type};
use packet::{ParseError, icmp};

use super::Side;

/// Maximum number of VLAN tags that are skipped.
const MAX_TAGS: usize = 2;

/// Position of the addresses in an IPv4 header, source first.
const ADDRESSES: std::ops::Range<usize> = 12..20;
/// Position of the checksum in an IPv4 header.
const IP_CHECKSUM: usize = 10;
/// Position of the checksum in an ICMP header.
const ICMP_CHECKSUM: usize = 2;

/// Two networks cannot be exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NetmapError {
    /// Their prefixes have different lengths.
    #[error("{left} and {right}: expected prefixes of the same length")]
    Lengths {
        /// Network of the left port.
        left: Address,
        /// Network of the right port.
        right: Address,
    },
    /// They are the same network.
    #[error("{left} and {right}: expected two different networks")]
    SameNetwork {
        /// Network of the left port.
        left: Address,
        /// Network of the right port.
        right: Address,
    },
    /// The prefix leaves no host part, or no network part.
    #[error("{0}: expected a prefix of 1 to 30 bits")]
    Prefix(Address),
}

/// A device's own address with the prefix length of its network.
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

/// Result for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetmapOutcome {
    /// Forward the frame as it is now.
    Translated,
    /// Answer it with [`Netmap::answer`]. It is unchanged.
    ArpRequest,
}

/// Two IPv4 networks of the same prefix length whose host addresses are exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Netmap {
    own: [u32; 2],
    networks: [u32; 2],
    mask: u32,
}

impl Netmap {
    /// Exchanges the networks of the two devices' addresses.
    pub fn new(left: Address, right: Address) -> Result<Netmap, NetmapError> {
        // Hosts are mapped one to one, so both networks must have the same size.
        if left.prefix != right.prefix {
            return Err(NetmapError::Lengths { left, right });
        }
        // A longer prefix has no hosts besides the network and broadcast addresses.
        if !(1..=30).contains(&left.prefix) {
            return Err(NetmapError::Prefix(left));
        }
        let mask = u32::MAX << (32 - left.prefix);
        let own = [left.ip.to_bits(), right.ip.to_bits()];
        let networks = own.map(|ip| ip & mask);
        // The translation would change nothing.
        if networks[0] == networks[1] {
            return Err(NetmapError::SameNetwork { left, right });
        }
        Ok(Netmap { own, networks, mask })
    }

    pub fn network(&self, side: Side) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.networks[side as usize])
    }

    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.mask)
    }

    /// Returns the same host in the other network; an address of neither network is returned
    /// unchanged.
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

    /// Translates a frame from that side, in place. The vnet header is not changed.
    ///
    /// # Errors
    /// If the frame contradicts its headers, or has too many tags. It may be partly changed then.
    pub fn translate(
        &self,
        from: Side,
        header: &VnetHdr,
        frame: &mut [u8],
    ) -> Result<NetmapOutcome, ParseError> {
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
                    return Ok(NetmapOutcome::ArpRequest);
                }
                let translated = ArpPacket {
                    sender_ip: self.address(arp.sender_ip),
                    target_ip: self.address(arp.target_ip),
                    ..arp
                };
                bytes[..arp::PACKET_LEN].copy_from_slice(&translated.to_bytes());
            }
            // Other protocols carry no addresses of the translated networks.
            _ => {}
        }
        Ok(NetmapOutcome::Translated)
    }

    /// Turns an ARP request into its answer by `owner`, in place; returns its length in bytes.
    /// `None`: not an ARP request.
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

    /// Returns whether the bridge answers for the requested address. It answers for all hosts of
    /// the requester's network except the requester, so that neither a probe for one's own address
    /// (RFC 5227) nor an announcement causes a conflict.
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

    /// Translates the addresses of a header and updates the checksums that cover them. `packet` may
    /// be truncated anywhere after the fixed header.
    fn header(
        &self,
        packet: &mut [u8],
        header_len: usize,
        protocol: Protocol,
        has_transport: bool,
        partial: &Partial,
    ) {
        // Neither address belongs to the exchanged networks.
        let Some(change) = self.change(packet) else { return };
        packet[ADDRESSES].copy_from_slice(&change.new);
        update(packet, IP_CHECKSUM, |checksum| change.complete(checksum));
        // A later fragment has no transport header: only the IP checksum changes.
        if !has_transport {
            return;
        }
        let offset = match protocol {
            Protocol::TCP => packet::tcp::CHECKSUM_OFFSET,
            Protocol::UDP | UDP_LITE | DCCP => packet::udp::CHECKSUM_OFFSET,
            // No other protocol is known to include a pseudo-header.
            _ => return,
        };
        let at = header_len + offset;
        let udp = protocol == Protocol::UDP;
        update(packet, at, |checksum| {
            if partial.is_at(at) {
                replace_partial(checksum, &change.old, &change.new)
            } else if udp && checksum == 0 {
                // 0 means that there is no checksum.
                0
            } else {
                match change.complete(checksum) {
                    0 if protocol != Protocol::TCP => 0xffff,
                    checksum => checksum,
                }
            }
        });
    }

    /// Returns the translation of the addresses; `None` if there is nothing to translate.
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

    /// Translates the packet quoted by an ICMP error and the router named by a redirect, and
    /// updates the checksum of the message.
    fn icmp(&self, message: &mut [u8], partial: bool) {
        const REDIRECT: u8 = 5;
        // The longest IP header, and enough of the transport header to include its checksum.
        const LOOKED_AT: usize = icmp::HEADER_LEN + ipv4::MAX_HEADER_LEN + 20;
        let Ok(view) = icmp::Icmp::parse(message) else { return };
        // Only errors quote a packet with addresses.
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
            // The checksum field itself is unchanged, so it contributes nothing.
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

/// RFC 3828. Its checksum is at the same offset as UDP's.
const UDP_LITE: Protocol = Protocol(136);
/// RFC 4340. Its checksum is at the same offset as UDP's.
const DCCP: Protocol = Protocol(33);

/// Source and destination addresses before and after translation.
struct Change {
    old: [u8; 8],
    new: [u8; 8],
}

impl Change {
    fn complete(&self, checksum: u16) -> u16 {
        replace(checksum, &self.old, &self.new)
    }
}

/// Positions of checksums that are still partial, relative to the IP header.
struct Partial {
    /// Up to two: of an inner packet and of the tunnel around it.
    at: [Option<usize>; 2],
}

impl Partial {
    const NONE: Partial = Partial { at: [None; 2] };

    /// Takes them from the vnet header of a packet at `network_offset` of the frame.
    fn of(header: &VnetHdr, network_offset: usize) -> Partial {
        let place =
            |start: u16, offset: usize| (usize::from(start) + offset).checked_sub(network_offset);
        let tunnel = gso_type::UDP_TUNNEL_IPV4 | gso_type::UDP_TUNNEL_IPV6;
        let inner = header
            .needs_csum()
            .then(|| place(header.csum_start, header.csum_offset.into()))
            .flatten();
        // For a tunnelled GSO packet, the outer checksum is completed per segment.
        let outer = (header.gso_type & tunnel != 0)
            .then(|| place(header.outer_th_offset, packet::udp::CHECKSUM_OFFSET))
            .flatten();
        Partial { at: [inner, outer] }
    }

    fn is_at(&self, place: usize) -> bool {
        self.at.contains(&Some(place))
    }
}

/// Changes the big-endian word at `at`, if the packet is long enough.
fn update(packet: &mut [u8], at: usize, change: impl FnOnce(u16) -> u16) {
    if let Some(field) = packet.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) {
        *field = change(u16::from_be_bytes(*field)).to_be_bytes();
    }
}

/// Returns the length of an IPv4 header if it is quoted completely.
fn quoted_header_len(quote: &[u8]) -> Option<usize> {
    let first = *quote.first()?;
    let header_len = usize::from(first & 0xf) * 4;
    let whole = first >> 4 == 4 && header_len >= ipv4::HEADER_LEN && quote.len() >= header_len;
    whole.then_some(header_len)
}

/// Returns the protocol after all VLAN tags, and the offset of its header.
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
