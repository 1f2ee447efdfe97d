//! Input and output of an evaluation: packets of a connection on their path through hooks.

use std::net::IpAddr;

use netstate::MacAddr;
use netstate::interface::Interface as Link;

use crate::value::Cause;

/// A direction of a connection, limited to packets that the fast path accepts: no fragments, no IP
/// options or extension headers; for TCP, with ACK and without SYN, FIN and RST.
///
/// Tuples are conntrack's, so translation is known. A packet enters with the addresses of `tuple`.
/// After destination NAT its destination is the source of `other`; after source NAT its source is
/// the destination of `other`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Addresses and ports of this direction.
    pub tuple: Tuple,
    /// Addresses and ports of the other direction.
    pub other: Tuple,
    /// The flow has many source ports, like a tunnel's outer packets. The port in `tuple` is a
    /// placeholder.
    pub any_source_port: bool,
    /// An address in the tuples that stands for many addresses. A result that depends on it is
    /// reported as such; any other result holds for all of them.
    pub any_address: Option<IpAddr>,
    /// Evaluate NAT chains, too, as for the first packet of a connection.
    pub asks_nat: bool,
    /// Protocol above IP.
    pub transport: Transport,
    /// The conntrack entry. `None`: the packets are untracked because conntrack is not in use; `ct
    /// state` is invalid then.
    pub connection: Option<Connection>,
    /// `skb->mark` at the first hook.
    pub mark: u32,
    /// Known types of addresses in the routing tables ([`UNICAST`], [`LOCAL`] …).
    pub address_types: Vec<(IpAddr, u8)>,
}

/// Address type `RTN_UNICAST` (`linux/rtnetlink.h`): another host's address.
pub const UNICAST: u8 = 1;
/// Address type `RTN_LOCAL`: an address of this host.
pub const LOCAL: u8 = 2;

/// Addresses and ports of a direction. Ports are zero for ICMP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// Source address and port.
    pub source: (IpAddr, u16),
    /// Destination address and port, of the same family.
    pub destination: (IpAddr, u16),
}

impl Tuple {
    /// Returns the tuple of replies if nothing is translated.
    #[must_use]
    pub fn reversed(self) -> Tuple {
        Tuple { source: self.destination, destination: self.source }
    }
}

/// Protocol above IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Packets with ACK and without SYN, FIN and RST.
    Tcp,
    /// UDP, without fragments.
    Udp,
    /// ICMP or ICMPv6 of one type and code.
    Icmp {
        /// `icmp_type` of the header.
        kind: u8,
        /// `icmp_code` of the header.
        code: u8,
    },
    /// ARP requests instead of IP packets, from the source of the tuple about its destination. Chains
    /// of ARP see them, and those of the bridge family.
    Arp,
}

impl Transport {
    /// Returns `IPPROTO_*` for IPv4 or IPv6.
    pub fn protocol(self, is_ipv4: bool) -> u8 {
        match self {
            Transport::Tcp => 6,
            Transport::Udp => 17,
            Transport::Icmp { .. } if is_ipv4 => 1,
            Transport::Icmp { .. } => 58,
            // ARP has none; `meta l4proto` is reported as unknown.
            Transport::Arp => 0,
        }
    }
}

/// The conntrack entry of a connection, as its packets see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// State that `ct state` matches.
    pub state: State,
    pub is_reply: bool,
    /// `IPS_*` bits, if known.
    pub status: Option<u32>,
    /// Mark of the connection, `ct mark`, if known. The packet's mark is separate.
    pub mark: Option<u32>,
    /// Conntrack zone, `ct zone`; 0 by default.
    pub zone: u16,
}

/// `ct state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Seen in both directions.
    Established,
    /// Expected by another connection.
    Related,
    /// Not seen in both directions.
    New,
}

/// A hook on the path, with the devices that it sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Hook whose chains see the packets.
    pub hook: Hook,
    /// Input device as the hook sees it (with br_netfilter: the bridge).
    pub input: Option<Interface>,
    /// Output device as the hook sees it.
    pub output: Option<Interface>,
    /// Input port of the bridge, if br_netfilter knows it.
    pub port_in: Option<String>,
    /// Output port of the bridge, if br_netfilter knows it.
    pub port_out: Option<String>,
    /// Source address of the frame, if all packets have the same one.
    pub hardware_source: Option<MacAddr>,
}

impl Step {
    /// Returns a hook with its devices.
    pub fn new(hook: Hook, input: Option<&Link>, output: Option<&Link>) -> Step {
        let named = |link: Option<&Link>| {
            link.map(|link| Interface { index: link.index, name: link.name.clone() })
        };
        Step {
            hook,
            input: named(input),
            output: named(output),
            port_in: None,
            port_out: None,
            hardware_source: None,
        }
    }

