//! The state of a namespace where packets are dropped.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use netstate::Netlink;
use netstate::entry::{Address, Knowledge};
use netstate::interface::Interface;
use ruleset::{Hook, Nftables, Ruleset, Step, Verdict};
use sys::netns::NetNs;

use super::seen::Seen;
use super::words;

/// Time for which links, addresses and rules are kept.
const FRESH: Duration = Duration::from_secs(1);
/// Most routes that are read for a drop.
const MOST_ROUTES: usize = 20_000;

/// State of a namespace.
pub struct Space {
    netns: NetNs,
    netlink: Netlink,
    nftables: Nftables,
    rules: Option<(Ruleset, Instant)>,
    links: Vec<Interface>,
    addresses: Vec<Address>,
    read: Instant,
}

impl Space {
    pub fn open(netns: NetNs) -> Option<Space> {
        let netlink = Netlink::open_in(&netns).ok()?;
        let nftables = netns.run(Nftables::open).ok()?.ok()?;
        let (links, addresses) = (netlink.links().ok()?, netlink.addresses().ok()?);
        let read = Instant::now();
        Some(Space { netns, netlink, nftables, rules: None, links, addresses, read })
    }

    /// Reads links and addresses again if they are not fresh.
    pub fn refresh(&mut self) -> Option<&mut Space> {
        if self.read.elapsed() >= FRESH {
            self.links = self.netlink.links().ok()?;
            self.addresses = self.netlink.addresses().ok()?;
            self.read = Instant::now();
        }
        Some(self)
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
                // Rules that change all the time must not be read for each drop.
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
    pub fn rule(&mut self, seen: &Seen<'_>) -> Option<String> {
        self.rules()?;
        let (rules, _) = self.rules.as_ref()?;
        let path = self.path(seen);
        let mut all = seen.flows(|address| self.is_local(address)).into_iter().map(|flow| {
            match rules.verdict(&flow, &path).verdict {
                Verdict::Drop { at } => Some(at),
                // The rules have changed, or depend on more than the headers: no rule is named.
                _ => None,
            }
        });
        let first = all.next()??;
        // The type of an ICMP message is unknown: every type must be dropped by the same rule.
        all.all(|other| other.as_ref() == Some(&first)).then(|| words::place(&first))
    }

    /// Returns the hooks that a packet may have passed at the place of the drop.
    fn path(&self, seen: &Seen<'_>) -> Vec<Step> {
        let event = seen.event;
        let to = seen.flow.destination;
        let by_route = || self.link(self.netlink.way_to(to, None).ok()?.link);
        let Some(at) = event.device.as_ref().and_then(|(index, _)| self.link(*index)) else {
            return vec![Step::new(Hook::Output, None, by_route())];
        };
        // A tunnel's device sends the outer packet as the host does.
        if at.vxlan.is_some() && event.tunnel.is_some() {
            return vec![Step::new(Hook::Output, None, by_route())];
        }
        let came_by = seen.came_by.and_then(|index| self.link(index));
        let bridge = at.master.and_then(|master| self.link(master));
        if let Some(bridge) = bridge.filter(|bridge| bridge.bridge.is_some()) {
            let crossed = came_by.map(|from| Step::between_ports(from, at));
            let shown = Step::by_br_netfilter(bridge, came_by, at);
            return crossed.into_iter().flatten().chain(shown).collect();
        }
        let out = [Hook::Output, Hook::Postrouting, Hook::Egress];
        let out = out.map(|hook| Step::new(hook, None, Some(at)));
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
        let before = [Hook::Ingress, Hook::Prerouting].map(|hook| Step::new(hook, Some(at), None));
        let last = match self.is_local(to) {
            true => Step::new(Hook::Input, Some(at), None),
            false => Step::new(Hook::Forward, Some(at), by_route()),
        };
        before.into_iter().chain([last]).collect()
    }

    /// Names the neighbour that does not answer.
    pub fn neighbour(&self, to: IpAddr) -> Option<String> {
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

    /// Names the route that drops packets to an address.
    pub fn route(&self, to: IpAddr) -> Option<String> {
        let routes = self.netlink.routes(MOST_ROUTES).ok()?;
        Some(words::route(&routes, to))
    }

    /// Names the forwarding entry that leads nowhere, or that is missing.
    pub fn forwarding(&self, seen: &Seen<'_>) -> Option<String> {
        let at = self.link(seen.device()?)?;
        let (to, _) = seen.event.macs?;
        let entries = self.netlink.fdb().ok()?;
        if at.vxlan.is_some() {
            return words::vxlan_entry(at, &entries, to);
        }
        let bridge = match at.bridge {
            Some(_) => at,
            None => self.link(at.master?)?,
        };
        // The bridge itself sends the packets of this namespace.
        let came_by = Some(at.index).filter(|index| *index != bridge.index).or(seen.came_by);
        words::bridge_entry(bridge, &self.links, &entries, (to, came_by))
    }

    /// Names the fixed entry that another source contradicts.
    pub fn fixed_entry(&self, seen: &Seen<'_>) -> Option<String> {
        let at = self.link(seen.device()?).filter(|at| at.vxlan.is_some())?;
        let (_, from) = seen.event.macs?;
        words::fixed_entry(at, &self.netlink.fdb().ok()?, (from, seen.flow.source))
    }

    /// Names the address that the device has instead.
    pub fn other_host(&self, seen: &Seen<'_>) -> Option<String> {
        let at = self.link(seen.device()?)?;
        let ((to, _), own) = (seen.event.macs?, at.mac?);
        (to != own).then(|| format!("the packet is for {to}; {} has {own}", at.name))
    }

    /// Names the device that routes back to the source use.
    pub fn way_back(&self, seen: &Seen<'_>) -> Option<String> {
        let (at, from) = (self.link(seen.device()?)?, seen.flow.source);
        let Ok(way) = self.netlink.way_to(from, None) else {
            return Some(format!("no route back to {from}"));
        };
        let back = self.link(way.link).filter(|back| back.index != at.index)?;
        Some(format!("the route back to {from} uses {}; it arrived on {}", back.name, at.name))
    }

    /// Names the setting by which the device does not forward.
    pub fn forwarding_setting(&self, seen: &Seen<'_>) -> Option<String> {
        let at = self.link(seen.device()?)?;
        let (family, device) = match seen.flow.destination {
            IpAddr::V4(_) => ("ipv4", at.name.as_str()),
            // The setting of a device does not decide.
            IpAddr::V6(_) => ("ipv6", "all"),
        };
        let path = format!("/proc/sys/net/{family}/conf/{device}/forwarding");
        let value = self.netns.run(|| std::fs::read_to_string(&path)).ok()?.ok()?;
        let is_off = value.trim() == "0";
        is_off.then(|| format!("net.{family}.conf.{device}.forwarding = 0"))
    }

    /// Names the VXLAN devices of the port, which have other VNIs.
    pub fn other_vnis(&self, seen: &Seen<'_>) -> Option<String> {
        let vni = seen.event.tunnel?.vni?;
        words::other_vnis(&self.links, seen.flow.ports.1, vni)
    }

    /// Names the addresses at which the destination port is open instead.
    pub fn sockets(&self, seen: &Seen<'_>) -> Option<String> {
        let own = |address: IpAddr| address.is_ipv4() == seen.flow.destination.is_ipv4();
        let port = seen.flow.ports.1;
        let (protocol, open) = match seen.flow.protocol {
            6 => ("TCP", self.netns.run(netstate::inet_diag::tcp_listeners).ok()?.ok()?),
            17 => {
                let all = self.netns.run(netstate::udp_socket::read).ok()?.ok()?;
                // A connected socket takes packets of one sender.
                let open = all.into_iter().filter(|socket| !socket.connected);
                ("UDP", open.map(|socket| (socket.address, socket.port)).collect())
            }
            _ => return None,
        };
        let open = open.into_iter().filter(|(at, of)| *of == port && own(*at)).map(|(at, _)| at);
        words::sockets(protocol, port, open.collect())
    }
}
