//! Changes halfway through a network's cases: routes, rules, policies, devices of one host.

use std::net::IpAddr;

use testbed::{Host, mac};

use super::super::build::Random;
use super::super::underlay::Underlay;
use super::topology::{self, Shape};

/// The second wire between the hosts.
pub const OTHER: &str = "nic1";
/// Another address of the first host.
const ANOTHER: [&str; 2] = ["192.168.9.77", "fd0a::77"];

/// A change.
#[derive(Debug, Clone)]
pub struct Turn {
    pub kind: &'static str,
    /// Index of the host: the first or the second.
    pub host: usize,
    pub script: String,
}

/// Adds a second wire between the hosts, with neighbour entries.
pub fn second_wire(hosts: &[Host; 2], underlay: Underlay, addresses: [IpAddr; 2]) {
    let [a, b] = ["a", "b"].map(|host| mac(host, OTHER));
    hosts[0].netlink().add_veth(OTHER, a, OTHER, b, hosts[1].netns(), 1500).unwrap();
    for (number, host) in hosts.iter().enumerate() {
        if underlay == Underlay::V6 {
            host.sysctl(&format!("net/ipv6/conf/{OTHER}/disable_ipv6"), "0").unwrap();
        }
        let (remote, there) = (addresses[1 - number], [b, a][number]);
        let script =
            format!("ip link set {OTHER} up; ip neigh add {remote} lladdr {there} dev {OTHER}");
        topology::sh(host, &script);
    }
}

/// A command in a host and its inverse. `{ip}`, `{here}` and `{there}` are the underlay's, `{own}`
/// is another address of this host, `{tos}` the VXLAN device's TOS or another one, `{rule}` the
/// same for a rule.
type Change = (&'static str, &'static str);

/// Changes in the sending host.
const SENDING: &[Change] = &[
    ("blackhole", "{ip} route add blackhole {there}"),
    ("unreachable", "{ip} route add unreachable {there}"),
    ("prohibit", "{ip} route add prohibit {there}"),
    ("throw", "{ip} route add throw {there}"),
    ("more specific", "{ip} route add blackhole {part}"),
    ("other device", "{ip} route add {there} dev nic1"),
    ("other device, more specific", "{ip} route add {part} dev nic1"),
    ("other source", "{ip} addr add {own} dev lo; {ip} route add {there} dev nic0 src {own}"),
    ("mtu", "{ip} route add {there} dev nic0 mtu 1400"),
    ("mtu lock", "{ip} route add {there} dev nic0 mtu lock 1400"),
    ("hoplimit", "{ip} route add {there} dev nic0 hoplimit 9"),
    ("metrics of TCP", "{ip} route add {there} dev nic0 initcwnd 20 advmss 1000 rto_min 300ms"),
    ("next hop object", "{ip} nexthop add id 7 dev nic1; {ip} route add {there} nhid 7"),
    ("rule: to", "{ip} rule add to {there} blackhole"),
    ("rule: from", "{ip} rule add from {here} unreachable"),
    ("rule: mark", "{ip} rule add fwmark 1 blackhole"),
    ("rule: ports", "{ip} rule add ipproto udp dport 4789 prohibit"),
    ("rule: tos", "{ip} rule add tos {rule} prohibit"),
    ("rule: other table", "{ip} route add default dev nic1 table 77; {ip} rule add table 77"),
    ("policy, out", "ip xfrm policy add dir out src {here} dst {there} action block"),
    ("device down", "ip link set nic0 down; ip link set nic0 up"),
];

/// The same for IPv4, whose routes have a type of service, and several devices.
const SENDING4: &[Change] = &[
    ("several next hops", "ip route add {there} nexthop dev nic0 nexthop dev nic1"),
    ("tos: blackhole", "ip route add blackhole {there} tos {tos}"),
    ("tos: other device", "ip route add {there} dev nic1 tos {tos}"),
];

/// Changes in the receiving host.
const RECEIVING: &[Change] = &[
    ("no local route", "{ip} route del local {here} table local"),
    ("source: blackhole", "{ip} route add blackhole {there}"),
    ("source: blackhole, rp_filter", "{ip} route add blackhole {there}; {strict}"),
    ("source: other device", "{ip} route add {there} dev nic1"),
    ("source: other device, rp_filter", "{ip} route add {there} dev nic1; {strict}"),
    ("source: other device, loose rp_filter", "{ip} route add {there} dev nic1; {loose}"),
    ("source: rule", "{ip} rule add from {there} blackhole"),
    ("source: rule of a device", "{ip} rule add iif nic0 unreachable"),
    ("policy, in", "ip xfrm policy add dir in src {there} dst {here} action block"),
];

const STRICT: &str = "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.nic0.rp_filter=1";
const LOOSE: &str = "sysctl -qw net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.nic0.rp_filter=2";

impl Turn {
    /// A random change. `tos` is the VXLAN device's.
    pub fn random(shape: Shape, underlay: Underlay, tos: u8, random: &mut Random) -> Turn {
        let of_host: [&[Change]; 2] =
            if underlay == Underlay::V4 { [SENDING4, &[]] } else { [&[], &[]] };
        let of_shape: [&[Change]; 2] = match shape {
            Shape::Bridged => [
                &[
                    ("bridge down", "ip link set br0 down"),
                    ("tunnel down", "ip link set vxlan0 down"),
                ],
                &[("bridge down, there", "ip link set br0 down")],
            ],
            _ => [&[], &[]],
        };
        let lists = [[SENDING, of_host[0], of_shape[0]], [RECEIVING, of_host[1], of_shape[1]]];
        let all: Vec<(usize, Change)> = (lists.iter().enumerate())
            .flat_map(|(host, lists)| lists.concat().into_iter().map(move |change| (host, change)))
            .collect();
        let (host, (kind, script)) = all[random.below(all.len())];
        let addresses = topology::addresses(underlay);
        let six = usize::from(underlay == Underlay::V6);
        let tos = if random.once_in(2) { tos } else { random.next() as u8 & 0xfc };
        let script = script
            .replace("{ip}", ["ip", "ip -6"][six])
            .replace("{here}", &addresses[host].to_string())
            .replace("{there}", &addresses[1 - host].to_string())
            .replace("{part}", ["192.168.7.0/28", "fd07::/123"][six])
            .replace("{own}", ANOTHER[six])
            .replace("{tos}", &format!("0x{tos:02x}"))
            // IPTOS_TOS_MASK: rules match no other bits.
            .replace("{rule}", &format!("0x{:02x}", tos & 0x1c))
            .replace("{strict}", STRICT)
            .replace("{loose}", LOOSE);
        assert!(!script.contains('{'), "{script}");
        Turn { kind, host, script }
    }
}
