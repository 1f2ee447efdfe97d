//! The rule, route or neighbour behind a drop that `trace` saw, from the current state of its
//! namespace.
//!
//! The kernel names no rule. The rules are evaluated for the packet's addresses at the hooks where
//! the packet may have been, and the first rule that drops it is named. An undecided rule is not
//! named.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netstate::Netlink;
use netstate::entry::{Address, Knowledge};
use netstate::interface::Interface;
use netstate::namespace::discover;
use netstate::route_table::{RouteEntry, RouteKind};
use observe::{Event, Journey, Kind, Packet, PacketEnding};
use ruleset::{
    Connection, Flow, Hook, Nftables, Place, Ruleset, State, Step, Transport, Tuple, Verdict,
};
use sys::netns::NetNs;
use sys::nsfs::Owner;

/// Time for which links and addresses of a namespace are kept.
const FRESH: Duration = Duration::from_secs(1);
/// Most routes that are read for a drop.
const MOST_ROUTES: usize = 20_000;

/// The namespaces in which drops were seen.
#[derive(Default)]
pub struct DropCauses {
    spaces: BTreeMap<u32, Space>,
    /// Last search for namespaces.
    searched: Option<Instant>,
}

/// State of a namespace.
struct Space {
    netns: NetNs,
    netlink: Netlink,
    nftables: Nftables,
    rules: Option<(Ruleset, Instant)>,
    links: Vec<Interface>,
    addresses: Vec<Address>,
    read: Instant,
}

impl DropCauses {
    /// Adds the cause to each drop of a packet for which one is found.
    pub fn name(&mut self, journey: &Journey, packet: &mut Packet) {
        for (leg, told) in packet.legs.iter_mut().enumerate() {
            if let PacketEnding::Dropped { reason, function, cause, .. } = &mut told.ending {
                let seen = Seen::of(journey, leg);
                *cause = seen.and_then(|seen| self.find(&seen, reason, function.as_deref()));
            }
        }
    }

    fn find(&mut self, seen: &Seen<'_>, reason: &str, function: Option<&str>) -> Option<String> {
        let destination = seen.flow.destination;
        match (reason, function) {
            ("NETFILTER_DROP", _) => {
                let space = self.space(seen.event.netns?)?;
                space.rules()?;
                space.rule(seen)
            }
            ("NEIGH_FAILED" | "NEIGH_QUEUEFULL", _) => {
                self.space(seen.event.netns?)?.neighbour(destination)
            }
            ("IP_OUTNOROUTES" | "IP_INNOROUTES", _) | ("NOT_SPECIFIED", Some("ip_error")) => {
                let routes = self.space(seen.event.netns?)?.netlink.routes(MOST_ROUTES).ok()?;
                Some(route(&routes, destination))
            }
            _ => None,
        }
    }

    /// Returns the namespace with this inode, if it can be read.
    fn space(&mut self, inode: u32) -> Option<&mut Space> {
        if let Some(space) = self.spaces.get_mut(&inode)
            && space.read.elapsed() >= FRESH
        {
            space.links = space.netlink.links().ok()?;
            space.addresses = space.netlink.addresses().ok()?;
            space.read = Instant::now();
        }
        if !self.spaces.contains_key(&inode) {
            // A search takes long, and an unknown inode would ask for one at each drop.
            if self.searched.is_some_and(|at| at.elapsed() < FRESH) {
                return None;
            }
            self.searched = Some(Instant::now());
            let found = discover().ok()?.namespaces.remove(&inode.into())?;
            // Another user could make the rules long, and change them all the time.
            if matches!(found.owner, Owner::Below { .. }) {
                return None;
            }
            self.spaces.insert(inode, Space::read(found.netns)?);
        }
        self.spaces.get_mut(&inode)
    }
}

impl Space {
    fn read(netns: NetNs) -> Option<Space> {
        let netlink = Netlink::open_in(&netns).ok()?;
        let nftables = netns.run(Nftables::open).ok()?.ok()?;
        let (links, addresses) = (netlink.links().ok()?, netlink.addresses().ok()?);
        let read = Instant::now();
        Some(Space { netns, netlink, nftables, rules: None, links, addresses, read })
    }

    /// Returns the rules, read again if they changed. `None`: they change too often to be read.
    fn rules(&mut self) -> Option<&Ruleset> {
        let is_current = match &self.rules {
            None => false,
            Some((rules, read)) => {
                let is_behind = ruleset::is_behind(&mut self.nftables, rules).ok()?;
                // Rules of iptables-legacy have no generation.
                let has_legacy = rules.chains.iter().any(|chain| chain.is_legacy);
                let is_fresh = read.elapsed() < FRESH;
                if is_behind && is_fresh {
                    return None;
                }
                !is_behind && (is_fresh || !has_legacy)
            }
        };
        if !is_current {
            let mut rules = ruleset::read_filters(&mut self.nftables).ok()?;
            self.netns.run(|| rules.join_legacy()).ok()?.ok()?;
            self.rules = Some((rules, Instant::now()));
        }
        self.rules.as_ref().map(|(rules, _)| rules)
    }

