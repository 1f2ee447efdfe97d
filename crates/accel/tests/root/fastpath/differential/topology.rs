//! The networks between the two tenants.

use std::net::IpAddr;
use std::process::Command;

use packet::ethernet::MacAddr;
use testbed::{Host, NIC, mac};

use super::super::build::Random;
use super::super::pair::{BRIDGE, DEVICE};
use super::super::sandbox::Sandbox;
use super::super::underlay::Underlay;
use super::{CLIENT, MAC_A, MAC_B, PORT, SERVER};

/// Configuration of a VXLAN device.
#[derive(Debug, Clone, Copy)]
pub struct Binding {
    /// `local`.
    pub own: bool,
    /// `dev`.
    pub device: bool,
}

/// How tenants' frames reach the VXLAN device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Through a bridge.
    Bridged,
    /// Through a bridge and a route, in both hosts.
    Routed {
        /// `net.ipv4.conf.all.rp_filter`.
        rp_filter: u8,
    },
    /// Through a bridge. Bridge and VXLAN device are in another namespace than the NIC.
    Sandboxed {
        /// Whether br_netfilter sees frames that cross the bridge.
        bridge_netfilter: bool,
    },
    /// Through a route; the receiving tenant is alone on its veth pair.
    Alone,
}

/// Underlay addresses. They differ from the tenants', which `Spec` writes.
pub fn addresses(underlay: Underlay) -> [IpAddr; 2] {
    [0, 1].map(|number| match underlay {
        Underlay::V4 => [192, 168, 7, 10 + number].into(),
        Underlay::V6 => [0xfd07, 0, 0, 0, 0, 0, 0, 0x10 + u16::from(number)].into(),
    })
}

/// A VXLAN device's options for outer checksums. Over IPv6, a host that sends none must also accept
/// none.
pub fn checksums(underlay: Underlay, random: &mut Random) -> String {
    match underlay {
        Underlay::V4 => ["udpcsum", "noudpcsum"][random.below(2)].to_owned(),
        Underlay::V6 => {
            let sums = [
                "noudp6zerocsumtx noudp6zerocsumrx",
                "noudp6zerocsumtx udp6zerocsumrx",
                "udp6zerocsumtx udp6zerocsumrx",
            ];
            let label = [0, random.next() & 0xfffff][random.below(2)];
            format!("{} flowlabel 0x{label:x}", sums[random.below(3)])
        }
    }
}

/// A random harmless command.
pub fn harmless(shape: Shape, underlay: Underlay, random: &mut Random) -> &'static str {
    let of_ipv6 = if underlay == Underlay::V6 { HARMLESS6 } else { &[] };
    let bridged = matches!(shape, Shape::Bridged | Shape::Sandboxed { .. });
    let of_bridges = if bridged { HARMLESS_BRIDGED } else { &[] };
    let of_ports = if shape == Shape::Bridged { HARMLESS_PORT } else { &[] };
    let all = [HARMLESS, of_ipv6, of_bridges, of_ports].concat();
    all[random.below(all.len())]
}

/// Commands that affect no packet of the tenants and do not keep them on the slow path, for hosts
/// with IPv6.
const HARMLESS6: &[&str] = &[
    "ip route add fd09::/64 dev nic0; ip route add unreachable fd08::/64",
    "ip neigh add fd07::9 lladdr 02:00:00:00:00:07 dev nic0",
    "ip addr add fd06::1/64 dev nic0 nodad; ip route add default via fe80::9 dev nic0 metric 2000",
];

/// The same without routing: rules that let the tunnel's datagrams pass.
const HARMLESS_BRIDGED: &[&str] = &[
    "nft 'table ip t { chain f { type filter hook forward priority 0; policy drop; }; \
        chain o { type filter hook output priority 0; ip daddr 10.9.0.0/16 drop; }; }'",
    "nft 'table inet t { chain i { type filter hook input priority 0; policy drop; \
        meta l4proto ipv6-icmp accept; udp dport 4789 counter accept; }; }'",
    // A rule that uses this state enables connection tracking.
    "nft 'table inet t { chain i { type filter hook input priority 0; \
        ct state established,related accept; }; }'",
];

/// The same if the VXLAN device is a port of the host's own bridge.
const HARMLESS_PORT: &[&str] = &["bridge link set dev vxlan0 neigh_suppress on"];

