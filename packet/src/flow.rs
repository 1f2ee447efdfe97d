//! Flows: which packets belong together, and a hash of that.

use crate::ethernet::{self, EtherType, Ethernet};
use crate::frame::{Headers, Network, Transport};
use crate::ipv4::{Ipv4, Protocol};
use crate::ipv6::Ipv6;
use crate::vlan::Vlan;

/// Addresses, ports and protocol of a TCP or UDP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Source address, then destination address; IPv4 in the first 8 bytes.
    addresses: [u8; 32],
    /// Source port, then destination port.
    ports: [u8; 4],
    network: Network,
    transport: Transport,
}

impl FlowKey {
    /// The flow of the packet with these headers. `frame` is the one they were
    /// found in.
    pub(crate) fn of(frame: &[u8], headers: &Headers) -> FlowKey {
        let mut addresses = [0; 32];
        let at = headers.network_offset;
        match headers.network {
            Network::Ipv4 => addresses[..8].copy_from_slice(&frame[at + 12..at + 20]),
            Network::Ipv6 => addresses.copy_from_slice(&frame[at + 8..at + 40]),
        }
        let mut ports = [0; 4];
        let at = headers.transport_offset;
        ports.copy_from_slice(&frame[at..at + 4]);
        FlowKey { addresses, ports, network: headers.network, transport: headers.transport }
    }

    /// A hash of the flow; the same seed gives the same hash.
    pub fn hash(&self, seed: u64) -> u32 {
        let (words, _) = self.addresses.as_chunks::<8>();
        let used = if self.network == Network::Ipv4 { 1 } else { 4 };
        let mut hash = mix(seed, u64::from(self.transport.protocol().0));
        for word in words.iter().take(used) {
            hash = mix(hash, u64::from_le_bytes(*word));
        }
        finish(mix(hash, u64::from(u32::from_le_bytes(self.ports))))
    }
}

/// A hash of the flow an Ethernet frame belongs to: addresses, ports and
/// protocol of TCP and UDP; addresses and protocol of other IP packets and of
/// all fragments, so that they stay together; hardware addresses and EtherType
/// of everything else. Never fails: what is malformed counts as the latter.
///
/// `seed` should be random, so that nobody outside can choose what collides.
pub fn hash(frame: &[u8], seed: u64) -> u32 {
    if let Ok(headers) = Headers::parse(frame) {
        return FlowKey::of(frame, &headers).hash(seed);
    }
    let Ok(link) = Ethernet::parse(frame) else { return finish(seed) };
    let (mut ether_type, mut rest) = (link.ether_type(), link.payload());
    while let (true, Ok(tag)) = (ether_type.is_vlan(), Vlan::parse(rest)) {
        (ether_type, rest) = (tag.ether_type(), tag.payload());
    }
    if ether_type == EtherType::IPV4
        && let Ok(ip) = Ipv4::parse(rest)
    {
        let addresses =
            u64::from(ip.source().to_bits()) << 32 | u64::from(ip.destination().to_bits());
        return finish(mix(mix(seed, addresses), u64::from(ip.protocol().0)));
    }
    if ether_type == EtherType::IPV6
        && let Ok(ip) = Ipv6::parse(rest)
    {
        let protocol = ip.upper_layer().map_or(Protocol(59), |upper| upper.protocol);
        let words = [ip.source().to_bits(), ip.destination().to_bits()];
        let hash = words
            .iter()
            .fold(seed, |hash, word| mix(mix(hash, *word as u64), (*word >> 64) as u64));
        return finish(mix(hash, u64::from(protocol.0)));
    }
    let (addresses, _) = frame.split_at(ethernet::HEADER_LEN.min(frame.len()));
    let words = addresses
        .chunks(8)
        .map(|chunk| chunk.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte)));
    finish(words.fold(seed, mix))
}

/// One word into the hash, by a 64 × 64 → 128 bit product folded in half.
fn mix(hash: u64, word: u64) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let product = u128::from(hash ^ word ^ ODD) * u128::from(ODD);
    (product as u64) ^ (product >> 64) as u64 ^ word.rotate_left(32)
}

fn finish(hash: u64) -> u32 {
    let hash = mix(hash, 0xd6e8_feb8_6659_fd93);
    (hash ^ hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::{EthernetHeader, MacAddr};
    use crate::ipv4::Ipv4Header;
    use crate::udp::UdpHeader;

    fn frame(port: u16, fragment: bool) -> Vec<u8> {
        let link = EthernetHeader {
            destination: MacAddr::ZERO,
            source: MacAddr::ZERO,
            ether_type: EtherType::IPV4,
        };
        let ip = Ipv4Header {
            tos: 0,
            id: 0,
            dont_fragment: false,
            ttl: 64,
            protocol: Protocol::UDP,
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
        };
        let mut ip = ip.to_bytes(8).unwrap();
        if fragment {
            ip[6] = 0x20;
        }
        let udp = UdpHeader { source_port: port, destination_port: 53 };
        [&link.to_bytes()[..], &ip, &udp.to_bytes(0, 0).unwrap()].concat()
    }

    #[test]
    fn ports_spread_and_fragments_stay_together() {
        let mut hashes: Vec<u32> = (0..4096).map(|p| hash(&frame(p, false), 7)).collect();
        // As the source port of a tunnel would be chosen: 64 places, all used evenly.
        let mut places = [0; 64];
        for h in &hashes {
            places[(h >> 26) as usize] += 1;
        }
        assert!(places.iter().all(|n| (20..140).contains(n)), "{places:?}");
        hashes.sort_unstable();
        hashes.dedup();
        assert!(hashes.len() > 4090, "{}", hashes.len());
        assert_eq!(hash(&frame(1, true), 7), hash(&frame(2, true), 7));
        assert_ne!(hash(&frame(1, false), 7), hash(&frame(1, false), 8));
    }

    #[test]
    fn anything_has_a_hash() {
        let whole = frame(1, false);
        for len in 0..whole.len() {
            hash(&whole[..len], 1);
        }
    }
}
