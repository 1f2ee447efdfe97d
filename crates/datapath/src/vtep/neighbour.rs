//! Address resolution between tenants (ARP, IPv6 neighbour discovery). It parses claims and
//! requests, and builds the answer on behalf of the owner, so that requests need not be flooded.
//! RFC 9161 calls this proxy ARP/ND, the kernel's bridge `neigh_suppress`.
//!
//! No I/O. Each VLAN has its own neighbours: a request with a tag (IEEE 802.1Q) is answered with
//! the same tag, from claims in that VLAN. A bridge that filters VLANs does the same
//! (`net/bridge/br_arp_nd_proxy.c`); one that does not answers without the tag, so no host receives
//! the answer. If in doubt, a frame contains neither claim nor request and is forwarded as usual:
//!
//! - Frames with several tags, or with a service tag (IEEE 802.1ad).
//! - Requests to one host, which check whether it is still there (RFC 4861, section 7.3).
//! - Duplicate address detection (RFC 5227 probes, RFC 4862 solicitations without a source): only
//!   the owner knows whether it still has the address.
//! - Frames whose link-layer address differs from the address in the message: a proxy, or forged.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::arp::{self, Arp, Operation};
use packet::ethernet::{self, EtherType, Ethernet, EthernetHeader, MacAddr};
use packet::icmpv6::{self, Advertised, Icmpv6, Message};
use packet::ipv4::Protocol;
use packet::ipv6::Ipv6;
use packet::vlan::{self, Vlan, VlanId, VlanTag};

use super::table::Table;

/// An address of a tenant. The same IP address in two VLANs is two addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// VLAN; [`VlanId::PRIORITY`] for frames without a tag.
    pub vlan: VlanId,
    /// IPv4 or IPv6 address of the tenant.
    pub ip: IpAddr,
}

impl Address {
    /// Returns the address for frames without a tag.
    pub fn untagged(ip: IpAddr) -> Address {
        Address { vlan: VlanId::PRIORITY, ip }
    }
}

/// The owner of an address, as it has described itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Neighbour {
    /// Hardware address from ARP or a neighbour advertisement.
    pub mac: MacAddr,
    /// Router flag (R). A host that sees it cleared no longer routes through this neighbour.
    pub router: bool,
    /// Override flag (O): replaces a known address. Cleared by anycast addresses and proxies.
    pub overrides: bool,
}

impl Neighbour {
    /// Returns a host with that hardware address.
    pub fn host(mac: MacAddr) -> Neighbour {
        Neighbour { mac, router: false, overrides: true }
    }
}

pub type Neighbours = Table<Address, Neighbour>;

/// Longest answer in bytes.
pub(super) const ANSWER_LEN: usize =
    ethernet::HEADER_LEN + vlan::TAG_LEN + icmpv6::ADVERTISEMENT_LEN;
const _: () = assert!(icmpv6::ADVERTISEMENT_LEN >= arp::PACKET_LEN);

/// A sender's claim about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    Has(Address, Neighbour),
    /// The sender uses an address; its router flag is unknown.
    Uses(Address, MacAddr),
}

/// A request sent to all hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// Duplicate address detection for an address.
    Duplicate,
    /// Request for the owner of an address.
    Who(Who),
}

/// A request for the hardware address of `target`, by ARP or neighbour solicitation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Who {
    /// The requester's hardware address.
    pub(super) mac: MacAddr,
    /// The request's tag, if it names a VLAN.
    tag: Option<VlanTag>,
    /// The requester's address, of the same family as `target`.
    asker: IpAddr,
    /// The requested address.
    pub(super) target: IpAddr,
}

/// Claim and request in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Resolving {
    pub(super) claim: Option<Claim>,
    pub(super) question: Option<Question>,
}

/// A frame with its tag removed.
struct Untagged<'a> {
    source: MacAddr,
    destination: MacAddr,
    /// The tag, if it names a VLAN.
    tag: Option<VlanTag>,
    ether_type: EtherType,
    payload: &'a [u8],
}

