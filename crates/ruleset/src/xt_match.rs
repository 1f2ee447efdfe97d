//! Evaluates matches of x_tables for the packets of a flow.

use std::net::IpAddr;

use crate::flow::{State, Transport};
use crate::packet::{Packets, Tracked, tcp_flags};
use crate::value::{Cause, Comparison, Doubt, Holds, compare};
use crate::xt::{Conntrack, Match, Physdev, Ports, Which};

// include/uapi/linux/netfilter/xt_conntrack.h, xt_state.h, xt_physdev.h.
const STATE_INVALID: u32 = 1;
const STATE_ESTABLISHED: u32 = 2;
const STATE_RELATED: u32 = 4;
const STATE_NEW: u32 = 8;
/// Result for a flow with many source ports.
const SOURCE_PORT: Holds = Holds::Maybe(Doubt::new(Cause::Packet, "source port"));
const STATE_SNAT: u32 = 1 << 6;
const STATE_DNAT: u32 = 1 << 7;
const IPS_SRC_NAT: u32 = 1 << 4;
const IPS_DST_NAT: u32 = 1 << 5;

fn unknown(what: &'static str) -> Holds {
    Holds::Maybe(Doubt::new(Cause::Unknown, what))
}

impl Packets<'_> {
    pub(crate) fn matches(&self, matches: &Match) -> Holds {
        match matches {
            Match::Always => Holds::Yes,
            Match::Slow(doubt) => Holds::Maybe(*doubt),
            Match::Conntrack(info) => self.conntrack(info),
            Match::State { mask } => match self.state() {
                Ok(state) => Holds::of(state & mask != 0),
                Err(holds) => holds,
            },
            Match::Mark { mark, mask, inverted } => {
                Holds::of((self.mark & mask == *mark) != *inverted)
            }
            Match::Connmark { mark, mask, inverted } => match self.tracked() {
                Tracked::Entry(entry) => match entry.mark {
                    Some(known) => Holds::of((known & mask == *mark) != *inverted),
                    None => unknown("connmark"),
                },
                // The kernel does not match untracked packets.
                Tracked::Nothing => Holds::No,
                Tracked::Unclear => unknown("connmark"),
            },
            Match::AddressType { source, destination, not_source, not_destination } => {
                let side = |mask: u16, inverted, address| {
                    if mask == 0 {
                        return Holds::Yes;
                    }
                    match self.address_type(address) {
                        Some(kind) if address.is_some_and(|(address, _)| address.is_ipv6()) => {
                            Holds::of(is_type_of_ipv6(mask, kind) != inverted)
                        }
                        Some(kind) if kind < 16 => Holds::of((mask >> kind & 1 != 0) != inverted),
                        // The type is unknown, or beyond the mask.
                        _ => unknown("addrtype"),
                    }
                };
                side(*source, *not_source, self.source()).and(side(
                    *destination,
                    *not_destination,
                    self.destination(),
                ))
            }
            Match::Multiport { which, ranges, inverted } => {
                let Some((source, destination)) = self.ports() else { return unknown("multiport") };
                let has =
                    |port: u16| ranges.iter().any(|(low, high)| (*low..=*high).contains(&port));
                let from = source.map_or(SOURCE_PORT, |source| Holds::of(has(source)));
                let holds = match which {
                    Which::Source => from,
                    Which::Destination => Holds::of(has(destination)),
                    Which::Either if has(destination) => Holds::Yes,
                    Which::Either => from,
                };
                holds.xor(*inverted)
            }
            Match::Tcp { ports, flag_mask, flags, not_flags, has_option } => {
                // iptables adds a protocol match in front, so such a flow should not get here.
                if self.flow.transport != Transport::Tcp {
                    return unknown("tcp");
                }
                let masked = [tcp_flags().masked(*flag_mask, 0)];
                let flags = compare(&masked, Comparison::Equal, &[*flags]).xor(*not_flags);
                let option = match has_option {
                    true => Holds::Maybe(Doubt::new(Cause::Packet, "tcp option")),
                    false => Holds::Yes,
                };
                self.in_ports(ports, "tcp").and(flags).and(option)
            }
            Match::Udp { ports } => {
                if self.flow.transport != Transport::Udp {
                    return unknown("udp");
                }
                self.in_ports(ports, "udp")
            }
            Match::Icmp { kind, codes, inverted, v6 } => match self.flow.transport {
                Transport::Icmp { kind: own, code } if self.is_ipv4() != *v6 => {
                    // Type 255 is any type (icmp_type_code_match). ICMPv6 has no such wildcard.
                    let is_any = !v6 && *kind == 0xff;
                    let is_of = own == *kind && (codes.0..=codes.1).contains(&code);
                    Holds::of((is_any || is_of) != *inverted)
                }
                _ => unknown("icmp"),
            },
            Match::AddressRange { source, destination } => {
                let (Some((from, _)), Some((to, _))) = (self.source(), self.destination()) else {
                    return unknown("iprange");
                };
                if self.is_any(from) || self.is_any(to) {
                    return Holds::Maybe(Doubt::new(Cause::Packet, "iprange"));
                }
                let source = source.is_none_or(|range| range.has(from));
                Holds::of(source && destination.is_none_or(|range| range.has(to)))
            }
            Match::Physdev(info) => self.physdev(info),
        }
    }

    /// Returns `XT_STATE_BIT`, which equals `XT_CONNTRACK_STATE_BIT`.
    fn state(&self) -> Result<u32, Holds> {
        match self.tracked() {
            Tracked::Entry(entry) => Ok(match entry.state {
                State::Established => STATE_ESTABLISHED,
                State::Related => STATE_RELATED,
                State::New => STATE_NEW,
            }),
            Tracked::Nothing => Ok(STATE_INVALID),
            Tracked::Unclear => Err(unknown("state")),
        }
    }

    /// Returns source and destination port of TCP or UDP. The source is `None` if there are many.
    fn ports(&self) -> Option<(Option<u16>, u16)> {
        match self.flow.transport {
            Transport::Tcp | Transport::Udp => {
                let source = self.source()?.1;
                Some(((!self.flow.any_source_port).then_some(source), self.destination()?.1))
            }
            // These have no ports.
            Transport::Icmp { .. } | Transport::Arp => None,
        }
    }

    fn in_ports(&self, ports: &Ports, what: &'static str) -> Holds {
        let Some((source, destination)) = self.ports() else { return unknown(what) };
        let is_in = |port: u16, (low, high): (u16, u16), inverted| {
            Holds::of((low..=high).contains(&port) != inverted)
        };
        let from = match source {
            Some(port) => is_in(port, ports.source, ports.not_source),
            None if ports.source == (0, u16::MAX) => Holds::of(!ports.not_source),
            None => SOURCE_PORT,
        };
        from.and(is_in(destination, ports.destination, ports.not_destination))
    }

    /// Evaluates `conntrack_mt` of `net/netfilter/xt_conntrack.c`, with its flag bits.
    fn conntrack(&self, info: &Conntrack) -> Holds {
        let is_asked = |bit: u16| info.flags & 1 << bit != 0;
        let is_inverted = |bit: u16| info.inverted & 1 << bit != 0;
        let mut state = match self.state() {
            Ok(state) => state,
            Err(holds) => return holds,
        };
        let entry = match self.tracked() {
            Tracked::Entry(entry) => Some(entry),
            // Without an entry only the state can match.
            _ => None,
        };
        let mut holds = Holds::Yes;
        if is_asked(0) {
            let mut is_clear = true;
            if let Some(entry) = entry {
                let translated = u32::from(info.state) & (STATE_SNAT | STATE_DNAT) != 0;
                let status = entry.status.unwrap_or(0);
                is_clear = entry.status.is_some() || !translated;
                state |= if status & IPS_SRC_NAT != 0 { STATE_SNAT } else { 0 };
                state |= if status & IPS_DST_NAT != 0 { STATE_DNAT } else { 0 };
            }
            holds = match u32::from(info.state) & state != 0 {
                false if !is_clear => unknown("conntrack state SNAT, DNAT"),
                found => Holds::of(found != is_inverted(0)),
            };
        }
        // Without an entry, only the state can match.
        let Some(entry) = entry else { return holds.and(Holds::of(is_asked(0))) };
        let (original, reply) = if entry.is_reply {
            (self.flow.other, self.flow.tuple)
        } else {
            (self.flow.tuple, self.flow.other)
        };
        if is_asked(12) {
            holds = holds.and(Holds::of(entry.is_reply == is_inverted(12)));
        }
        if is_asked(1) {
            let is_it = info.protocol == u16::from(self.protocol());
            holds = holds.and(Holds::of(is_it != is_inverted(1)));
        }
        let ends = [original.source, original.destination, reply.source, reply.destination];
        for (at, (address, port)) in ends.into_iter().enumerate() {
            let bit = 2 + at as u16;
            if is_asked(bit) && self.is_any(address) {
                holds = holds.and(Holds::Maybe(Doubt::new(Cause::Packet, "conntrack addresses")));
            } else if is_asked(bit) {
                let (wanted, mask) = &info.addresses[at];
                let is_it = is_masked(address, mask, wanted);
                holds = holds.and(Holds::of(is_it != is_inverted(bit)));
            }
            let bit = 8 + at as u16;
            if is_asked(bit) {
                if matches!(self.flow.transport, Transport::Icmp { .. })
                    || self.flow.any_source_port
                {
                    return unknown("conntrack ports");
                }
                let (low, high) = info.ports[at];
                let is_it = (low..=high).contains(&port);
                holds = holds.and(Holds::of(is_it != is_inverted(bit)));
            }
        }
        if is_asked(6) {
            holds = holds.and(match entry.status {
                Some(status) => Holds::of((u32::from(info.status) & status != 0) != is_inverted(6)),
                None => unknown("conntrack status"),
            });
        }
        // The remaining lifetime changes with every packet.
        if is_asked(7) {
            holds = holds.and(Holds::Maybe(Doubt::new(Cause::Time, "conntrack expire")));
        }
        holds
    }

    /// Evaluates `physdev_mt` of `net/netfilter/xt_physdev.c`.
    fn physdev(&self, info: &Physdev) -> Holds {
        const IN: u8 = 1;
        const OUT: u8 = 2;
        const BRIDGED: u8 = 4;
        const IS_IN: u8 = 8;
        const IS_OUT: u8 = 16;
        let (input, output) = (&self.step.port_in, &self.step.port_out);
        let is_asked = |bit: u8| info.which & bit != 0;
        let is_inverted = |bit: u8| info.inverted & bit != 0;
        if input.is_none() && output.is_none() {
            // br_netfilter has not seen the packet: only inverted conditions hold.
            return Holds::of(info.which & !info.inverted == 0);
        }
        let is_named = |name: &str, wanted: &[u8; 16], mask: &[u8; 16]| {
            let mut padded = [0; 16];
            for (to, from) in padded.iter_mut().zip(name.bytes()) {
                *to = from;
            }
            (0..16).all(|at| (padded[at] ^ wanted[at]) & mask[at] == 0)
        };
        let mut holds = true;
        for (bit, is_there) in
            [(BRIDGED, output.is_some()), (IS_IN, input.is_some()), (IS_OUT, output.is_some())]
        {
            holds &= !is_asked(bit) || is_there != is_inverted(bit);
        }
        // A missing input port is not compared.
        if let (true, Some(name)) = (is_asked(IN), input) {
            holds &= is_named(name, &info.input, &info.input_mask) != is_inverted(IN);
        }
        if is_asked(OUT) {
            holds &= output.as_ref().is_some_and(|name| {
                is_named(name, &info.output, &info.output_mask) != is_inverted(OUT)
            });
        }
        Holds::of(holds)
    }
}

