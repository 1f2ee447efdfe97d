//! Rules about the underlay, both for all packets of a tunnel and for the path to one remote VTEP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netstate::interface::{Interface as Link, Vxlan};
use netstate::overlay::Found;
use ruleset::flow::{LOCAL, UNICAST};
use ruleset::model::Chain;
use ruleset::{
    Answer, Connection, Flow, Hook, Interface, Ruleset, State, Step, Transport, Tuple,
    Verdict as Answered,
};

use super::address::unusable;
use super::{LinkCase, PROGRAMS, Verdict, VxlanCase, first, link};
use crate::model::{DeviceId, Family, NetnsSnapshot, NetnsView, Refusal, RuleEffect};

pub(super) fn policy_routing(case: &VxlanCase<'_>) -> Verdict {
    for snapshot in [case.view.snapshot, case.view.underlay] {
        if let Some(rule) = snapshot.overlay.rules.first() {
            return Err(Refusal::PolicyRouting { rule: rule.clone() });
        }
    }
    Ok(())
}

pub(super) fn policy_routing_ipv6(case: &VxlanCase<'_>) -> Verdict {
    match case.view.underlay.overlay.rules6.first() {
        Some(rule) if case.vxlan.is_ipv6() => {
            Err(Refusal::PolicyRoutingIpv6 { rule: rule.clone() })
        }
        // IPv6 rules do not affect a tunnel over IPv4.
        _ => Ok(()),
    }
}

/// The path from a VXLAN device to a remote VTEP, as far as it is known.
pub(crate) struct UnderlayCase<'a> {
    view: NetnsView<'a>,
    device: &'a Link,
    vxlan: &'a Vxlan,
    to: IpAddr,
    route: Option<&'a Found>,
    nic: Option<&'a Link>,
    source: Result<IpAddr, Refusal>,
}

impl<'a> UnderlayCase<'a> {
    /// Looks up the path from the VXLAN device `index` to `to`.
    pub(crate) fn new(
        view: NetnsView<'a>,
        index: u32,
        vxlan: &'a Vxlan,
        to: IpAddr,
    ) -> UnderlayCase<'a> {
        let underlay = view.underlay;
        let id = DeviceId { netns: view.number, index };
        let route = underlay.routes.get(&(id, to)).and_then(Option::as_ref);
        UnderlayCase {
            view,
            device: &view.snapshot.overlay.links[&index],
            vxlan,
            to,
            route,
            nic: route.and_then(|route| underlay.overlay.links.get(&route.link)),
            source: source(underlay, vxlan, route),
        }
    }

    pub(crate) fn device(&self) -> &'a Link {
        self.device
    }

    /// Returns the route that the kernel selects.
    pub(crate) fn route(&self) -> Result<&'a Found, Refusal> {
        self.route.ok_or(Refusal::NoRoute { family: Family::of(self.vxlan.is_ipv6()) })
    }

    /// Returns the device of the route.
    pub(crate) fn nic(&self) -> Result<&'a Link, Refusal> {
        self.nic.ok_or(Refusal::NicUnknown {})
    }

    /// Returns the source address of outer packets.
    pub(crate) fn source(&self) -> Result<IpAddr, Refusal> {
        self.source.clone()
    }

    /// Returns the NIC's Ethernet address.
    pub(crate) fn nic_mac(&self) -> Result<netstate::MacAddr, Refusal> {
        let nic = self.nic()?;
        let mac = nic.mac.filter(|_| nic.detail.ethernet);
        mac.ok_or_else(|| Refusal::NicWithoutEthernet { nic: nic.name.clone() })
    }

    /// Returns the next hop's Ethernet address.
    pub(crate) fn next_hop(&self) -> Result<netstate::MacAddr, Refusal> {
        let route = self.route()?;
        let hop = route.via.unwrap_or(self.to);
        let entry = self.view.underlay.overlay.neighbours.get(&(route.link, hop));
        entry.copied().ok_or(Refusal::NoNeighbour { hop })
    }

    /// Returns the NIC's MTU in bytes and the TTL or hop limit, for routes that set neither.
    pub(crate) fn defaults(&self) -> Result<(u32, u8), Refusal> {
        let nic = self.nic()?;
        if !self.vxlan.is_ipv6() {
            return Ok((nic.mtu, self.view.underlay.default_ttl));
        }
        // As `ip6_mtu` and `ip6_dst_hoplimit` compute them.
        let settings =
            nic.detail.ipv6.ok_or_else(|| Refusal::Ipv6Disabled { nic: nic.name.clone() })?;
        Ok((settings.mtu, settings.hop_limit))
    }

    fn nic_link(&self) -> Result<LinkCase<'a>, Refusal> {
        let (snapshot, index) = (self.view.underlay, self.route()?.link);
        Ok(LinkCase { snapshot, index, link: self.nic()? })
    }
}

