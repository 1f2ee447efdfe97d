//! What may be taken, and why the rest may not: a function of the kernel's state.
//!
//! When in doubt, refuse: the slow path is always right.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use netstate::overlay::{BridgeEntry, Device, Found, Overlay, VxlanDevice};
use packet::ethernet::MacAddr;

use crate::abi::{Domain, Fdb, Place, Remote, Vtep, VtepKey};
use crate::filter::Ruleset;
use crate::routed::{self, Forwarding};
use crate::way::{remote, unusable};

/// At least one packet of an entry in this time by the slow path.
const REFRESH: Duration = Duration::from_secs(5);

/// The state that a plan is made from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Links, entries, addresses, rules.
    pub overlay: Overlay,
    /// The other ends of veth pairs in other namespaces, by this end's index.
    pub peers: BTreeMap<u32, Device>,
    /// In a sandbox: the numbers of the tenants' namespaces here, to those in the
    /// namespace with the NICs.
    pub numbers: Option<BTreeMap<u32, u32>>,
    /// Ways to remote VTEPs from here, by VXLAN device and address.
    pub routes: BTreeMap<(Place, IpAddr), Option<Found>>,
    /// Chains of nftables.
    pub ruleset: Ruleset,
    /// Packet filters that see packets of this namespace, whatever is in them.
    pub filters: Vec<String>,
    /// br_netfilter is on.
    pub bridge_netfilter: bool,
    /// IPsec has policies here.
    pub ipsec: bool,
    /// What devices that are no ports forward.
    pub forwarding: BTreeMap<u32, Forwarding>,
    /// Why IPv6 packets are not routed here, or not as others are.
    pub no_ipv6: Option<String>,
    /// Links at whose tcx hooks there are programs of others.
    pub occupied: BTreeSet<u32>,
    /// `net.ipv4.ip_local_port_range`.
    pub local_ports: (u16, u16),
    /// `net.ipv4.ip_default_ttl`.
    pub default_ttl: u8,
}

/// A namespace with VXLAN devices whose underlay is in the NICs' namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandboxed {
    /// What it is called.
    pub name: String,
    /// Its state.
    pub facts: Facts,
    /// The NICs' namespace, as this one numbers it.
    pub underlay: u32,
    /// Its veth pair to the NICs' namespace: its own end, the other.
    pub trampoline: Option<(u32, u32)>,
    /// Why there can be none.
    pub problem: Option<String>,
}

/// What is to be in the maps and at the hooks, and what to say of the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// VXLAN devices asked for.
    pub devices: Vec<DevicePlan>,
    /// Tenants' devices that packets are taken from, to their domain: a bridge or the
    /// device itself.
    pub ports: BTreeMap<Place, Domain>,
    /// Underlay NICs that packets are taken from.
    pub nics: BTreeSet<u32>,
    /// VTEPs of this host.
    pub vteps: BTreeMap<VtepKey, Vtep>,
    /// Forwarding entries by domain and address.
    pub fdb: BTreeMap<(Place, MacAddr), Fdb>,
    /// How often an entry's packet goes by the slow path.
    pub refresh: Duration,
}

/// What becomes of a VXLAN device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DevicePlan {
    /// Index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Number of the sandbox that it is in.
    pub sandbox: Option<u16>,
    /// Why it stays slow.
    pub refused: Option<String>,
    /// Packets come to it by a route, not by a bridge.
    pub routed: bool,
    /// The other ports of its bridge, or the devices that are routed to it.
    pub ports: Vec<PortPlan>,
    /// Remote VTEPs.
    pub remotes: BTreeMap<IpAddr, RemotePlan>,
}

/// What becomes of frames to a remote VTEP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePlan {
    /// Why they stay slow.
    pub refused: Option<String>,
    /// Addresses that are behind it.
    pub addresses: usize,
}

/// What becomes of a tenant's device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortPlan {
    /// Name, or what of the device is meant.
    pub name: String,
    /// Where it is.
    pub place: Option<Place>,
    /// Why it stays slow.
    pub refused: Option<String>,
}

/// A namespace with VXLAN devices, as it is being planned.
#[derive(Clone, Copy)]
pub(crate) struct Space<'a> {
    /// Its own state.
    pub(crate) facts: &'a Facts,
    /// That of the namespace with the NICs.
    pub(crate) underlay: &'a Facts,
    /// Its number.
    pub(crate) number: u16,
    /// Its veth pair to the NICs: its own end, the other.
    trampoline: Option<(u32, u32)>,
    /// Why there can be none.
    problem: Option<&'a str>,
}