/// Commands that affect no packet of the tenants and do not keep them on the slow path.
const HARMLESS: &[&str] = &[
    "true",
    "nft 'table arp t { chain c { type filter hook input priority 0; }; }'",
    "nft 'table inet t { chain c { drop; }; }'",
    "ip route add 10.9.0.0/16 dev nic0; ip route add unreachable 10.8.0.0/16",
    "ip neigh add 10.9.0.1 lladdr 02:00:00:00:00:07 dev nic0",
    "ip link add other type veth peer name another; ip link set other up; \
     ip link set another up; ip addr add 10.7.0.1/24 dev other",
];

/// Rules that depend on the packet, so that no flow gets a verdict, and accept all packets. None of
/// them uses conntrack: the kernel splits reassembled fragments in place (ip_do_fragment), in data
/// that the socket on the wire shares.
pub fn holding(random: &mut Random) -> &'static str {
    HOLDING[random.below(HOLDING.len())]
}

const HOLDING: &[&str] = &[
    "nft 'table inet t { chain f { type filter hook forward priority 0; policy drop; \
        meta length 1-65535 accept; }; }'",
    "nft 'table inet t { chain p { type filter hook prerouting priority 0; \
        iifname \"vxlan0\" meta length 1-65535 accept; }; \
        chain q { type filter hook postrouting priority 0; \
        oifname \"vxlan0\" meta length 1-65535 accept; }; }'",
];

impl Shape {
    /// The shape of network `number`: a few of each kind in turn.
    pub fn nth(number: usize, random: &mut Random) -> Shape {
        match number % 5 {
            0 => Shape::Routed { rp_filter: random.below(3) as u8 },
            2 => Shape::Alone,
            3 => Shape::Sandboxed { bridge_netfilter: random.once_in(2) },
            _ => Shape::Bridged,
        }
    }

    pub fn hosts(self) -> [Host; 2] {
        ["a", "b"].map(|name| match self {
            // With IPv6, the host would send unsolicited packets.
            Shape::Bridged | Shape::Sandboxed { .. } => Host::new(name).unwrap(),
            _ => Host::with_ipv6(name).unwrap(),
        })
    }

    /// Whether a host uses IPv6 for more than its underlay.
    pub fn speaks(self) -> bool {
        !matches!(self, Shape::Bridged | Shape::Sandboxed { .. })
    }

    /// Namespaces of bridges and VXLAN devices, if they are not in the hosts.
    pub fn sandboxes(self) -> Option<[Sandbox; 2]> {
        let sandbox = |name| Sandbox::of(Host::new(name).unwrap());
        matches!(self, Shape::Sandboxed { .. }).then(|| ["sandbox-a", "sandbox-b"].map(sandbox))
    }