    fn link(&self, index: u32) -> Option<&Interface> {
        self.links.iter().find(|link| link.index == index)
    }

    fn is_local(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|known| known.address == address)
    }

    /// Names the rule that drops a packet.
    fn rule(&self, seen: &Seen<'_>) -> Option<String> {
        let (rules, _) = self.rules.as_ref()?;
        let path = self.path(seen);
        let mut all = seen.flows(|address| self.is_local(address)).into_iter().map(|flow| {
            match rules.verdict(&flow, &path).verdict {
                Verdict::Drop { at } => Some(at),
                _ => None,
            }
        });
        let first = all.next()??;
        // The type of an ICMP message is unknown: every type must be dropped by the same rule.
        all.all(|other| other.as_ref() == Some(&first)).then(|| words(&first))
    }

    /// Returns the hooks that a packet may have passed at the place of the drop.
    fn path(&self, seen: &Seen<'_>) -> Vec<Step> {
        let event = seen.event;
        let to = seen.flow.destination;
        let by_route = || self.link(self.netlink.way_to(to, None).ok()?.link);
        let Some(at) = event.device.as_ref().and_then(|(index, _)| self.link(*index)) else {
            return vec![step(Hook::Output, None, by_route())];
        };
        // A tunnel's device sends the outer packet as the host does.
        if at.vxlan.is_some() && event.tunnel.is_some() {
            return vec![step(Hook::Output, None, by_route())];
        }
        let came_by = seen.came_by.and_then(|index| self.link(index));
        let bridge = at.master.and_then(|master| self.link(master));
        if let Some(bridge) = bridge.filter(|bridge| bridge.bridge.is_some()) {
            return bridged(bridge, came_by, at);
        }
        let out = [Hook::Output, Hook::Postrouting, Hook::Egress];
        let out = out.map(|hook| step(hook, None, Some(at)));
        if came_by.is_none() && self.is_local(seen.flow.source) {
            return out.to_vec();
        }
        // With `--drops-only` nothing was seen before the drop.
        let is_input = match came_by {
            Some(input) => input.index == at.index,
            None => by_route().is_none_or(|output| output.index != at.index),
        };
        if !is_input {
            return out[1..].to_vec();
        }
        let before = [Hook::Ingress, Hook::Prerouting].map(|hook| step(hook, Some(at), None));
        let last = match self.is_local(to) {
            true => step(Hook::Input, Some(at), None),
            false => step(Hook::Forward, Some(at), by_route()),
        };
        before.into_iter().chain([last]).collect()
    }

    /// Names the neighbour that does not answer.
    fn neighbour(&self, to: IpAddr) -> Option<String> {
        let way = self.netlink.way_to(to, None).ok()?;
        let next = way.via.unwrap_or(to);
        let all = self.netlink.neighbours().ok()?;
        let known = all.iter().find(|known| (known.link, known.address) == (way.link, next))?;
        let state = match known.knowledge {
            Knowledge::Failed => "failed",
            Knowledge::Incomplete => "incomplete",
            // It has answered since.
            _ => return None,
        };
        let device = self.link(way.link).map_or("?", |link| link.name.as_str());
        Some(format!("neighbour {next} on {device}, next hop to {to}: {state}"))
    }
}

/// A dropped packet.
struct Seen<'a> {
    event: &'a Event,
    /// Headers that the namespace of the drop sees: the outer ones of a packet in a tunnel.
    flow: observe::Flow,
    /// Index of the device by which it came into the namespace; `None`: it began there.
    came_by: Option<u32>,
}

impl Seen<'_> {
    fn of(journey: &Journey, leg: usize) -> Option<Seen<'_>> {
        let steps = || journey.steps.iter().rev().filter(move |step| step.leg == leg);
        let event = &steps().find(|step| step.event.kind == Kind::Dropped)?.event;
        let flow = event.tunnel.map(|tunnel| tunnel.outer).or(event.flow)?;
        let here = steps().filter(|step| step.event.netns == event.netns);
        let came_by = here
            .filter(|step| matches!(step.event.kind, Kind::Received | Kind::Gro | Kind::Backlog))
            .find_map(|step| step.event.device.as_ref().map(|(index, _)| *index));
        Some(Seen { event, flow, came_by })
    }

    /// Returns the flows that the packet may belong to: several if its ICMP type is unknown.
    fn flows(&self, is_local: impl Fn(IpAddr) -> bool) -> Vec<Flow> {
        /// Echo request, echo reply, and the messages about a small MTU.
        const ICMP: [(u8, u8); 3] = [(8, 0), (0, 0), (3, 4)];
        const ICMPV6: [(u8, u8); 3] = [(128, 0), (129, 0), (2, 0)];
        let (from, to) = (self.flow.source, self.flow.destination);
        let icmp = |types: [(u8, u8); 3]| {
            types.map(|(kind, code)| Transport::Icmp { kind, code }).to_vec()
        };
        let transports = match self.flow.protocol {
            6 => vec![Transport::Tcp],
            17 => vec![Transport::Udp],
            1 => icmp(ICMP),
            58 => icmp(ICMPV6),
            _ => Vec::new(),
        };
        let (source_port, destination_port) = self.flow.ports;
        let tuple = Tuple { source: (from, source_port), destination: (to, destination_port) };
        // `enum ip_conntrack_info`.
        let state = |info| match info {
            0 | 3 => Some(State::Established),
            1 | 4 => Some(State::Related),
            2 => Some(State::New),
            _ => None,
        };
        let info = self.event.conntrack;
        let connection = info.and_then(state).map(|state| Connection {
            state,
            is_reply: info.is_some_and(|info| info > 2),
            status: None,
            mark: 0,
            zone: 0,
        });
        let kind = |address| {
            let is = if is_local(address) { ruleset::flow::LOCAL } else { ruleset::flow::UNICAST };
            (address, is)
        };
        let flow = |transport| Flow {
            tuple,
            other: tuple.reversed(),
            any_source_port: false,
            any_address: None,
            asks_nat: false,
            transport,
            connection,
            mark: self.event.mark,
            address_types: vec![kind(from), kind(to)],
        };
        transports.into_iter().map(flow).collect()
    }
}