impl<'a> Space<'a> {
    /// The NICs' namespace.
    pub(crate) fn home(facts: &'a Facts) -> Space<'a> {
        Space { facts, underlay: facts, number: 0, trampoline: None, problem: None }
    }

    /// A sandbox.
    pub(crate) fn sandbox(number: u16, sandbox: &'a Sandboxed, underlay: &'a Facts) -> Space<'a> {
        Space {
            facts: &sandbox.facts,
            underlay,
            number,
            trampoline: sandbox.trampoline,
            problem: sandbox.problem.as_deref(),
        }
    }

    pub(crate) fn domain(&self, index: u32) -> Domain {
        let place = Place { netns: self.number, index };
        let checked = self.facts.bridge_netfilter
            || (self.facts.overlay.links.get(&index))
                .and_then(|link| link.bridge.as_ref())
                .is_some_and(|bridge| bridge.calls_filters);
        Domain { place, trampoline: self.trampoline, checked }
    }

    pub(crate) fn port(&self, index: u32, link: &Device, refused: Option<String>) -> PortPlan {
        let place = Some(Place { netns: self.number, index });
        PortPlan { name: link.name.clone(), place, refused }
    }
}

impl Plan {
    /// Decides for the devices that `wanted` names: those of the NICs' namespace, and
    /// those of sandboxes, by number.
    pub fn new(
        facts: &Facts,
        sandboxes: &BTreeMap<u16, Sandboxed>,
        wanted: impl Fn(&str) -> bool,
    ) -> Plan {
        let mut plan = Plan { refresh: REFRESH, ..Plan::default() };
        let here = Space::home(facts);
        for (index, device) in &facts.overlay.links {
            if let Some(vxlan) = &device.vxlan
                && wanted(&device.name)
            {
                let entry = plan.device(here, *index, device.name.clone(), vxlan);
                plan.devices.push(entry);
            }
        }
        plan.route(here);
        for (number, sandbox) in sandboxes {
            let space = Space::sandbox(*number, sandbox, facts);
            for (index, device) in &sandbox.facts.overlay.links {
                let name = format!("{}/{}", sandbox.name, device.name);
                if let Some(vxlan) = &device.vxlan
                    && device.link_netns == Some(sandbox.underlay)
                    && wanted(&name)
                {
                    let mut entry = plan.device(space, *index, name, vxlan);
                    entry.sandbox = Some(*number);
                    plan.devices.push(entry);
                }
            }
        }
        plan
    }

    /// Those that may be used.
    pub fn vxlan_devices(&self) -> BTreeSet<Place> {
        self.vteps.values().map(Vtep::device).collect()
    }

    fn device(
        &mut self,
        space: Space<'_>,
        index: u32,
        name: String,
        vxlan: &VxlanDevice,
    ) -> DevicePlan {
        let facts = space.facts;
        let device = &facts.overlay.links[&index];
        let routed = device.master.is_none();
        let mut result = DevicePlan { index, name, routed, ..DevicePlan::default() };
        let attempt = domain_of(space, index, device, vxlan).and_then(|domain| {
            if routed {
                self.tunnel(space, index, domain, routed::addresses(facts, index), &mut result)?;
                self.own(space, index, device, &mut result);
                return Ok(());
            }
            let behind = |((of, mac), entry): (&(u32, MacAddr), &BridgeEntry)| {
                (*of == domain && entry.port == index && !entry.own).then_some(*mac)
            };
            let addresses = facts.overlay.bridge_fdb.iter().filter_map(behind).collect();
            self.tunnel(space, index, domain, addresses, &mut result)?;
            self.ports_of(space, domain, &mut result.ports);
            Ok(())
        });
        result.refused = attempt.err();
        result
    }

    /// Entries of a VXLAN device: in `domain` for these addresses behind remote VTEPs.
    fn tunnel(
        &mut self,
        space: Space<'_>,
        index: u32,
        domain: u32,
        addresses: BTreeSet<MacAddr>,
        result: &mut DevicePlan,
    ) -> Result<(), String> {
        let Some(vxlan) = &space.facts.overlay.links[&index].vxlan else { return Ok(()) };
        let key = key(vxlan);
        if self.vteps.contains_key(&key) {
            return Err(format!("VNI {} on port {} is another device's", key.vni, key.port));
        }
        let mut remotes = BTreeMap::new();
        for mac in addresses {
            let Some((destination, way)) = remote(space, index, vxlan, mac) else { continue };
            result.count(destination, &way);
            remotes.extend(way.ok().map(|way| (mac, way)));
        }
        let nics: BTreeSet<u32> = remotes.values().map(|way| way.nic).collect();
        let locals: BTreeSet<IpAddr> = remotes.values().map(|way| way.local).collect();
        if nics.len() > 1 || locals.len() > 1 {
            return Err("remote VTEPs are reached by several NICs or addresses".into());
        }
        let domain = space.domain(domain);
        if let (Some(nic), Some(local)) = (nics.first(), locals.first()) {
            self.nics.insert(*nic);
            let takes_zero_checksum = vxlan.takes_zero_checksum;
            let (nic, local) = (*nic, *local);
            self.vteps.insert(key, Vtep { domain, nic, vxlan: index, local, takes_zero_checksum });
        }
        self.fdb.extend(
            remotes.into_iter().map(|(mac, remote)| ((domain.place, mac), Fdb::Remote(remote))),
        );
        // The FDB may not age what is in use.
        self.refresh_within(Duration::from_secs(vxlan.ageing.into()));
        Ok(())
    }

