//! Well-formed and malformed neighbour messages, for the tests and for `cargo xtask corpus`.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::arp::{ArpPacket, Operation};
use packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use packet::icmpv6;
use packet::ipv4::Protocol;
use packet::ipv6::Ipv6Header;

pub const ASKER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub const OWNER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub const BESIDE: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

pub fn ip4(last: u8) -> Ipv4Addr {
    [10, 1, 0, last].into()
}

pub fn ip6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, last)
}

pub fn framed(
    destination: MacAddr,
    source: MacAddr,
    ether_type: EtherType,
    body: &[u8],
) -> Vec<u8> {
    [&EthernetHeader { destination, source, ether_type }.to_bytes()[..], body].concat()
}

pub fn request(destination: MacAddr, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Vec<u8> {
    let operation = Operation::REQUEST;
    let target_mac = MacAddr::ZERO;
    let arp = ArpPacket { operation, sender_mac: ASKER, sender_ip, target_mac, target_ip };
    framed(destination, ASKER, EtherType::ARP, &arp.to_bytes())
}

/// Returns a neighbour message of any kind with a correct checksum.
pub fn discovery(
    link: (MacAddr, MacAddr),
    ends: (Ipv6Addr, Ipv6Addr),
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    option: Option<(u8, MacAddr)>,
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    if let Some((kind, mac)) = option {
        message.extend([kind, 1]);
        message.extend(mac.0);
    }
    let length = message.len() as u32;
    let sum = packet::checksum::pseudo_header_v6(ends.0, ends.1, 58, length);
    let checksum = sum.plus_bytes(&message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let header = Ipv6Header {
        traffic_class: 0,
        flow_label: 0,
        next_header: Protocol::ICMPV6,
        hop_limit: 255,
        source: ends.0,
        destination: ends.1,
    };
    let body = [&header.to_bytes(message.len()).unwrap()[..], &message].concat();
    framed(link.0, link.1, EtherType::IPV6, &body)
}

pub fn group_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

pub fn solicitation(source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let group = icmpv6::solicited_node(target);
    let option = (!source.is_unspecified()).then_some((1, ASKER));
    discovery((group_mac(group), ASKER), (source, group), 135, 0, target, option)
}

pub fn advertisement(owner: MacAddr, target: Ipv6Addr, flags: u8) -> Vec<u8> {
    discovery((ASKER, owner), (target, ip6(1)), 136, flags, target, Some((2, owner)))
}

pub fn tagged(frame: &[u8], tags: &[[u8; 4]]) -> Vec<u8> {
    [&frame[..12], &tags.concat(), &frame[12..]].concat()
}

/// VLAN 5, priority 3.
pub const VLAN_5: [u8; 4] = [0x81, 0, 0x60, 5];

pub fn reply_of(owner: MacAddr, ip: Ipv4Addr) -> Vec<u8> {
    let arp = ArpPacket {
        operation: Operation::REPLY,
        sender_mac: owner,
        sender_ip: ip,
        target_mac: ASKER,
        target_ip: ip4(1),
    };
    framed(ASKER, owner, EtherType::ARP, &arp.to_bytes())
}

/// Returns requests and claims, most of which must not be answered.
pub fn unsupported_frames() -> Vec<(&'static str, Vec<u8>)> {
    let group = icmpv6::solicited_node(ip6(2));
    let to_group = (group_mac(group), ASKER);
    let solicit = |link, ends, option| discovery(link, ends, 135, 0, ip6(2), option);
    let source = Some((1, ASKER));
    let mut gateway = request(MacAddr::BROADCAST, ip4(1), ip4(2));
    gateway[22..28].copy_from_slice(&BESIDE.0);
    let mut hops = solicitation(ip6(1), ip6(2));
    hops[21] = 254;
    let mut sum = solicitation(ip6(1), ip6(2));
    sum[57] ^= 1;
    let broadcast = |sender, target| request(MacAddr::BROADCAST, sender, target);
    vec![
        ("who has", broadcast(ip4(1), ip4(2))),
        ("who has, IPv6", solicitation(ip6(1), ip6(2))),
        ("unknown", broadcast(ip4(1), ip4(77))),
        ("unknown, IPv6", solicitation(ip6(1), ip6(77))),
        ("own side", broadcast(ip4(1), ip4(3))),
        ("own side, IPv6", solicitation(ip6(1), ip6(3))),
        ("probe", broadcast(Ipv4Addr::UNSPECIFIED, ip4(2))),
        ("probe, IPv6", solicitation(Ipv6Addr::UNSPECIFIED, ip6(2))),
        ("announcement", broadcast(ip4(2), ip4(2))),
        ("still there", request(OWNER, ip4(1), ip4(2))),
        ("still there, IPv6", solicit((OWNER, ASKER), (ip6(1), ip6(2)), source)),
        ("multicast target", broadcast(ip4(1), [224, 0, 0, 1].into())),
        ("loopback target", broadcast(ip4(1), [127, 0, 0, 1].into())),
        ("hop limit", hops),
        ("checksum", sum),
        ("without its address", solicit(to_group, (ip6(1), group), None)),
        ("for another", solicit(to_group, (ip6(1), group), Some((1, BESIDE)))),
        ("sender is another", gateway),
        ("cut off", broadcast(ip4(1), ip4(2))[..41].to_vec()),
        ("priority", tagged(&broadcast(ip4(1), ip4(2)), &[[0x81, 0, 0xe0, 0]])),
        ("priority, IPv6", tagged(&solicitation(ip6(1), ip6(2)), &[[0x81, 0, 0xe0, 0]])),
        ("tagged", tagged(&broadcast(ip4(1), ip4(2)), &[VLAN_5])),
        ("tagged, IPv6", tagged(&solicitation(ip6(1), ip6(2)), &[VLAN_5])),
        ("reserved tag", tagged(&broadcast(ip4(1), ip4(2)), &[[0x81, 0, 0x0f, 0xff]])),
        ("service tag", tagged(&broadcast(ip4(1), ip4(2)), &[[0x88, 0xa8, 0, 5]])),
        ("two tags", tagged(&broadcast(ip4(1), ip4(2)), &[VLAN_5, VLAN_5])),
    ]
}