    /// Returns the hooks of the bridge family that see a frame from one port to another.
    pub fn between_ports(from: &Link, to: &Link) -> [Step; 2] {
        [
            Step::new(Hook::BridgePrerouting, Some(from), None),
            Step::new(Hook::BridgeForward, Some(from), Some(to)),
        ]
    }

    /// Returns the hooks at which br_netfilter shows a frame to rules for IP. `None`: the bridge
    /// itself sends it.
    pub fn by_br_netfilter(bridge: &Link, from: Option<&Link>, to: &Link) -> [Step; 3] {
        [Hook::Prerouting, Hook::Forward, Hook::Postrouting].map(|hook| {
            let has_output = hook != Hook::Prerouting;
            let input = (hook != Hook::Postrouting).then_some(bridge);
            Step {
                port_in: from.map(|from| from.name.clone()),
                port_out: has_output.then(|| to.name.clone()),
                ..Step::new(hook, input, has_output.then_some(bridge))
            }
        })
    }
}

/// Index and name of a device, as rules match them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Index, `meta iif`. It changes if the device is created again.
    pub index: u32,
    /// Name, `meta iifname`.
    pub name: String,
}

/// Hooks. Chains of `ip`, `ip6` and `inet` use the first five.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// `NF_INET_PRE_ROUTING`.
    Prerouting,
    /// `NF_INET_LOCAL_IN`.
    Input,
    /// `NF_INET_FORWARD`.
    Forward,
    /// `NF_INET_LOCAL_OUT`.
    Output,
    /// `NF_INET_POST_ROUTING`.
    Postrouting,
    /// `NF_BR_PRE_ROUTING`.
    BridgePrerouting,
    /// `NF_BR_LOCAL_IN`.
    BridgeInput,
    /// `NF_BR_FORWARD`.
    BridgeForward,
    /// `NF_BR_LOCAL_OUT`.
    BridgeOutput,
    /// `NF_BR_POST_ROUTING`.
    BridgePostrouting,
    /// `NF_ARP_IN`.
    ArpInput,
    /// `NF_ARP_OUT`.
    ArpOutput,
    /// `NF_NETDEV_INGRESS` of the input device, including ingress of `inet`.
    Ingress,
    /// `NF_NETDEV_EGRESS` of the output device.
    Egress,
}

/// Result for all packets of a flow, at a hook or along a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All packets are accepted, for reasons of the flow alone.
    Accept,
    /// A rule or policy drops all packets.
    Drop {
        /// The rule, or the chain with the policy.
        at: Place,
    },
    /// The result differs between packets, or the rule has a side effect.
    Depends {
        at: Place,
        /// Kind of reason.
        cause: Cause,
        /// The expression, in terms of `nft` or `iptables`.
        what: String,
    },
    /// A rule that the flow reaches is unsupported.
    NotUnderstood {
        /// The rule; `None`: the content affects the whole ruleset.
        at: Option<Place>,
        /// The unsupported content.
        what: String,
    },
}

/// A rule, or a chain if there is no handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// `NFPROTO_*`.
    pub family: u8,
    pub table: String,
    pub chain: String,
    /// Handle of the rule, shown by `nft -a`, or its number in a chain of iptables-legacy.
    pub handle: Option<u64>,
    /// Whether it is a chain of iptables-legacy or ip6tables-legacy.
    pub is_legacy: bool,
}

impl Place {
    /// Returns the family as `nft` takes it, or the program for a chain of iptables-legacy.
    pub fn family_name(&self) -> &'static str {
        match (self.family, self.is_legacy) {
            (2, true) => "iptables-legacy",
            (10, true) => "ip6tables-legacy",
            (1, _) => "inet",
            (2, _) => "ip",
            (3, _) => "arp",
            (5, _) => "netdev",
            (7, _) => "bridge",
            (10, _) => "ip6",
            _ => "other",
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.family_name(), self.table, self.chain)?;
        let number = if self.is_legacy { "rule" } else { "handle" };
        self.handle.map_or(Ok(()), |handle| write!(f, " {number} {handle}"))
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop { at } => write!(f, "drop by {at}"),
            Verdict::Depends { at, what, .. } => write!(f, "{at}: {what}"),
            Verdict::NotUnderstood { at: Some(at), what } => {
                write!(f, "{at}: unsupported: {what}")
            }
            Verdict::NotUnderstood { at: None, what } => write!(f, "unsupported: {what}"),
        }
    }
}

/// A verdict and the resulting mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Verdict of all hooks together.
    pub verdict: Verdict,
    /// `skb->mark` after the last hook, if all packets are accepted.
    pub mark: u32,
    /// `skb->mark` after each hook, in the order of the path. Routing reads the mark after
    /// prerouting.
    pub marks: Vec<u32>,
}