/// Returns the source address of a VXLAN device's outer packets.
fn source(
    underlay: &NetnsSnapshot,
    vxlan: &Vxlan,
    route: Option<&Found>,
) -> Result<IpAddr, Refusal> {
    let addresses = &underlay.overlay.addresses;
    let local = match (vxlan.local, vxlan.is_ipv6()) {
        (Some(local), _) => local,
        (None, false) => route.and_then(|route| route.source).ok_or(Refusal::NoSource {})?,
        // RFC 6724 depends on more than routes, and the kernel caches its choice. It is certain
        // only if the host has a single address.
        (None, true) => {
            let global = |address: &&IpAddr| {
                address.is_ipv6() && !address.is_loopback() && unusable(**address).is_none()
            };
            let mut all = addresses.iter().filter(global);
            let (one, another) = (all.next(), all.next());
            let one = *one.ok_or(Refusal::NoSource {})?;
            if another.is_some() {
                return Err(Refusal::SeveralSources {});
            }
            one
        }
    };
    if addresses.contains(&local) { Ok(local) } else { Err(Refusal::ForeignSource { local }) }
}

pub(super) fn other_family(case: &UnderlayCase<'_>) -> Verdict {
    if case.to.is_ipv6() != case.vxlan.is_ipv6() { Err(Refusal::OtherFamily {}) } else { Ok(()) }
}

pub(super) fn remote_address(case: &UnderlayCase<'_>) -> Verdict {
    match unusable(case.to) {
        Some(kind) => Err(Refusal::RemoteAddress { kind }),
        None => Ok(()),
    }
}

pub(super) fn no_route(case: &UnderlayCase<'_>) -> Verdict {
    case.route().map(drop)
}

pub(super) fn unsupported_route(case: &UnderlayCase<'_>) -> Verdict {
    if let Some(what) = case.view.underlay.overlay.unsupported_route(case.to) {
        return Err(Refusal::OddRoute { what: what.to_owned() });
    }
    match &case.route()?.unsupported {
        Some(what) => Err(Refusal::OddRoute { what: what.clone() }),
        None => Ok(()),
    }
}

/// Refuses links that are a VRF or in one, also by a bridge or bond in it: the VXLAN device's socket
/// is bound to the VRF (`vxlan_sock_add`: `l3mdev_master_upper_ifindex_by_index`).
pub(super) fn vrf(case: &UnderlayCase<'_>) -> Verdict {
    let links = &case.view.underlay.overlay.links;
    let Some(device) = case.vxlan.device.and_then(|index| links.get(&index)) else { return Ok(()) };
    let refused =
        |kind: &str| Err(Refusal::Vrf { device: device.name.clone(), kind: kind.to_owned() });
    let mut link = device;
    // Each link is visited once.
    for _ in 0..links.len() {
        if link.kind.as_deref() == Some("vrf") {
            return refused("vrf");
        }
        let Some(master) = link.master else { return Ok(()) };
        match links.get(&master).map(|master| (master, master.kind.as_deref())) {
            // These have no routing table of their own.
            Some((master, Some("bridge" | "bond" | "team"))) => link = master,
            Some((_, Some(kind))) => return refused(kind),
            _ => return refused("unknown"),
        }
    }
    refused("unknown")
}

/// The kernel drops packets that return to the device (ELOOP). Packets into another tunnel, into this
/// tunnel's bridge or into a VRF pass devices that no rule here checks.
pub(super) fn leads_into_tunnel(case: &UnderlayCase<'_>) -> Verdict {
    let (nic, route) = (case.nic()?, case.route()?);
    let own_bridge = case.view.number == 0 && case.device.master == Some(route.link);
    if nic.vxlan.is_some() || own_bridge || nic.kind.as_deref() == Some("vrf") {
        return Err(Refusal::LeadsInto { device: nic.name.clone() });
    }
    Ok(())
}

pub(super) fn nic_without_ethernet(case: &UnderlayCase<'_>) -> Verdict {
    case.nic_mac().map(drop)
}

pub(super) fn nic_down(case: &UnderlayCase<'_>) -> Verdict {
    link::down(&case.nic_link()?)
}

pub(super) fn nic_enslaved(case: &UnderlayCase<'_>) -> Verdict {
    let nic = case.nic()?;
    // The master processes the packets further.
    if nic.master.is_some() {
        return Err(Refusal::NicEnslaved { nic: nic.name.clone() });
    }
    Ok(())
}

pub(super) fn nic_programs(case: &UnderlayCase<'_>) -> Verdict {
    first(PROGRAMS, &case.nic_link()?)
}

pub(super) fn nic_peer_programs(case: &UnderlayCase<'_>) -> Verdict {
    link::peer_xdp(&case.nic_link()?)
}

pub(super) fn nic_frames_taken(case: &UnderlayCase<'_>) -> Verdict {
    link::frames_taken(&case.nic_link()?)
}

pub(super) fn no_source(case: &UnderlayCase<'_>) -> Verdict {
    case.source().map(drop)
}

