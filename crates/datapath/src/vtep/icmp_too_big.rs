//! ICMP errors for packets that exceed the path MTU.
//!
//! The endpoint has no address of its own in the tenants' network. Like the kernel's tunnels
//! (`iptunnel_pmtud_build_icmp`, `net/ipv4/ip_tunnel_core.c`), it answers from the destination
//! address of the packet.

use packet::ethernet::{self, EtherType, Ethernet, EthernetHeader};
use packet::ipv4::Ipv4;
use packet::ipv6::Ipv6;
use packet::vlan::{self, Vlan};
use packet::{icmp, icmpv6};

/// Maximum number of VLAN tags of an answered packet.
const MAX_TAGS: usize = 2;

/// Longest answer in bytes.
pub(super) const MAX_LEN: usize =
    ethernet::HEADER_LEN + MAX_TAGS * vlan::TAG_LEN + icmpv6::MAX_ERROR_LEN;
const _: () = assert!(icmpv6::MAX_ERROR_LEN >= icmp::MAX_ERROR_LEN);

/// Minimum MTU of an IPv6 link (RFC 8200, section 5).
const IPV6_MTU_MIN: u32 = 1280;

/// Writes the answer to a frame that is too long for a path on which Ethernet payloads of `room`
/// bytes fit; returns its length. `None` if the frame must not be answered, or its sender could not
/// react to the answer.
pub(super) fn too_big(frame: &[u8], room: u32, out: &mut [u8; MAX_LEN]) -> Option<usize> {
    let link = Ethernet::parse(frame).ok()?;
    // A multicast address cannot be the source of an answer.
    if link.destination().is_multicast() || link.source().is_multicast() {
        return None;
    }
    let (mut ether_type, mut packet) = (link.ether_type(), link.payload());
    let mut at = ethernet::HEADER_LEN;
    while ether_type.is_vlan() {
        let tag = Vlan::parse(packet).ok()?;
        (ether_type, packet) = (tag.ether_type(), tag.payload());
        at += vlan::TAG_LEN;
    }
    // The answer must have room for the same tags.
    if at > ethernet::HEADER_LEN + MAX_TAGS * vlan::TAG_LEN {
        return None;
    }
    // Tags are part of the Ethernet payload, but not of the IP packet.
    let mtu = room.checked_sub((at - ethernet::HEADER_LEN) as u32)?;
    let (head, body) = out.split_at_mut(at);
    // Tags and EtherType stay; the addresses are swapped.
    head.copy_from_slice(&frame[..at]);
    let back = EthernetHeader {
        destination: link.source(),
        source: link.destination(),
        ether_type: link.ether_type(),
    };
    head[..ethernet::HEADER_LEN].copy_from_slice(&back.to_bytes());
    let written = match ether_type {
        EtherType::IPV4 => {
            let original = Ipv4::parse(packet).ok()?;
            // The error only makes sense with Don't Fragment (RFC 792).
            if !original.dont_fragment() || !icmp::may_answer_with_error(&original) {
                return None;
            }
            let mtu = u16::try_from(mtu).ok()?;
            icmp::fragmentation_needed(&original, packet, original.destination(), mtu, body).ok()?
        }
        EtherType::IPV6 => {
            let original = Ipv6::parse(packet).ok()?;
            // A smaller MTU must not be reported: the sender would only add a fragment header.
            if mtu < IPV6_MTU_MIN || !icmpv6::may_answer_with_error(&original, true) {
                return None;
            }
            icmpv6::packet_too_big(&original, packet, original.destination(), mtu, body).ok()?
        }
        _ => return None,
    };
    Some(at + written)
}