/// Whether a unicast address of a type (`RTN_*`) matches a mask of types, as `match_type6` of
/// net/netfilter/xt_addrtype.c. The types that the mask can ask the routes for are three; all other
/// bits are about the form of the address.
fn is_type_of_ipv6(mask: u16, kind: u8) -> bool {
    /// `XT_ADDRTYPE_UNSPEC`, `XT_ADDRTYPE_MULTICAST`.
    const OTHER_FORMS: u16 = 1 | 1 << 5;
    /// `XT_ADDRTYPE_LOCAL`, `XT_ADDRTYPE_ANYCAST`, `XT_ADDRTYPE_UNREACHABLE`.
    const ROUTES: u16 = 1 << 2 | 1 << 4 | 1 << 7;
    match mask & ROUTES {
        _ if mask & OTHER_FORMS != 0 => false,
        0 => true,
        asked => asked.checked_shr(kind.into()).is_some_and(|bits| bits & 1 == 1),
    }
}

fn is_masked(address: IpAddr, mask: &[u8; 16], wanted: &[u8; 16]) -> bool {
    let equal = |bytes: &[u8]| (0..bytes.len()).all(|at| bytes[at] & mask[at] == wanted[at]);
    match address {
        IpAddr::V4(address) => equal(&address.octets()),
        IpAddr::V6(address) => equal(&address.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::is_type_of_ipv6;

    #[test]
    fn ipv6_address_types_match_as_the_kernel_matches_them() {
        const UNICAST: u16 = 1 << 1;
        const LOCAL: u16 = 1 << 2;
        const MULTICAST: u16 = 1 << 5;
        const UNREACHABLE: u16 = 1 << 7;
        for (mask, kind, expected) in [
            (LOCAL, 2, true),
            (LOCAL, 1, false),
            (UNICAST, 1, true),
            // The address of the host is unicast by its form.
            (UNICAST, 2, true),
            (UNICAST | LOCAL, 1, false),
            (UNREACHABLE, 7, true),
            (UNREACHABLE, 1, false),
            (MULTICAST, 1, false),
            (MULTICAST | LOCAL, 2, false),
        ] {
            assert_eq!(is_type_of_ipv6(mask, kind), expected, "{mask:#x} {kind}");
        }
    }
}
