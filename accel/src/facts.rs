//! Gathers what a plan is made from.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netstate::netfilter;
use netstate::overlay::{Device, Found, Overlay, VxlanDevice, VxlanEntry};
use netstate::{Error, Netlink};

use crate::abi::Place;
use crate::filter::Ruleset;
use crate::plan::{Facts, Sandboxed};
use crate::routed::Forwarding;

/// What a plan is made from: the state of the NICs' namespace and of sandboxes, by number.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) home: Facts,
    pub(crate) sandboxes: BTreeMap<u16, Sandboxed>,
}

impl Seen {
    /// Forwarding entries and neighbours out of it, by namespace.
    pub(crate) fn take_entries(&mut self) -> BTreeMap<u16, Overlay> {
        let mut taken = BTreeMap::new();
        for (number, overlay) in self.overlays() {
            overlay.swap_entries(taken.entry(number).or_default());
        }
        taken
    }

    /// Puts them into it.
    pub(crate) fn give_entries(&mut self, mut entries: BTreeMap<u16, Overlay>) {
        for (number, overlay) in self.overlays() {
            overlay.swap_entries(entries.entry(number).or_default());
        }
    }

    fn overlays(&mut self) -> impl Iterator<Item = (u16, &mut Overlay)> {
        let sandboxes = self.sandboxes.iter_mut();
        std::iter::once((0, &mut self.home.overlay))
            .chain(sandboxes.map(|(number, sandboxed)| (*number, &mut sandboxed.facts.overlay)))
    }
}

/// How much of a namespace's state is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All.
    Whole,
    /// All but forwarding entries and neighbours.
    ButEntries,
}

/// Reads the state of the calling thread's namespace, in which `netlink` is.
pub(crate) fn gather(
    netlink: &Netlink,
    occupied: &BTreeSet<u32>,
    extent: Extent,
) -> netstate::Result<Facts> {
    let overlay = match extent {
        Extent::Whole => netlink.overlay()?,
        Extent::ButEntries => netlink.overlay_but_entries()?,
    };
    let chains = netfilter::base_chains()?;
    let rules = if chains.is_empty() { Vec::new() } else { netfilter::rules()? };
    let mut facts = Facts {
        ruleset: Ruleset { chains, rules },
        filters: [netfilter::legacy_tables(), netfilter::ebtables()].concat(),
        bridge_netfilter: netfilter::BridgeCalls::default().are_made(),
        occupied: occupied.clone(),
        local_ports: local_ports(),
        ipsec: netstate::xfrm::has_policies()?,
        no_ipv6: no_ipv6(&overlay),
        default_ttl: sysctl("net/ipv4/ip_default_ttl").and_then(|t| t.parse().ok()).unwrap_or(64),
        ..Facts::default()
    };
    for (index, link) in &overlay.links {
        if link.kind.as_deref() == Some("veth")
            && let (Some(peer), Some(netns)) = (link.link, link.link_netns)
        {
            // Without it the port is served as the bridge would.
            match netlink.device_in(netns, peer) {
                Ok(device) => facts.peers.extend(device.map(|device| (*index, device))),
                Err(Error::Kernel { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    // Only where something is routed to a VXLAN device: each is three files.
    let is_routed = |link: &Device| link.vxlan.is_some() && link.master.is_none();
    if overlay.links.values().any(is_routed) {
        for (index, link) in &overlay.links {
            let kind = link.kind.as_deref().unwrap_or_default();
            if link.master.is_none() && ["bridge", "veth", "vxlan"].contains(&kind) {
                facts.forwarding.insert(*index, forwarding(&link.name));
            }
        }
    }
    facts.overlay = overlay;
    Ok(facts)
}

/// Adds to `underlay`, the facts of the namespace that `netlink` is in, its ways to the
/// remote VTEPs of the VXLAN devices of namespace `number`.
pub(crate) fn add_routes(
    netlink: &Netlink,
    underlay: &mut Facts,
    number: u16,
    overlay: &Overlay,
) -> netstate::Result<()> {
    for ((index, _), entries) in &overlay.vxlan_fdb {
        if let Some(vxlan) = overlay.links.get(index).and_then(|link| link.vxlan.as_ref()) {
            let place = Place { netns: number, index: *index };
            add_routes_of(netlink, &mut underlay.routes, place, vxlan, entries)?;
        }
    }
    Ok(())
}

/// The same for the destinations of one address.
pub(crate) fn add_routes_of(
    netlink: &Netlink,
    routes: &mut BTreeMap<(Place, IpAddr), Option<Found>>,
    place: Place,
    vxlan: &VxlanDevice,
    entries: &[VxlanEntry],
) -> netstate::Result<()> {
    for remote in entries.iter().filter_map(|entry| entry.remote) {
        // Of a group's or of the other family's address there is nothing to ask.
        let asked = remote.is_ipv6() == vxlan.ipv6 && !remote.is_multicast();
        if asked && !routes.contains_key(&(place, remote)) {
            let found = netlink.route_to(remote, vxlan.local, vxlan.link)?;
            routes.insert((place, remote), found);
        }
    }
    Ok(())
}

fn forwarding(device: &str) -> Forwarding {
    let is = |path: String, value| sysctl(&path).as_deref() == Some(value);
    Forwarding {
        ipv4: is(format!("net/ipv4/conf/{device}/forwarding"), "1"),
        ipv6: is(format!("net/ipv6/conf/{device}/forwarding"), "1")
            && is(format!("net/ipv6/conf/{device}/disable_ipv6"), "0"),
    }
}

/// Why no IPv6 packet is to be routed by the programs.
fn no_ipv6(overlay: &Overlay) -> Option<String> {
    let is = |path, value| sysctl(path).as_deref() == Some(value);
    // ip6_forward asks for all devices' setting, the look-up for each one's.
    if !is("net/ipv6/conf/all/forwarding", "1") {
        return Some("IPv6 forwarding is off".into());
    }
    // A proxy takes solicitations that others would forward.
    if !is("net/ipv6/conf/all/proxy_ndp", "0") {
        return Some("neighbour discovery proxy".into());
    }
    if let Some(rule) = overlay.rules6.first() {
        return Some(format!("policy routing of IPv6: {rule}"));
    }
    let mut odd = overlay.odd_routes.iter().filter(|(to, ..)| to.is_ipv6());
    odd.next().map(|(_, _, why)| format!("an IPv6 route with {why}"))
}

fn sysctl(path: &str) -> Option<String> {
    // The tree under /proc/sys/net is that of the thread that opens it.
    std::fs::read_to_string(format!("/proc/sys/{path}")).ok().map(|text| text.trim().to_owned())
}

/// First and last, as `udp_flow_src_port` takes them.
fn local_ports() -> (u16, u16) {
    let text = sysctl("net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut words = text.split_whitespace().filter_map(|word| word.parse().ok());
    match (words.next(), words.next()) {
        (Some(first), Some(last)) => (first, last),
        // inet_init_net's.
        _ => (32768, 60999),
    }
}
