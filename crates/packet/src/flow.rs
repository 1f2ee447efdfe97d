//! Flows, and a hash over them.

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
    /// Returns the flow of the packet with these headers, which were parsed from `frame`.
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

    /// Returns a hash of the flow. The same seed gives the same hash.
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

/// Returns a hash of the flow of an Ethernet frame. It covers:
///
/// - for TCP and UDP: addresses, ports, protocol;
/// - for other IP packets and all fragments: addresses and protocol, so that fragments have the
///   same hash;
/// - for everything else, including malformed frames: hardware addresses and EtherType.
///
/// `seed` should be random, so that no outsider can cause collisions.
pub fn hash(frame: &[u8], seed: u64) -> u32 {
    // With ports, flows between the same hosts use different paths.
    if let Ok(headers) = Headers::parse(frame) {
        return FlowKey::of(frame, &headers).hash(seed);
    }
    // Too short for an Ethernet header: treat all such frames as one flow.
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
        // 59 is "no next header" (RFC 8200, section 4.7). Packets with a broken chain of extension
        // headers still differ by their addresses.
        let protocol = ip.upper_layer().map_or(Protocol(59), |upper| upper.protocol);
        let words = [ip.source().to_bits(), ip.destination().to_bits()];
        let hash = words
            .iter()
            .fold(seed, |hash, word| mix(mix(hash, *word as u64), (*word >> 64) as u64));
        return finish(mix(hash, u64::from(protocol.0)));
    }
    // Other protocols are hashed by their Ethernet addresses.
    let (addresses, _) = frame.split_at(ethernet::HEADER_LEN.min(frame.len()));
    let words = addresses
        .chunks(8)
        .map(|chunk| chunk.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte)));
    finish(words.fold(seed, mix))
}

/// Mixes a word into the hash with a 64 × 64 → 128 bit product folded in half.
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
        // Used like the source port of a tunnel: all 64 values are used evenly.
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

    /// Counts the hashes that have each bit set.
    fn ones(hashes: &[u32]) -> [usize; 32] {
        std::array::from_fn(|bit| hashes.iter().filter(|hash| **hash >> bit & 1 == 1).count())
    }

    /// Half of the flows set each bit, and flows that differ in one bit of a port differ in half of
    /// the bits. So a range of any width is used evenly.
    #[test]
    fn each_bit_is_set_by_half_of_the_flows() {
        for seed in [0, 7, u64::MAX] {
            let hashes: Vec<u32> = (0..8192).map(|port| hash(&frame(port, false), seed)).collect();
            for (bit, ones) in ones(&hashes).into_iter().enumerate() {
                // Half of 8192, with a standard deviation of 45.
                assert!((3800..=4392).contains(&ones), "bit {bit}: {ones} of 8192");
            }
            for flipped in 0..13 {
                let changes: Vec<u32> = (0..8192)
                    .map(|port: u16| {
                        hashes[usize::from(port)] ^ hashes[usize::from(port ^ 1 << flipped)]
                    })
                    .collect();
                let mean = changes.iter().map(|c| c.count_ones()).sum::<u32>() as f64 / 8192.0;
                assert!((15.5..16.5).contains(&mean), "port bit {flipped}: {mean} bits change");
            }
        }
    }

    /// For ARP and other frames without IP, hardware addresses and EtherType determine the hash.
    #[test]
    fn other_frames_spread_by_their_addresses() {
        let frame = |host: u16, ether_type| {
            let [a, b] = host.to_be_bytes();
            let source = MacAddr([2, 0, 0, 0, a, b]);
            let destination = MacAddr([2, a, b, 0, 0, 9]);
            let link = EthernetHeader { destination, source, ether_type };
            [&link.to_bytes()[..], &[1, 2, 3, 4]].concat()
        };
        let mut hashes: Vec<u32> = (0..4096).map(|n| hash(&frame(n, EtherType::ARP), 7)).collect();
        for (bit, ones) in ones(&hashes).into_iter().enumerate() {
            assert!((1850..=2246).contains(&ones), "bit {bit}: {ones} of 4096");
        }
        hashes.sort_unstable();
        hashes.dedup();
        assert!(hashes.len() > 4090, "{}", hashes.len());
        assert_ne!(hash(&frame(1, EtherType::ARP), 7), hash(&frame(1, EtherType(0x88b5)), 7));
        // The payload does not matter.
        let mut other = frame(1, EtherType::ARP);
        *other.last_mut().unwrap() ^= 1;
        assert_eq!(hash(&other, 7), hash(&frame(1, EtherType::ARP), 7));
    }

    /// Without ports, only the addresses and the protocol determine the hash.
    #[test]
    fn packets_without_ports_spread_by_their_addresses() {
        let link = |ether_type| EthernetHeader {
            destination: MacAddr::ZERO,
            source: MacAddr::ZERO,
            ether_type,
        };
        let v4 = |source: [u8; 4], destination: [u8; 4], protocol, payload: u8| {
            let ip = Ipv4Header {
                tos: 0,
                id: 0,
                dont_fragment: false,
                ttl: 64,
                protocol: Protocol(protocol),
                source: source.into(),
                destination: destination.into(),
            };
            let ip = ip.to_bytes(1).unwrap();
            hash(&[&link(EtherType::IPV4).to_bytes()[..], &ip, &[payload]].concat(), 7)
        };
        let v6 = |source: u128, destination: u128, protocol, payload: u8| {
            let ip = crate::ipv6::Ipv6Header {
                traffic_class: 0,
                flow_label: 0,
                next_header: Protocol(protocol),
                hop_limit: 64,
                source: source.into(),
                destination: destination.into(),
            };
            let ip = ip.to_bytes(1).unwrap();
            hash(&[&link(EtherType::IPV6).to_bytes()[..], &ip, &[payload]].concat(), 7)
        };
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        assert_eq!(v4(a, b, 47, 1), v4(a, b, 47, 2), "the payload");
        let others = [v4([11, 0, 0, 1], b, 47, 1), v4(a, [10, 0, 0, 3], 47, 1), v4(a, b, 50, 1)];
        assert!(!others.contains(&v4(a, b, 47, 1)));
        let (c, d) = (1 << 120 | 1, 1 << 120 | 2);
        assert_eq!(v6(c, d, 47, 1), v6(c, d, 47, 2), "the payload");
        // Either half of either address, and the protocol.
        let others = [
            v6(c ^ 1 << 64, d, 47, 1),
            v6(c ^ 1 << 8, d, 47, 1),
            v6(c, d ^ 1 << 64, 47, 1),
            v6(c, d ^ 1 << 8, 47, 1),
            v6(c, d, 50, 1),
        ];
        assert!(!others.contains(&v6(c, d, 47, 1)));
    }

    #[test]
    fn anything_has_a_hash() {
        let whole = frame(1, false);
        for len in 0..whole.len() {
            hash(&whole[..len], 1);
        }
    }
}