    /// Entries of a bridge's other ports.
    pub(crate) fn ports_of(&mut self, space: Space<'_>, bridge: u32, ports: &mut Vec<PortPlan>) {
        let facts = space.facts;
        let domain = space.domain(bridge);
        let mut usable = BTreeMap::new();
        for (port, link) in &facts.overlay.links {
            if link.master != Some(bridge) || link.vxlan.is_some() {
                continue;
            }
            let reason = port_refusal(facts, *port, link);
            if reason.is_none() {
                usable.insert(*port, link);
            }
            ports.push(space.port(*port, link, reason));
        }
        for ((of, mac), entry) in &facts.overlay.bridge_fdb {
            let Some(link) = usable.get(&entry.port).filter(|_| *of == bridge && !entry.own) else {
                continue;
            };
            self.fdb.insert((domain.place, *mac), local(facts, entry.port, link, *mac));
        }
        let place = |index: &u32| Place { index: *index, ..domain.place };
        self.ports.extend(usable.keys().map(|port| (place(port), domain)));
        let ageing = facts.overlay.links[&bridge].bridge.as_ref().map_or(0, |b| b.ageing);
        self.refresh_within(Duration::from_millis(u64::from(ageing) * 10));
    }

    /// No FDB may age what is in use: an eighth of its time.
    pub(crate) fn refresh_within(&mut self, ageing: Duration) {
        if !ageing.is_zero() {
            self.refresh = self.refresh.min(ageing / 8);
        }
    }
}

/// By what its datagrams are known.
pub(crate) fn key(vxlan: &VxlanDevice) -> VtepKey {
    VtepKey { vni: vxlan.vni, port: vxlan.port, ipv6: vxlan.ipv6 }
}

impl DevicePlan {
    /// Counts one more address behind a remote VTEP.
    pub(crate) fn count(&mut self, to: IpAddr, way: &Result<Remote, String>) {
        let new = || RemotePlan { refused: way.as_ref().err().cloned(), addresses: 0 };
        self.remotes.entry(to).or_insert_with(new).addresses += 1;
    }
}

/// The domain of a VXLAN device's addresses, or why it stays slow whatever these are.
pub(crate) fn domain_of(
    space: Space<'_>,
    index: u32,
    device: &Device,
    vxlan: &VxlanDevice,
) -> Result<u32, String> {
    refusal(space, index, device, vxlan)?;
    if device.master.is_some() {
        return bridge_of(space.facts, device);
    }
    if space.number != 0 {
        return Err("in another namespace than its NIC, and no bridge's port".into());
    }
    routed::refusal(space.facts, index, device)?;
    Ok(index)
}

/// The way to an address behind a port of this host.
pub(crate) fn local(facts: &Facts, port: u32, link: &Device, mac: MacAddr) -> Fdb {
    let peer = peer(facts, port, link, mac);
    let mtu = peer.map_or(link.mtu, |(_, mtu)| mtu.min(link.mtu));
    Fdb::Local { port, mtu, peer: peer.map(|(netns, _)| netns) }
}