/// Hooks of a frame that crosses a bridge.
fn bridged(bridge: &Interface, came_by: Option<&Interface>, at: &Interface) -> Vec<Step> {
    let mut path = Vec::new();
    if let Some(input) = came_by {
        path.push(step(Hook::BridgePrerouting, Some(input), None));
        path.push(step(Hook::BridgeForward, Some(input), Some(at)));
    }
    let of_bridge = [Hook::Prerouting, Hook::Forward, Hook::Postrouting].map(|hook| Step {
        port_in: came_by.map(|input| input.name.clone()),
        port_out: (hook != Hook::Prerouting).then(|| at.name.clone()),
        ..step(
            hook,
            (hook != Hook::Postrouting).then_some(bridge),
            (hook != Hook::Prerouting).then_some(bridge),
        )
    });
    path.extend(of_bridge);
    path
}

fn step(hook: Hook, input: Option<&Interface>, output: Option<&Interface>) -> Step {
    let named = |link: Option<&Interface>| {
        link.map(|link| ruleset::Interface { index: link.index, name: link.name.clone() })
    };
    Step { hook, input: named(input), output: named(output), port_in: None, port_out: None }
}

/// Describes the place that drops a packet.
fn words(at: &Place) -> String {
    let chain = format!("{} {} {}", at.family_name(), at.table, at.chain);
    match at.handle {
        Some(number) if at.is_legacy => format!("rule {number} of {chain} drops it"),
        Some(handle) => format!("the rule with handle {handle} of {chain} drops it"),
        None => format!("the policy of {chain} drops it"),
    }
}

/// Describes the route that drops packets to an address, or that there is none.
fn route(routes: &[RouteEntry], to: IpAddr) -> String {
    let best = routes.iter().filter(|route| route.covers(to)).max_by_key(|route| route.prefix);
    match best {
        Some(route) if route.kind != RouteKind::Unicast => {
            format!("route: {} {}/{}", route.kind.name(), route.to, route.prefix)
        }
        // Policy routing may use another table.
        Some(_) => format!("no route to {to} for this packet"),
        None => format!("no route to {to}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_as_their_programs_name_them() {
        let place = |family, handle, is_legacy| Place {
            family,
            table: "filter".to_owned(),
            chain: "INPUT".to_owned(),
            handle,
            is_legacy,
        };
        for (place, expected) in [
            (place(2, Some(7), false), "the rule with handle 7 of ip filter INPUT drops it"),
            (place(1, None, false), "the policy of inet filter INPUT drops it"),
            (place(2, Some(3), true), "rule 3 of iptables-legacy filter INPUT drops it"),
            (place(10, None, true), "the policy of ip6tables-legacy filter INPUT drops it"),
        ] {
            assert_eq!(words(&place), expected);
        }
    }

    #[test]
    fn the_longest_route_decides() {
        let entry = |to: [u8; 4], prefix, kind| RouteEntry {
            to: to.into(),
            prefix,
            kind,
            via: None,
            link: Some(2),
            table: 254,
            protocol: 3,
        };
        let routes = [
            entry([10, 0, 0, 0], 8, RouteKind::Unicast),
            entry([10, 244, 2, 0], 24, RouteKind::Blackhole),
            entry([10, 244, 0, 0], 16, RouteKind::Unreachable),
        ];
        for (to, expected) in [
            ([10, 244, 2, 9], "route: blackhole 10.244.2.0/24"),
            ([10, 244, 3, 9], "route: unreachable 10.244.0.0/16"),
            ([10, 1, 1, 1], "no route to 10.1.1.1 for this packet"),
            ([192, 0, 2, 1], "no route to 192.0.2.1"),
        ] {
            assert_eq!(route(&routes, to.into()), expected);
        }
    }
}
