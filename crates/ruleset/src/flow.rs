//! What is asked about: packets of a connection on their way through hooks.

use std::net::IpAddr;

use crate::value::Cause;

/// A direction of a connection, as the packets are that the fast path would take: neither
/// fragments nor with IP options or extension headers; of TCP, with ACK and without SYN,
/// FIN and RST.
///
/// Tuples are conntrack's, so that translation is known: a packet enters with the
/// addresses of `tuple`; behind the translation of destinations its destination is the
/// source of `other`, behind that of sources its source is the destination of `other`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Addresses and ports of this direction.
    pub tuple: Tuple,
    /// Of the other direction.
    pub other: Tuple,
    /// The source ports of this direction are many, as those of a tunnel's datagrams are: that
    /// of `tuple` stands for none of them.
    pub any_source_port: bool,
    /// An address of the tuples that stands for many: what rules say of it holds for some of
    /// them. What they say to all of these flows is known where it does not depend on it.
    pub any_address: Option<IpAddr>,
    /// Chains of the type nat are asked, too: those that a connection's first packet comes to.
    pub asks_nat: bool,
    /// What is above IP.
    pub transport: Transport,
    /// Connection tracking's entry; `None`: the packets are not tracked (conntrack is not in
    /// use, which rules that ask for it see as invalid).
    pub connection: Option<Connection>,
    /// `skb->mark` when it enters the first hook.
    pub mark: u32,
    /// Kinds of addresses by the routing tables ([`UNICAST`], [`LOCAL`] …), as far as they are
    /// known.
    pub address_types: Vec<(IpAddr, u8)>,
}

/// A kind of address (`RTN_UNICAST` of `linux/rtnetlink.h`): another host's.
pub const UNICAST: u8 = 1;
/// A kind of address (`RTN_LOCAL`): this host's own.
pub const LOCAL: u8 = 2;

/// Addresses and ports of a direction. For ICMP the ports are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// Source address and port.
    pub source: (IpAddr, u16),
    /// Destination, of the same family.
    pub destination: (IpAddr, u16),
}

impl Tuple {
    /// The tuple of answers, where nothing is translated.
    #[must_use]
    pub fn reversed(self) -> Tuple {
        Tuple { source: self.destination, destination: self.source }
    }
}

/// What is above IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Packets with ACK and without SYN, FIN and RST.
    Tcp,
    /// UDP; every datagram that is no fragment.
    Udp,
    /// ICMP or ICMPv6 of one type and code.
    Icmp {
        /// `icmp_type` of the header.
        kind: u8,
        /// `icmp_code` of the header.
        code: u8,
    },
}

impl Transport {
    /// `IPPROTO_*` over IPv4 or IPv6.
    pub fn protocol(self, is_ipv4: bool) -> u8 {
        match self {
            Transport::Tcp => 6,
            Transport::Udp => 17,
            Transport::Icmp { .. } if is_ipv4 => 1,
            Transport::Icmp { .. } => 58,
        }
    }
}

/// What conntrack knows of a connection, for packets that belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// What `ct state` compares with.
    pub state: State,
    /// Whether the direction is that of answers.
    pub is_reply: bool,
    /// `IPS_*` bits, where they are known.
    pub status: Option<u32>,
    /// The connection's mark, `ct mark`; the packet's own is another.
    pub mark: u32,
    /// Zone in which the connection is known, `ct zone`; 0 by default.
    pub zone: u16,
}

/// `ct state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Seen in both directions.
    Established,
    /// Of a connection that another one announced.
    Related,
    /// Not seen in both directions.
    New,
}

/// A hook that the packets pass, with the devices that it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Hook whose chains the packets come to.
    pub hook: Hook,
    /// Input device, as the hook is told (for br_netfilter: the bridge).
    pub input: Option<Interface>,
    /// Output device, as the hook is told.
    pub output: Option<Interface>,
    /// The bridge's port by which it came, where br_netfilter knows of one.
    pub port_in: Option<String>,
    /// The bridge's port by which it leaves, likewise.
    pub port_out: Option<String>,
}

/// Index and name of a device, as rules compare them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Index, `meta iif`; another one after the device is made anew.
    pub index: u32,
    /// Name, `meta iifname`.
    pub name: String,
}

/// Hooks. Chains of `ip`, `ip6` and `inet` meet at the first five.
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
    /// `NF_NETDEV_INGRESS` of the input device, that of `inet` included.
    Ingress,
    /// `NF_NETDEV_EGRESS` of the output device.
    Egress,
}

/// What happens to all packets of a flow at a hook or on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All pass; it depends on the flow only.
    Accept,
    /// All are dropped, by this rule or policy.
    Drop {
        /// The rule, or the chain whose policy it is.
        at: Place,
    },
    /// It is not the same for all of them, or something else happens to each.
    Depends {
        /// Rule that it depends on.
        at: Place,
        /// Kind of the reason.
        cause: Cause,
        /// The expression, in the words of `nft` or `iptables`.
        what: String,
    },
    /// A rule that the flow reaches is not understood.
    NotUnderstood {
        /// The rule; `None` where it concerns the whole ruleset.
        at: Option<Place>,
        /// What is not understood.
        what: String,
    },
}

/// A rule, or a chain where there is no handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// `NFPROTO_*`.
    pub family: u8,
    /// Table that has the chain.
    pub table: String,
    /// Chain that has the rule.
    pub chain: String,
    /// Handle of the rule, as `nft -a` shows it.
    pub handle: Option<u64>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let family = match self.family {
            1 => "inet",
            2 => "ip",
            5 => "netdev",
            7 => "bridge",
            10 => "ip6",
            _ => "other",
        };
        write!(f, "{family} {} {}", self.table, self.chain)?;
        self.handle.map_or(Ok(()), |handle| write!(f, " handle {handle}"))
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop { at } => write!(f, "drop by {at}"),
            Verdict::Depends { at, what, .. } => write!(f, "{at}: {what}"),
            Verdict::NotUnderstood { at: Some(at), what } => {
                write!(f, "{at}: not understood: {what}")
            }
            Verdict::NotUnderstood { at: None, what } => write!(f, "not understood: {what}"),
        }
    }
}

/// A verdict, and what became of the packets' mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What becomes of the packets at all hooks together.
    pub verdict: Verdict,
    /// `skb->mark` behind the last hook, if all pass.
    pub mark: u32,
    /// `skb->mark` behind each hook that was passed, in the order of the path: routing looks
    /// at it behind prerouting.
    pub marks: Vec<u32>,
}