/// Why a VXLAN device stays slow, whatever is in front of it.
fn refusal(
    space: Space<'_>,
    index: u32,
    device: &Device,
    vxlan: &VxlanDevice,
) -> Result<(), String> {
    if let Some(option) = vxlan.options.first() {
        return Err(format!("VXLAN option {option}"));
    }
    if vxlan.tos == 1 {
        return Err("VXLAN option tos inherit".into());
    }
    // IPv6 has no such flag, and the kernel no use for the option then.
    if vxlan.df.is_none() && !vxlan.ipv6 {
        return Err("VXLAN option df inherit".into());
    }
    if let Some(why) = vxlan.local.and_then(unusable) {
        return Err(format!("its own address is {why}"));
    }
    if space.number == 0 && device.link_netns.is_some() {
        return Err("its underlay is in another namespace: accelerate it from there".into());
    }
    if !device.running {
        return Err("it is down".into());
    }
    if let Some(problem) = space.problem {
        return Err(problem.to_owned());
    }
    let facts = space.facts;
    interference(facts, index, device)?;
    queued(device)?;
    // Packets that are routed may come to any chain. A bridge's frames come to those of IP by
    // br_netfilter only; to these the tunnel's datagrams may come: way().
    let bridged = device.master.is_some_and(|bridge| !space.domain(bridge).checked);
    if let Some(chain) = facts.ruleset.chains.iter().find(|chain| !(bridged && chain.is_of_ip())) {
        return Err(format!("packet filter: nftables {chain}"));
    }
    for facts in [facts, space.underlay] {
        if let Some(filter) = facts.filters.first() {
            return Err(format!("packet filter: {filter}"));
        }
        if facts.ipsec {
            return Err("IPsec policies".into());
        }
        if let Some(rule) = facts.overlay.rules.first() {
            return Err(format!("policy routing: {rule}"));
        }
    }
    match space.underlay.overlay.rules6.first() {
        Some(rule) if vxlan.ipv6 => Err(format!("policy routing of IPv6: {rule}")),
        _ => Ok(()),
    }
}

/// The bridge that a VXLAN device is a port of, or why it stays slow.
fn bridge_of(facts: &Facts, device: &Device) -> Result<u32, String> {
    let bridge = device.master.and_then(|index| Some((index, facts.overlay.links.get(&index)?)));
    let Some((bridge, link)) = bridge.filter(|(_, link)| link.bridge.is_some()) else {
        return Err(format!("{}: port of something that is no bridge", device.name));
    };
    bridge_refusal(facts, bridge, link)?;
    bridge_port(device)?;
    Ok(bridge)
}

/// Why a bridge's packets stay slow.
pub(crate) fn bridge_refusal(facts: &Facts, index: u32, link: &Device) -> Result<(), String> {
    if link.bridge.as_ref().is_some_and(|bridge| bridge.vlan_filtering) {
        return Err(format!("{}: VLAN filtering", link.name));
    }
    if !link.running {
        return Err(format!("{} is down or has no carrier", link.name));
    }
    interference(facts, index, link)
}

/// What sees packets on this device that would pass it by.
pub(crate) fn interference(facts: &Facts, index: u32, device: &Device) -> Result<(), String> {
    if let Some(qdisc) = facts.overlay.filtered.get(&index) {
        return Err(format!("{}: tc filters ({qdisc} qdisc)", device.name));
    }
    if facts.occupied.contains(&index) {
        return Err(format!("{}: another program at its tcx hooks", device.name));
    }
    if device.xdp {
        return Err(format!("{}: XDP program", device.name));
    }
    Ok(())
}

/// A queueing discipline would be passed by.
pub(crate) fn queued(device: &Device) -> Result<(), String> {
    match device.qdisc.as_deref() {
        None | Some("noqueue") => Ok(()),
        Some(qdisc) => Err(format!("{}: queueing discipline {qdisc}", device.name)),
    }
}

fn bridge_port(device: &Device) -> Result<(), String> {
    let Some(port) = &device.port else {
        return Err(format!("{}: not a bridge port", device.name));
    };
    if !port.forwarding {
        return Err(format!("{}: spanning tree does not let it forward", device.name));
    }
    match port.options.first() {
        Some(option) => Err(format!("{}: bridge port option {option}", device.name)),
        None => Ok(()),
    }
}

pub(crate) fn port_refusal(facts: &Facts, index: u32, port: &Device) -> Option<String> {
    if !port.ethernet || port.mac.is_none() {
        return Some("no Ethernet device".into());
    }
    if !port.running {
        return Some("it is down or has no carrier".into());
    }
    interference(facts, index, port).and_then(|()| bridge_port(port)).err()
}

/// The namespace and MTU of a veth's peer that frames to `mac` may be handed to
/// directly: it must be the address's device, else the packet is none of its
/// own, and nothing may be passed by.
fn peer(facts: &Facts, index: u32, port: &Device, mac: MacAddr) -> Option<(u32, u32)> {
    if port.kind.as_deref() != Some("veth") || queued(port).is_err() {
        return None;
    }
    let peer = facts.peers.get(&index)?;
    let fit = peer.running && !peer.xdp && peer.mac == Some(mac);
    // As the namespace with the NICs numbers it, where packets are decapsulated.
    let netns = match &facts.numbers {
        Some(numbers) => *numbers.get(&port.link_netns?)?,
        None => port.link_netns?,
    };
    fit.then_some((netns, peer.mtu))
}
