//! Values that expressions read from the packets of a flow at a hook.

use std::net::IpAddr;

use crate::flow::{Connection, Flow, Hook, Interface, State, Step, Transport};
use crate::model::Header;
use crate::value::{Byte, Cause, Doubt, known};

// Priorities from include/uapi/linux/netfilter_ipv4.h, at which NAT and conntrack run.
const PRI_CONNTRACK: i32 = -200;
const PRI_NAT_DST: i32 = -100;
const PRI_NAT_SRC: i32 = 100;

/// `ETH_P_ARP` on the wire.
const ETHERTYPE_ARP: [u8; 2] = [8, 6];

/// `IPS_*` and `NF_CT_STATE_*` bits.
const STATE_INVALID: u32 = 1;
const STATE_ESTABLISHED: u32 = 2;
const STATE_RELATED: u32 = 4;
const STATE_NEW: u32 = 8;

/// Packets of a flow in a base chain.
pub(crate) struct Packets<'a> {
    pub(crate) flow: &'a Flow,
    pub(crate) step: &'a Step,
    /// Priority of the base chain.
    pub(crate) priority: i32,
    pub(crate) mark: u32,
}

/// Conntrack state that a chain sees.
pub(crate) enum Tracked {
    Entry(Connection),
    /// No entry, and no `notrack` rule.
    Nothing,
    /// Unknown at this hook.
    Unclear,
}

fn unknown(what: &'static str) -> Doubt {
    Doubt::new(Cause::Unknown, what)
}

