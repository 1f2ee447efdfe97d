//! VXLAN devices that packets are routed to, and the tenants' devices they are
//! routed from: bridges with an address, and veth pairs by themselves.
//!
//! Which way a packet is routed the programs ask the kernel; here is decided for
//! which devices they may, and whose addresses are the host's own.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use netstate::overlay::Device;
use packet::ethernet::MacAddr;

use crate::abi::Fdb;
use crate::plan::{self, DevicePlan, Facts, Plan, PortPlan, Space};

/// What a device forwards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// `net.ipv4.conf.*.forwarding`.
    pub ipv4: bool,
    /// `net.ipv6.conf.*.forwarding`, where IPv6 is not disabled.
    pub ipv6: bool,
}

impl Facts {
    /// Why packets that come by a device are not routed as the programs do it.
    fn unrouted(&self, index: u32, device: &Device) -> Option<String> {
        if let Some(master) = device.master {
            let master = self.overlay.links.get(&master).map_or("?", |link| link.name.as_str());
            return Some(format!("{}: belongs to {master}, a VRF or another", device.name));
        }
        // The look-up of a program takes no notice of an MTU that is not locked.
        if self.overlay.route_mtus.contains(&index) {
            return Some(format!("{}: a route with an MTU of its own", device.name));
        }
        let forwards = self.forwarding.get(&index).is_some_and(|forwarding| forwarding.ipv4);
        (!forwards).then(|| format!("{}: IPv4 forwarding is off", device.name))
    }
}

/// Why a VXLAN device that is no bridge's port stays slow.
pub(crate) fn refusal(facts: &Facts, index: u32, device: &Device) -> Result<(), String> {
    // Of several next hops a flow's is chosen by a hash that programs do not see.
    let mut odd = facts.overlay.odd_routes.iter().filter(|(to, ..)| to.is_ipv4());
    if let Some((to, length, why)) = odd.next() {
        return Err(format!("routing: {to}/{length} has {why}"));
    }
    facts.unrouted(index, device).map_or(Ok(()), Err)
}

/// Addresses that a VXLAN device may be sent frames for.
pub(crate) fn addresses(facts: &Facts, index: u32) -> BTreeSet<MacAddr> {
    let known = facts.overlay.vxlan_fdb.keys().filter(|(device, _)| *device == index);
    let neighbours = facts.overlay.neighbours.iter().filter(|((link, _), _)| *link == index);
    known
        .map(|(_, mac)| *mac)
        .chain(neighbours.map(|(_, mac)| *mac))
        // Zero stands for every address that has no entry.
        .filter(|mac| mac.0 != [0; 6])
        .collect()
}

/// Whether an address is among those.
pub(crate) fn knows(facts: &Facts, index: u32, mac: MacAddr) -> bool {
    let first = (index, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let mut neighbours =
        facts.overlay.neighbours.range(first..).take_while(|((link, _), _)| *link == index);
    mac.0 != [0; 6]
        && (facts.overlay.vxlan_fdb.contains_key(&(index, mac))
            || neighbours.any(|(_, known)| *known == mac))
}

impl Plan {
    /// Frames to a device's own address are routed.
    pub(crate) fn own(
        &mut self,
        space: Space<'_>,
        index: u32,
        device: &Device,
        result: &mut DevicePlan,
    ) {
        let facts = space.facts;
        let forwards = facts.forwarding.get(&index).is_some_and(|forwarding| forwarding.ipv6);
        let refused = facts
            .no_ipv6
            .clone()
            .or_else(|| (!forwards).then(|| format!("{}: IPv6 forwarding is off", device.name)));
        if let Some(mac) = device.mac {
            self.fdb.insert((space.domain(index).place, mac), Fdb::Own { ipv6: refused.is_none() });
        }
        if let Some(reason) = refused {
            let name = "IPv6".to_owned();
            result.ports.push(PortPlan { name, place: None, refused: Some(reason) });
        }
    }

    /// Adds the devices that tenants' packets are routed from, where there is a VXLAN
    /// device for them.
    pub(crate) fn route(&mut self, space: Space<'_>) {
        let facts = space.facts;
        let is_routed = |device: &DevicePlan| device.routed && device.refused.is_none();
        if !self.devices.iter().any(is_routed) {
            return;
        }
        let mut tenants = DevicePlan::default();
        for (index, link) in &facts.overlay.links {
            if link.bridge.is_some() && link.master.is_none() {
                let refused = facts.unrouted(*index, link);
                let bridge =
                    || plan::queued(link).and_then(|()| plan::bridge_refusal(facts, *index, link));
                match refused.map_or_else(bridge, Err) {
                    Ok(()) => {
                        self.own(space, *index, link, &mut tenants);
                        self.ports_of(space, *index, &mut tenants.ports);
                    }
                    Err(reason) => tenants.ports.push(space.port(*index, link, Some(reason))),
                }
            } else if link.master.is_none()
                && link.kind.as_deref() == Some("veth")
                && !self.nics.contains(index)
            {
                let refused = self.alone(space, *index, link, &mut tenants).err();
                tenants.ports.push(space.port(*index, link, refused));
            }
        }
        for device in self.devices.iter_mut().filter(|device| is_routed(device)) {
            device.ports.extend(tenants.ports.iter().cloned());
        }
    }

    /// A tenant behind a veth pair that is no bridge's port: its address is that of
    /// the other end.
    fn alone(
        &mut self,
        space: Space<'_>,
        index: u32,
        link: &Device,
        tenants: &mut DevicePlan,
    ) -> Result<(), String> {
        let facts = space.facts;
        facts.unrouted(index, link).map_or(Ok(()), Err)?;
        if !link.running {
            return Err(format!("{} is down or has no carrier", link.name));
        }
        plan::interference(facts, index, link)?;
        let tenant = facts.peers.get(&index).and_then(|peer| peer.mac);
        let tenant = tenant.ok_or("its other end is in no other namespace that is known here")?;
        self.own(space, index, link, tenants);
        let domain = space.domain(index);
        self.fdb.insert((domain.place, tenant), plan::local(facts, index, link, tenant));
        self.ports.insert(domain.place, domain);
        Ok(())
    }
}
