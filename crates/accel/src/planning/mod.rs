//! Computes a plan from a snapshot of the kernel's state.
//!
//! This module reads no state and decides no refusal: the rules are in `eligibility`.

mod routed;
mod underlay_route;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use netstate::interface::{Interface, Vxlan};
use netstate::overlay::BridgeEntry;
use packet::ethernet::MacAddr;

pub(crate) use routed::knows;
pub(crate) use underlay_route::to_address;

use crate::eligibility::{
    BRIDGED_DEVICE, LinkCase, ROUTED_DEVICE, TENANT_PORT, TUNNEL, TunnelCase, VXLAN_DEVICE,
    VxlanCase, first, queueing_discipline,
};
use crate::model::{
    DeviceId, DevicePlan, Fdb, NetnsSnapshot, NetnsView, Plan, PortPlan, Refusal, RemotePlan,
    SandboxSnapshot, UnderlayRoute, Vtep, VtepKey,
};

/// Maximum interval between packets of an entry that take the slow path.
const REFRESH: Duration = Duration::from_secs(5);

impl Plan {
    /// Makes the plan for the devices that `wanted` accepts, in the NICs' namespace and in
    /// sandboxes by number.
    pub fn new(
        snapshot: &NetnsSnapshot,
        sandboxes: &BTreeMap<u16, SandboxSnapshot>,
        wanted: impl Fn(&str) -> bool,
    ) -> Plan {
        let mut plan = Plan { refresh: REFRESH, ..Plan::default() };
        let here = NetnsView::home(snapshot);
        for (index, device) in &snapshot.overlay.links {
            if let Some(vxlan) = &device.vxlan
                && wanted(&device.name)
            {
                let entry = plan.device(here, *index, device.name.clone(), vxlan);
                plan.devices.push(entry);
            }
        }
        plan.route(here);
        for (number, sandbox) in sandboxes {
            let view = NetnsView::sandbox(*number, sandbox, snapshot);
            for (index, device) in &sandbox.snapshot.overlay.links {
                let name = format!("{}/{}", sandbox.name, device.name);
                if let Some(vxlan) = &device.vxlan
                    // Devices with another underlay cannot use this instance's NICs.
                    && device.link_netns == Some(sandbox.underlay)
                    && wanted(&name)
                {
                    let mut entry = plan.device(view, *index, name, vxlan);
                    entry.sandbox = Some(*number);
                    plan.devices.push(entry);
                }
            }
        }
        plan
    }

    fn device(
        &mut self,
        view: NetnsView<'_>,
        index: u32,
        name: String,
        vxlan: &Vxlan,
    ) -> DevicePlan {
        let device = &view.snapshot.overlay.links[&index];
        let routed = device.master.is_none();
        let mut result = DevicePlan { index, name, routed, ..DevicePlan::default() };
        result.refused = self.serve(view, index, device, vxlan, &mut result).err();
        result
    }

    /// Adds entries for a VXLAN device, or returns why it is refused.
    fn serve(
        &mut self,
        view: NetnsView<'_>,
        index: u32,
        device: &Interface,
        vxlan: &Vxlan,
        result: &mut DevicePlan,
    ) -> Result<(), Refusal> {
        let snapshot = view.snapshot;
        let domain = domain_of(view, index, device, vxlan)?;
        if device.master.is_none() {
            self.tunnel(view, index, domain, routed::addresses(snapshot, index), result)?;
            self.router_mac(view, index, device, result);
            return Ok(());
        }
        let behind = |((of, mac), entry): (&(u32, MacAddr), &BridgeEntry)| {
            (*of == domain && entry.port == index && !entry.own).then_some(*mac)
        };
        let addresses = snapshot.overlay.bridge_fdb.iter().filter_map(behind).collect();
        self.tunnel(view, index, domain, addresses, result)?;
        self.ports_of(view, domain, &mut result.ports);
        Ok(())
    }

    /// Adds entries of a VXLAN device: in `domain`, for these addresses behind remote VTEPs.
    fn tunnel(
        &mut self,
        view: NetnsView<'_>,
        index: u32,
        domain: u32,
        addresses: BTreeSet<MacAddr>,
        result: &mut DevicePlan,
    ) -> Result<(), Refusal> {
        let Some(vxlan) = &view.snapshot.overlay.links[&index].vxlan else { return Ok(()) };
        let key = key(vxlan);
        let is_taken = self.vteps.contains_key(&key);
        let mut remotes = BTreeMap::new();
        // If the key is taken, the entries and the remote VTEPs belong to the other device.
        for mac in addresses.into_iter().filter(|_| !is_taken) {
            let Some((to, route)) = to_address(view, index, vxlan, mac) else { continue };
            result.count(to, &route);
            remotes.extend(route.ok().map(|route| (mac, route)));
        }
        let nics: BTreeSet<u32> = remotes.values().map(|route| route.nic).collect();
        let locals: BTreeSet<IpAddr> = remotes.values().map(|route| route.local).collect();
        first(TUNNEL, &TunnelCase { key, is_taken, nics: &nics, locals: &locals })?;
        let domain = view.domain(domain);
        if let (Some(nic), Some(local)) = (nics.first(), locals.first()) {
            self.nics.insert(*nic);
            let takes_zero_checksum = vxlan.detail.takes_zero_checksum;
            let takes_big = view.snapshot.big_tunnels;
            let merges =
                view.snapshot.merging.contains(&index) && !view.underlay.merging.contains(nic);
            let (nic, local) = (*nic, *local);
            self.vteps.insert(
                key,
                Vtep { domain, nic, vxlan: index, local, takes_zero_checksum, takes_big, merges },
            );
        }
        self.fdb
            .extend(remotes.into_iter().map(|(mac, route)| ((domain.id, mac), Fdb::Remote(route))));
        // Entries in use must not expire from the FDB.
        self.refresh_within(Duration::from_secs(vxlan.detail.ageing.into()));
        Ok(())
    }