impl<'a> Untagged<'a> {
    fn parse(frame: &'a [u8]) -> Option<Untagged<'a>> {
        let link = Ethernet::parse(frame).ok()?;
        let (source, destination) = (link.source(), link.destination());
        let (mut tag, mut ether_type, mut payload) = (None, link.ether_type(), link.payload());
        if ether_type == EtherType::VLAN {
            let vlan = Vlan::parse(payload).ok()?;
            // IEEE 802.1Q reserves this VLAN ID.
            if vlan.id() == VlanId::RESERVED {
                return None;
            }
            tag = Some(vlan.tag()).filter(|tag| tag.id != VlanId::PRIORITY);
            (ether_type, payload) = (vlan.ether_type(), vlan.payload());
        }
        Some(Untagged { source, destination, tag, ether_type, payload })
    }

    /// Returns an address in the frame's VLAN.
    fn address(&self, ip: impl Into<IpAddr>) -> Address {
        Address { vlan: self.tag.map_or(VlanId::PRIORITY, |tag| tag.id), ip: ip.into() }
    }
}

/// Parses a frame whose checksums are complete; `None` if it contains neither a claim nor a
/// request.
pub(super) fn examine(frame: &[u8]) -> Option<Resolving> {
    let link = Untagged::parse(frame)?;
    let found = match link.ether_type {
        EtherType::ARP => by_arp(&link)?,
        EtherType::IPV6 => by_discovery(&link)?,
        // Neither ARP nor neighbour discovery: forwarded as usual.
        _ => return None,
    };
    (found != Resolving::default()).then_some(found)
}

fn by_arp(link: &Untagged<'_>) -> Option<Resolving> {
    let arp = Arp::parse(link.payload).ok()?;
    // A claim for another host is not trusted.
    if arp.sender_mac() != link.source || !link.source.is_unicast() {
        return None;
    }
    let (sender, target) = (arp.sender_ip(), arp.target_ip());
    let claim = (is_host4(sender)
        && [Operation::REQUEST, Operation::REPLY].contains(&arp.operation()))
    .then(|| Claim::Has(link.address(sender), Neighbour::host(arp.sender_mac())));
    // An announcement (sender equals target) is not a request (RFC 5227, section 3).
    let asks = arp.operation() == Operation::REQUEST
        && link.destination.is_broadcast()
        && sender != target
        && is_host4(target);
    let question = match asks {
        true if sender.is_unspecified() => Some(Question::Duplicate),
        true if is_host4(sender) => Some(Question::Who(Who {
            mac: arp.sender_mac(),
            tag: link.tag,
            asker: sender.into(),
            target: target.into(),
        })),
        // Announcements and replies are learned from elsewhere, and forwarded.
        _ => None,
    };
    Some(Resolving { claim, question })
}

fn by_discovery(link: &Untagged<'_>) -> Option<Resolving> {
    let ip = Ipv6::parse(link.payload).ok()?;
    // RFC 4861, section 7.1: no extension header may precede it, and no router may have forwarded
    // it. Most packets are excluded here.
    if ip.next_header() != Protocol::ICMPV6 || ip.hop_limit() != 255 {
        return None;
    }
    let icmp = Icmpv6::parse(ip.payload()).ok()?;
    let own = link.source;
    // A damaged message must not change the neighbour table.
    if !own.is_unicast() || !icmp.checksum_is_valid(&ip) {
        return None;
    }
    match icmp.message() {
        Message::NeighborAdvertisement { target, link: Some(mac), flags } => {
            let neighbour = Neighbour {
                mac,
                router: flags.contains(Advertised::ROUTER),
                overrides: flags.contains(Advertised::OVERRIDE),
            };
            // A claim for another host is not trusted.
            let claim = (mac == own && is_host6(target))
                .then_some(Claim::Has(link.address(target), neighbour));
            Some(Resolving { claim, question: None })
        }
        Message::NeighborSolicitation { target, source } => {
            let asker = ip.source();
            // Unicast requests are left to their owner.
            let to_all = link.destination.is_multicast()
                && ip.destination() == icmpv6::solicited_node(target)
                && is_host6(target)
                && asker != target;
            if asker.is_unspecified() {
                let question = to_all.then_some(Question::Duplicate);
                return Some(Resolving { claim: None, question });
            }
            // Without its link-layer address, the owner would have to ask back for it, so leave the
            // answer to the owner.
            if source != Some(own) || !is_host6(asker) {
                return None;
            }
            let who = Who { mac: own, tag: link.tag, asker: asker.into(), target: target.into() };
            Some(Resolving {
                claim: Some(Claim::Uses(link.address(asker), own)),
                question: to_all.then_some(Question::Who(who)),
            })
        }
        // Other ICMPv6 messages are forwarded as usual.
        _ => None,
    }
}

/// Returns whether the address can belong to one host.
fn is_host4(ip: Ipv4Addr) -> bool {
    ip.octets()[0] != 0 && !ip.is_loopback() && !ip.is_multicast() && !ip.is_broadcast()
}

fn is_host6(ip: Ipv6Addr) -> bool {
    !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast()
}

impl Who {
    /// Returns the requested address, in the VLAN of the request.
    pub(super) fn address(&self) -> Address {
        let vlan = self.tag.map_or(VlanId::PRIORITY, |tag| tag.id);
        Address { vlan, ip: self.target }
    }

    /// Writes the frame with which `owner` answers; returns its length in bytes.
    pub(super) fn answer(&self, owner: &Neighbour, out: &mut [u8; ANSWER_LEN]) -> usize {
        let start = ethernet::HEADER_LEN + if self.tag.is_some() { vlan::TAG_LEN } else { 0 };
        let (head, packet) = out.split_at_mut(start);
        let (ether_type, written) = match (self.asker, self.target) {
            (IpAddr::V4(asker), IpAddr::V4(target)) => {
                let reply = arp::ArpPacket {
                    operation: Operation::REPLY,
                    sender_mac: owner.mac,
                    sender_ip: target,
                    target_mac: self.mac,
                    target_ip: asker,
                };
                packet[..arp::PACKET_LEN].copy_from_slice(&reply.to_bytes());
                (EtherType::ARP, arp::PACKET_LEN)
            }
            (IpAddr::V6(asker), IpAddr::V6(target)) => {
                let flags = Advertised::SOLICITED
                    .with(Advertised::ROUTER, owner.router)
                    .with(Advertised::OVERRIDE, owner.overrides);
                // The buffer is large enough.
                let written =
                    icmpv6::neighbor_advertisement(target, owner.mac, asker, flags, packet);
                (EtherType::IPV6, written.unwrap_or(0))
            }
            // Both addresses come from one packet, so their families are equal.
            _ => return 0,
        };
        let (link, tag) = head.split_at_mut(ethernet::HEADER_LEN);
        let outermost = if self.tag.is_some() { EtherType::VLAN } else { ether_type };
        let header =
            EthernetHeader { destination: self.mac, source: owner.mac, ether_type: outermost };
        link.copy_from_slice(&header.to_bytes());
        // Keep the priority of the request, as the kernel's bridge does.
        if let Some(asked) = self.tag {
            tag.copy_from_slice(&VlanTag { ether_type, ..asked }.to_bytes());
        }
        start + written
    }
}

#[cfg(test)]
mod tests;