pub(super) fn unsupported_route_of_source(case: &UnderlayCase<'_>) -> Verdict {
    match case.view.underlay.overlay.unsupported_route(case.source()?) {
        Some(what) => Err(Refusal::OddRoute { what: what.to_owned() }),
        None => Ok(()),
    }
}

pub(super) fn not_taken(case: &UnderlayCase<'_>) -> Verdict {
    // Otherwise the kernel drops packets from the remote VTEP.
    if case.route()?.comes_back {
        return Ok(());
    }
    Err(Refusal::NotTaken { local: case.source()?, nic: case.nic()?.name.clone() })
}

/// `NFPROTO_BRIDGE`.
const BRIDGE: u8 = 7;

/// Evaluates the rules of chains that the tunnel's outer packets pass.
pub(super) fn rules(case: &UnderlayCase<'_>) -> Verdict {
    let nic = Interface { index: case.route()?.link, name: case.nic()?.name.clone() };
    let (local, port) = (case.source()?, case.vxlan.port);
    let underlay = case.view.underlay;
    let ruleset = &underlay.ruleset;
    // Device hooks are not evaluated. Outer packets do not pass the hooks of bridges.
    let unsupported = |chain: &&Chain| !chain.is_of_ip() && chain.family != BRIDGE;
    if let Some(chain) = ruleset.base_chains().find(unsupported) {
        return Err(Refusal::BaseChain { chain: chain.to_string() });
    }
    // There may be many remote VTEPs and many rules. Most rules do not concern the VTEPs'
    // addresses, so one evaluation with any address usually decides for all VTEPs.
    let for_all = || rules_between(ruleset, &nic, (local, port), None).is_ok();
    match underlay.passes.get(ruleset, (nic.index, local, port), for_all) {
        true => Ok(()),
        false => rules_between(ruleset, &nic, (local, port), Some(case.to)),
    }
}

/// Evaluates the rules for packets between a VXLAN device and a remote VTEP. `None`: any VTEP.
fn rules_between(
    ruleset: &Ruleset,
    nic: &Interface,
    (local, port): (IpAddr, u16),
    remote: Option<IpAddr>,
) -> Verdict {
    let step = |hook, sent| {
        let (input, output) = if sent { (None, Some(nic)) } else { (Some(nic), None) };
        let (input, output) = (input.cloned(), output.cloned());
        Step { hook, input, output, port_in: None, port_out: None, hardware_source: None }
    };
    // The unspecified address stands for any host.
    let any = match local {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let (remote, any_address) = (remote.unwrap_or(any), remote.is_none().then_some(any));
    let ways = [
        (local, remote, [step(Hook::Output, true), step(Hook::Postrouting, true)]),
        (remote, local, [step(Hook::Prerouting, false), step(Hook::Input, false)]),
    ];
    for (from, to, path) in ways {
        let tuple = Tuple { source: (from, 0), destination: (to, port) };
        // If conntrack is in use, it already knows some of the source ports. A remote end that sends
        // from the tunnel's port answers, and its entry may have any mark.
        let known = [(State::New, false), (State::Established, false), (State::Established, true)];
        for (state, is_reply) in known {
            let flow = Flow {
                tuple,
                other: tuple.reversed(),
                any_source_port: true,
                any_address,
                asks_nat: state == State::New,
                transport: Transport::Udp,
                connection: Some(Connection { state, is_reply, status: None, mark: None, zone: 0 }),
                mark: 0,
                address_types: vec![(local, LOCAL), (remote, UNICAST)],
            };
            let answer = ruleset.verdict(&flow, &path);
            refused_by(&answer)?;
        }
    }
    Ok(())
}

/// Converts an evaluation into a verdict; a mark refuses as well, as routing may depend on it.
fn refused_by(answer: &Answer) -> Verdict {
    let (rule, effect) = match &answer.verdict {
        Answered::Accept if answer.mark == 0 => return Ok(()),
        // Routing may depend on the mark.
        Answered::Accept => (None, RuleEffect::Mark),
        // A place without a handle is a chain, so its policy drops.
        Answered::Drop { at } if at.handle.is_none() => (Some(at), RuleEffect::PolicyDrop),
        Answered::Drop { at } => (Some(at), RuleEffect::Drop),
        Answered::Depends { at, what, .. } => (Some(at), RuleEffect::Does(what.clone())),
        Answered::NotUnderstood { at, what } => {
            (at.as_ref(), RuleEffect::NotUnderstood(what.clone()))
        }
    };
    let rule = rule.map_or_else(|| "rules".to_owned(), ToString::to_string);
    Err(Refusal::Rule { rule, effect })
}

pub(super) fn no_neighbour(case: &UnderlayCase<'_>) -> Verdict {
    case.next_hop().map(drop)
}

pub(super) fn ipv6_disabled(case: &UnderlayCase<'_>) -> Verdict {
    case.defaults().map(drop)
}