impl Packets<'_> {
    pub(crate) fn is_ipv4(&self) -> bool {
        self.flow.tuple.source.0.is_ipv4()
    }

    pub(crate) fn protocol(&self) -> u8 {
        self.flow.transport.protocol(self.is_ipv4())
    }

    /// Returns the source at this point; `None` if it is unknown whether NAT has run.
    pub(crate) fn source(&self) -> Option<(IpAddr, u16)> {
        let (before, behind) = (self.flow.tuple.source, self.flow.other.destination);
        let is_behind = match self.step.hook {
            Hook::Input | Hook::Postrouting => self.passed(PRI_NAT_SRC),
            Hook::Prerouting | Hook::Forward | Hook::Output | Hook::Ingress => Some(false),
            Hook::Egress => Some(true),
            _ => None,
        };
        pick(before, behind, is_behind)
    }

    /// Returns the destination at this point; `None` if it is unknown whether NAT has run.
    pub(crate) fn destination(&self) -> Option<(IpAddr, u16)> {
        let (before, behind) = (self.flow.tuple.destination, self.flow.other.source);
        let is_behind = match self.step.hook {
            Hook::Prerouting | Hook::Output => self.passed(PRI_NAT_DST),
            Hook::Input | Hook::Forward | Hook::Postrouting | Hook::Egress => Some(true),
            Hook::Ingress => Some(false),
            _ => None,
        };
        pick(before, behind, is_behind)
    }

    /// Whether an address stands for many.
    pub(crate) fn is_any(&self, address: IpAddr) -> bool {
        self.flow.any_address == Some(address)
    }

    /// Whether the chain runs after this priority; `None`: at the same priority, in unknown order.
    fn passed(&self, priority: i32) -> Option<bool> {
        (self.priority != priority).then_some(self.priority > priority)
    }

    pub(crate) fn tracked(&self) -> Tracked {
        let entry = self.flow.connection.map_or(Tracked::Nothing, Tracked::Entry);
        match self.step.hook {
            Hook::Prerouting | Hook::Output => match self.passed(PRI_CONNTRACK) {
                Some(true) => entry,
                Some(false) => Tracked::Nothing,
                None => Tracked::Unclear,
            },
            Hook::Input | Hook::Forward | Hook::Postrouting => entry,
            Hook::Ingress => Tracked::Nothing,
            // Depends on br_netfilter and on conntrack for bridges.
            _ => Tracked::Unclear,
        }
    }

    /// Returns the value of `NFT_META_*`.
    pub(crate) fn meta(&self, key: u32) -> Vec<Byte> {
        let index = |interface: &Option<Interface>| {
            known(&interface.as_ref().map_or(0, |interface| interface.index).to_ne_bytes())
        };
        let name = |interface: &Option<Interface>| {
            let mut padded = [0; 16];
            let name = interface.as_ref().map_or("", |interface| interface.name.as_str());
            for (to, from) in padded.iter_mut().zip(name.bytes()) {
                *to = from;
            }
            known(&padded)
        };
        let doubt = |cause, what| vec![Byte::unknown(Doubt::new(cause, what)); 16];
        match key {
            0 => doubt(Cause::Packet, "meta length"),
            1 if self.is_arp() => known(&ETHERTYPE_ARP),
            1 => known(if self.is_ipv4() { &[8, 0] } else { &[0x86, 0xdd] }),
            2 => doubt(Cause::Packet, "meta priority"),
            3 => known(&self.mark.to_ne_bytes()),
            4 => index(&self.step.input),
            5 => index(&self.step.output),
            6 => name(&self.step.input),
            7 => name(&self.step.output),
            10 | 11 => doubt(Cause::Packet, "meta skuid, skgid"),
            12 => doubt(Cause::Packet, "meta nftrace"),
            13 => doubt(Cause::Packet, "meta rtclassid"),
            15 => known(&[match self.step.hook {
                Hook::BridgePrerouting
                | Hook::BridgeInput
                | Hook::BridgeForward
                | Hook::BridgeOutput
                | Hook::BridgePostrouting => 7,
                Hook::ArpInput | Hook::ArpOutput => 3,
                Hook::Egress => 5,
                // Ingress chains of `inet` and of `netdev` see different families.
                Hook::Ingress => return doubt(Cause::Unknown, "meta nfproto"),
                _ if self.is_ipv4() => 2,
                _ => 10,
            }]),
            16 if self.is_arp() => doubt(Cause::Packet, "meta l4proto"),
            16 => known(&[self.protocol()]),
            19 => doubt(Cause::Packet, "meta pkttype"),
            20 => doubt(Cause::Time, "meta cpu"),
            23 => doubt(Cause::Packet, "meta cgroup"),
            24 => doubt(Cause::Time, "meta random"),
            25 => doubt(Cause::Packet, "meta ipsec"),
            30..=32 => doubt(Cause::Time, "meta time, day, hour"),
            _ => doubt(Cause::Unknown, "unknown meta key"),
        }
    }

    /// Returns bytes of a header, and whether all packets are that long.
    pub(crate) fn payload(&self, base: Header, offset: usize, length: usize) -> (Vec<Byte>, bool) {
        let header = match base {
            Header::Link => {
                let mut header = vec![Byte::unknown(Doubt::new(Cause::Packet, "ether")); 6];
                header.extend(self.hardware_source("ether"));
                // The question is about untagged ARP; IP packets of a flow may have a VLAN tag.
                header.extend(match self.is_arp() {
                    true => known(&ETHERTYPE_ARP),
                    false => vec![Byte::unknown(Doubt::new(Cause::Packet, "ether type")); 2],
                });
                header
            }
            Header::Network if self.is_arp() => self.arp(),
            Header::Transport if self.is_arp() => Vec::new(),
            Header::Network => self.network(),
            Header::Transport => self.transport(),
            Header::Inner => Vec::new(),
        };
        let beyond = Byte::unknown(Doubt::new(Cause::Packet, "payload"));
        let is_there = offset.saturating_add(length) <= header.len();
        let at = |at: usize| header.get(offset.saturating_add(at)).copied().unwrap_or(beyond);
        ((0..length).map(at).collect(), is_there)
    }

    fn is_arp(&self) -> bool {
        self.flow.transport == Transport::Arp
    }

    fn hardware_source(&self, what: &'static str) -> Vec<Byte> {
        match self.step.hardware_source {
            Some(address) => known(&address.0),
            None => vec![Byte::unknown(Doubt::new(Cause::Packet, what)); 6],
        }
    }

    /// An ARP request for IPv4 over Ethernet (RFC 826).
    fn arp(&self) -> Vec<Byte> {
        let free = Byte::unknown(Doubt::new(Cause::Packet, "arp addresses"));
        let address = |address: IpAddr| match address {
            IpAddr::V4(four) if !self.is_any(address) => known(&four.octets()),
            _ => vec![free; 4],
        };
        let mut header = known(&[0, 1, 8, 0, 6, 4, 0, 1]);
        header.extend(self.hardware_source("arp addresses"));
        header.extend(address(self.flow.tuple.source.0));
        // The hardware address that is asked for is mostly zero.
        header.extend([free; 6]);
        header.extend(address(self.flow.tuple.destination.0));
        header
    }

    fn network(&self) -> Vec<Byte> {
        let free = |what| Byte::unknown(Doubt::new(Cause::Packet, what));
        let (source, destination) = (self.source(), self.destination());
        let address = |of: Option<(IpAddr, u16)>, length: usize| match of {
            Some((address, _)) if self.is_any(address) => vec![free("address"); length],
            Some((IpAddr::V4(address), _)) => known(&address.octets()),
            Some((IpAddr::V6(address), _)) => known(&address.octets()),
            None => vec![Byte::unknown(unknown("address at the priority of NAT")); length],
        };
        let mut header = Vec::with_capacity(40);
        if self.is_ipv4() {
            // No options.
            header.extend([Byte::known(0x45), free("ip dscp")]);
            header.extend([free("ip length"); 2]);
            header.extend([free("ip id"); 2]);
            // No MF flag and no offset; the other flags may vary.
            header.push(Byte::bits(0, 0x3f, Doubt::new(Cause::Packet, "ip frag-off")));
            header.push(Byte::known(0));
            header.extend([free("ip ttl"), Byte::known(self.protocol())]);
            header.extend([free("ip checksum"); 2]);
            header.extend(address(source, 4));
            header.extend(address(destination, 4));
        } else {
            header.push(Byte::bits(0x60, 0xf0, Doubt::new(Cause::Packet, "ip6 dscp")));
            header.extend([free("ip6 dscp"), free("ip6 flowlabel"), free("ip6 flowlabel")]);
            header.extend([free("ip6 length"); 2]);
            // No extension headers.
            header.extend([Byte::known(self.protocol()), free("ip6 hoplimit")]);
            header.extend(address(source, 16));
            header.extend(address(destination, 16));
        }
        header
    }

    fn transport(&self) -> Vec<Byte> {
        let free = |what| Byte::unknown(Doubt::new(Cause::Packet, what));
        let port = |of: Option<(IpAddr, u16)>| match of {
            Some((_, port)) => known(&port.to_be_bytes()),
            None => vec![Byte::unknown(unknown("port at the priority of NAT")); 2],
        };
        let source = || match self.flow.any_source_port {
            true => vec![free("source port"); 2],
            false => port(self.source()),
        };
        let ports = || [source(), port(self.destination())].concat();
        match self.flow.transport {
            Transport::Tcp => {
                let mut header = ports();
                header.extend([free("tcp sequence"); 4]);
                header.extend([free("tcp ackseq"); 4]);
                header.push(free("tcp doff"));
                header.push(tcp_flags());
                header.extend([free("tcp window"); 2]);
                header.extend([free("tcp checksum"); 2]);
                header.extend([free("tcp urgptr"); 2]);
                header
            }
            Transport::Udp => {
                let mut header = ports();
                header.extend([free("udp length"); 2]);
                header.extend([free("udp checksum"); 2]);
                header
            }
            Transport::Icmp { kind, code } => {
                let mut header = known(&[kind, code]);
                header.extend([free("icmp"); 6]);
                header
            }
            // No header above it.
            Transport::Arp => Vec::new(),
        }
    }

    /// Returns the value of `NFT_CT_*`. `None`: the expression breaks, so its rule does not match.
    pub(crate) fn ct(&self, key: u32, direction: Option<u8>) -> Option<Vec<Byte>> {
        let doubt = |cause, what| Some(vec![Byte::unknown(Doubt::new(cause, what)); 16]);
        let entry = match self.tracked() {
            Tracked::Entry(entry) => entry,
            // `ct state` of an untracked packet is invalid.
            Tracked::Nothing if key == 0 => return Some(known(&STATE_INVALID.to_ne_bytes())),
            // Other keys of an untracked packet break the expression.
            Tracked::Nothing => return None,
            Tracked::Unclear => return doubt(Cause::Unknown, "ct at this hook"),
        };
        // Tuples of the entry: original direction, reply direction.
        let (original, reply) = if entry.is_reply {
            (self.flow.other, self.flow.tuple)
        } else {
            (self.flow.tuple, self.flow.other)
        };
        let of = |direction| if direction == 0 { original } else { reply };
        let address = |address: IpAddr, wanted_ipv4: bool| match address {
            _ if self.is_any(address) => doubt(Cause::Packet, "ct saddr, daddr"),
            IpAddr::V4(address) if wanted_ipv4 => Some(known(&address.octets())),
            IpAddr::V6(address) if !wanted_ipv4 => Some(known(&address.octets())),
            // The other family has no such field.
            _ => None,
        };
        let is_ipv4 = self.is_ipv4();
        match (key, direction) {
            (0, None) => Some(known(&state(entry.state).to_ne_bytes())),
            (1, None) => Some(known(&[u8::from(entry.is_reply)])),
            (2, None) => match entry.status {
                Some(status) => Some(known(&status.to_ne_bytes())),
                // The flow does not specify the status bits.
                None => doubt(Cause::Unknown, "ct status"),
            },
            (3, None) => match entry.mark {
                Some(mark) => Some(known(&mark.to_ne_bytes())),
                None => doubt(Cause::Unknown, "ct mark"),
            },
            (4, None) => doubt(Cause::Packet, "ct secmark"),
            (5, None) => doubt(Cause::Time, "ct expiration"),
            (7, _) => Some(known(&[if is_ipv4 { 2 } else { 10 }])),
            (8, Some(direction)) => address(of(direction).source.0, is_ipv4),
            (9, Some(direction)) => address(of(direction).destination.0, is_ipv4),
            (10, _) => Some(known(&[self.protocol()])),
            // For ICMP these are identifier, type and code.
            (11 | 12, _) if matches!(self.flow.transport, Transport::Icmp { .. }) => {
                doubt(Cause::Unknown, "ct proto-src, proto-dst")
            }
            (11 | 12, _) if self.flow.any_source_port => {
                doubt(Cause::Packet, "ct proto-src, proto-dst")
            }
            (11, Some(direction)) => Some(known(&of(direction).source.1.to_be_bytes())),
            (12, Some(direction)) => Some(known(&of(direction).destination.1.to_be_bytes())),
            (13, None) => doubt(Cause::Unannounced, "ct label"),
            // Counters stand still for packets on the fast path.
            (14..=16, _) => doubt(Cause::Counting, "ct packets, bytes, avgpkt"),
            (17, None) => Some(known(&entry.zone.to_ne_bytes())),
            (19, Some(direction)) => address(of(direction).source.0, true),
            (20, Some(direction)) => address(of(direction).destination.0, true),
            (21, Some(direction)) => address(of(direction).source.0, false),
            (22, Some(direction)) => address(of(direction).destination.0, false),
            // A key of a newer kernel.
            _ => doubt(Cause::Unknown, "unknown ct key"),
        }
    }

    /// Returns the type of an address (`RTN_*`).
    pub(crate) fn address_type(&self, address: Option<(IpAddr, u16)>) -> Option<u8> {
        let (address, _) = address?;
        let known = self.flow.address_types.iter().find(|(of, _)| *of == address);
        known.map(|(_, kind)| *kind)
    }

    /// Returns the result of `fib saddr type` or `fib daddr type`.
    pub(crate) fn fib(&self, result: u32, flags: u32) -> Vec<Byte> {
        let doubt = || vec![Byte::unknown(unknown("fib")); 16];
        // NFT_FIB_RESULT_ADDRTYPE; NFTA_FIB_F_SADDR, NFTA_FIB_F_DADDR.
        let kind = match (result, flags) {
            (3, 1) => self.address_type(self.source()),
            (3, 2) => self.address_type(self.destination()),
            // Other results depend on the packet's device or on routes.
            _ => None,
        };
        kind.map_or_else(doubt, |kind| known(&u32::from(kind).to_ne_bytes()))
    }
}

/// TCP flags: ACK set, FIN, SYN and RST clear, the others may vary.
pub(crate) fn tcp_flags() -> Byte {
    Byte::bits(0x10, 0x17, Doubt::new(Cause::Packet, "tcp flags"))
}

/// `NF_CT_STATE_*`.
pub(crate) fn state(state: State) -> u32 {
    match state {
        State::Established => STATE_ESTABLISHED,
        State::Related => STATE_RELATED,
        State::New => STATE_NEW,
    }
}

/// Selects the value before or after NAT. If that is unknown, returns it only if both are equal.
fn pick(
    before: (IpAddr, u16),
    behind: (IpAddr, u16),
    is_behind: Option<bool>,
) -> Option<(IpAddr, u16)> {
    match is_behind {
        Some(false) => Some(before),
        Some(true) => Some(behind),
        None => (before == behind).then_some(before),
    }
}