    /// Adds entries of a bridge's other ports.
    fn ports_of(&mut self, view: NetnsView<'_>, bridge: u32, ports: &mut Vec<PortPlan>) {
        let snapshot = view.snapshot;
        let domain = view.domain(bridge);
        let mut usable = BTreeMap::new();
        for (port, link) in &snapshot.overlay.links {
            // VXLAN ports are planned as devices.
            if link.master != Some(bridge) || link.vxlan.is_some() {
                continue;
            }
            let refused = first(TENANT_PORT, &LinkCase { snapshot, index: *port, link }).err();
            if refused.is_none() {
                usable.insert(*port, link);
            }
            ports.push(view.port(*port, link, refused));
        }
        for ((of, mac), entry) in &snapshot.overlay.bridge_fdb {
            // Skip refused ports, and addresses of the bridge and its ports.
            let Some(link) = usable.get(&entry.port).filter(|_| *of == bridge && !entry.own) else {
                continue;
            };
            self.fdb.insert((domain.id, *mac), local(snapshot, entry.port, link, *mac));
        }
        let id = |index: &u32| DeviceId { index: *index, ..domain.id };
        self.ports.extend(usable.keys().map(|port| (id(port), domain)));
        let ageing = snapshot.overlay.links[&bridge].bridge.as_ref().map_or(0, |b| b.detail.ageing);
        self.refresh_within(Duration::from_millis(u64::from(ageing) * 10));
    }

    /// Limits the refresh interval to an eighth of the FDB's ageing time, so that entries in use do
    /// not expire.
    fn refresh_within(&mut self, ageing: Duration) {
        if !ageing.is_zero() {
            self.refresh = self.refresh.min(ageing / 8);
        }
    }
}

/// Returns the fields that identify the device of a received packet.
pub(crate) fn key(vxlan: &Vxlan) -> VtepKey {
    VtepKey { vni: vxlan.vni, port: vxlan.port, ipv6: vxlan.is_ipv6() }
}

impl DevicePlan {
    /// Counts one more address behind a remote VTEP.
    pub(crate) fn count(&mut self, to: IpAddr, route: &Result<UnderlayRoute, Refusal>) {
        let new = || RemotePlan { refused: route.as_ref().err().cloned(), addresses: 0 };
        self.remotes.entry(to).or_insert_with(new).addresses += 1;
    }
}

/// Returns the domain of a VXLAN device's addresses, or why the device is refused whatever they
/// are.
pub(crate) fn domain_of(
    view: NetnsView<'_>,
    index: u32,
    device: &Interface,
    vxlan: &Vxlan,
) -> Result<u32, Refusal> {
    let case = VxlanCase { view, index, device, vxlan };
    first(VXLAN_DEVICE, &case)?;
    match device.master {
        Some(bridge) => first(BRIDGED_DEVICE, &case).map(|()| bridge),
        None => first(ROUTED_DEVICE, &case).map(|()| index),
    }
}

/// Makes the entry for an address behind a port of this host.
pub(crate) fn local(snapshot: &NetnsSnapshot, port: u32, link: &Interface, mac: MacAddr) -> Fdb {
    let peer = peer(snapshot, port, link, mac);
    let mtu = peer.map_or(link.mtu, |(_, mtu)| mtu.min(link.mtu));
    Fdb::Local { port, mtu, peer: peer.map(|(netns, _)| netns) }
}

/// Returns the namespace and MTU of the veth peer if frames to `mac` may be delivered to it
/// directly. The peer must own the address, and nothing may be bypassed.
fn peer(
    snapshot: &NetnsSnapshot,
    index: u32,
    link: &Interface,
    mac: MacAddr,
) -> Option<(u32, u32)> {
    let case = LinkCase { snapshot, index, link };
    // Delivery to the peer would bypass the port's queueing discipline.
    if link.kind.as_deref() != Some("veth") || queueing_discipline(&case).is_err() {
        return None;
    }
    let peer = snapshot.peers.get(&index)?;
    let fit = peer.detail.running && !peer.detail.xdp_attached && peer.mac == Some(mac);
    // Packets are decapsulated in the NICs' namespace, so its id of the peer's namespace counts.
    let netns = match &snapshot.numbers {
        Some(numbers) => *numbers.get(&link.link_netns?)?,
        None => link.link_netns?,
    };
    fit.then_some((netns, peer.mtu))
}

#[cfg(test)]
mod chains;
#[cfg(test)]
mod entries;
#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod provoked;
#[cfg(test)]
mod tests;