    /// The host's device that receives the tenant's frames.
    pub fn inner(self, host: usize) -> &'static str {
        if self == Shape::Alone && host == 1 { PORT } else { BRIDGE }
    }

    /// The destination addresses of the tenants' frames.
    pub fn doors(self) -> [MacAddr; 2] {
        match self {
            Shape::Bridged | Shape::Sandboxed { .. } => [MacAddr(MAC_B), MacAddr(MAC_A)],
            _ => [mac("a", self.inner(0)), mac("b", self.inner(1))],
        }
    }

    /// Configures the receiving tenant, whose router has the address `router`.
    pub fn tenant(self, tenant: &Host, router: MacAddr) {
        let (server, client) = (SERVER.ip(), CLIENT.ip());
        let (length, hop, neighbour, address) = match self {
            Shape::Bridged | Shape::Sandboxed { .. } => {
                (24, String::new(), client.to_string(), MacAddr(MAC_A))
            }
            _ => {
                let hop = "ip route add default via 192.0.2.11 dev eth0 onlink".to_owned();
                (32, hop, "192.0.2.11".to_owned(), router)
            }
        };
        sh(
            tenant,
            &format!(
                "ip addr add {server}/{length} dev eth0
                 {hop}
                 ip neigh add {neighbour} lladdr {address} dev eth0"
            ),
        );
    }

    /// Builds the first or the second host, with its tenant's port.
    pub fn build(
        self,
        host: &Host,
        sandbox: Option<&Sandbox>,
        number: usize,
        (underlay, binding, options): (Underlay, Binding, &str),
    ) {
        let mtu = underlay.mtu();
        let (local, remote) = (addresses(underlay)[number], addresses(underlay)[1 - number]);
        let device = mac(host.name(), DEVICE);
        let own = if binding.own { format!("local {local}") } else { String::new() };
        let bound = if binding.device { format!("dev {NIC}") } else { String::new() };
        sh(
            host,
            &format!(
                "ip link add {DEVICE} address {device} type vxlan id 42 {bound} {own} \
                    dstport 4789 {options} {}
                 ip link set {DEVICE} mtu {mtu} up",
                match self {
                    Shape::Bridged => format!("remote {remote}"),
                    Shape::Sandboxed { .. } => format!("remote {remote} proxy l2miss l3miss"),
                    _ => "nolearning".to_owned(),
                }
            ),
        );
        match (self, sandbox) {
            (Shape::Sandboxed { bridge_netfilter }, Some(sandbox)) => {
                sandbox.adopt(host, mtu, PORT, bridge_netfilter);
                // Source ports come from the sandbox's range, not from the host's.
                sandbox.sysctl("net/ipv4/ip_local_port_range", "20000 29999").unwrap();
            }
            (Shape::Bridged, _) => host.bridge(BRIDGE, mtu, &[DEVICE, PORT]).unwrap(),
            _ => self.route(host, number, underlay),
        }
    }

    fn route(self, host: &Host, number: usize, underlay: Underlay) {
        let (inner, other) = (self.inner(number), 1 - number);
        if inner == BRIDGE {
            host.bridge(BRIDGE, underlay.mtu(), &[PORT]).unwrap();
        }
        let remote = addresses(underlay)[other];
        let (here, there) = (number + 1, other + 1);
        let tenant = MacAddr([MAC_A, MAC_B][number]);
        let gateway = mac(["a", "b"][other], DEVICE);
        let rp_filter = if let Shape::Routed { rp_filter } = self { rp_filter } else { 0 };
        sh(
            host,
            &format!(
                "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
                    net.ipv4.conf.all.rp_filter={rp_filter} \
                    net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.{inner}.send_redirects=0 \
                    net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0 \
                    net.ipv4.icmp_msgs_per_sec=1000000 net.ipv4.icmp_msgs_burst=1000000
                 ip addr add 192.0.2.1{number}/32 dev {inner}
                 ip addr add 192.0.2.2{number}/32 dev {DEVICE}
                 ip -6 addr add 2001:db8::1{number}/128 dev {inner} nodad
                 ip -6 addr add 2001:db8::2{number}/128 dev {DEVICE} nodad
                 ip route add 10.0.0.{here}/32 dev {inner}
                 ip route add fd00::{here}/128 dev {inner}
                 ip neigh add 10.0.0.{here} lladdr {tenant} dev {inner}
                 ip neigh add fd00::{here} lladdr {tenant} dev {inner}
                 ip route add 10.0.0.{there}/32 via 192.0.2.2{other} dev {DEVICE} onlink
                 ip route add fd00::{there}/128 via 2001:db8::2{other} dev {DEVICE} onlink
                 ip neigh add 192.0.2.2{other} lladdr {gateway} dev {DEVICE}
                 ip neigh add 2001:db8::2{other} lladdr {gateway} dev {DEVICE}
                 bridge fdb add {gateway} dev {DEVICE} dst {remote} self permanent
                 # Without it the kernel says so, and so often only.
                 ip route add blackhole default
                 ip -6 route add blackhole default"
            ),
        );
    }
}

/// Whether a frame is an unsolicited one of a host with IPv6.
pub fn is_own(frame: &[u8]) -> bool {
    frame[..2] == [0x33, 0x33] && frame[6..8] != MAC_A[..2]
}

/// Clears identification and checksum of a router's own IPv4 packets.
pub fn without_own_id(frame: &mut [u8]) {
    if frame.len() >= 34 && frame[12..14] == [8, 0] && frame[26..29] == [192, 0, 2] {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    }
}

pub fn sh(host: &Host, script: &str) {
    host.run(Command::new("sh").args(["-ec", script])).unwrap();
}
