//! Routed VXLAN devices, and the tenants' devices that route to them: bridges with an address, and
//! veth pairs without a bridge.
//!
//! BPF programs look up each packet's route in the kernel. This module decides for which devices
//! they may do so, and which addresses belong to the host as a router.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use netstate::interface::Interface;
use packet::ethernet::MacAddr;

use super::local;
use crate::eligibility::{IPV6_ROUTING, LONE_TENANT, LinkCase, ROUTING_BRIDGE, first};
use crate::model::{DevicePlan, Fdb, NetnsSnapshot, NetnsView, Plan, Refusal};

/// Returns the addresses to which a VXLAN device may send frames.
pub(super) fn addresses(snapshot: &NetnsSnapshot, index: u32) -> BTreeSet<MacAddr> {
    let known = snapshot.overlay.vxlan_fdb.keys().filter(|(device, _)| *device == index);
    let neighbours = snapshot.overlay.neighbours.iter().filter(|((link, _), _)| *link == index);
    known
        .map(|(_, mac)| *mac)
        .chain(neighbours.map(|(_, mac)| *mac))
        // The zero address stands for every address without an entry.
        .filter(|mac| mac.0 != [0; 6])
        .collect()
}

/// Whether [`addresses`] contains this address.
pub(crate) fn knows(snapshot: &NetnsSnapshot, index: u32, mac: MacAddr) -> bool {
    let first = (index, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let mut neighbours =
        snapshot.overlay.neighbours.range(first..).take_while(|((link, _), _)| *link == index);
    mac.0 != [0; 6]
        && (snapshot.overlay.vxlan_fdb.contains_key(&(index, mac))
            || neighbours.any(|(_, known)| *known == mac))
}

impl Plan {
    /// Adds the entry for a device's own address: the host routes frames to it.
    pub(super) fn router_mac(
        &mut self,
        view: NetnsView<'_>,
        index: u32,
        device: &Interface,
        result: &mut DevicePlan,
    ) {
        let case = LinkCase { snapshot: view.snapshot, index, link: device };
        let refused = first(IPV6_ROUTING, &case).err();
        if let Some(mac) = device.mac {
            // If IPv6 is refused, IPv4 stays accelerated.
            let entry = Fdb::RouterMac { ipv6: refused.is_none() };
            self.fdb.insert((view.domain(index).id, mac), entry);
        }
        result.refuse_ipv6(refused);
    }

    /// Adds the devices that tenants' packets are routed from, if there is a routed VXLAN device.
    pub(super) fn route(&mut self, view: NetnsView<'_>) {
        let snapshot = view.snapshot;
        let is_routed = |device: &DevicePlan| device.routed && device.refused.is_none();
        // Tenants' packets have no tunnel to be routed to.
        if !self.devices.iter().any(is_routed) {
            return;
        }
        let mut tenants = DevicePlan::default();
        for (index, link) in &snapshot.overlay.links {
            let case = LinkCase { snapshot, index: *index, link };
            if link.bridge.is_some() && link.master.is_none() {
                match first(ROUTING_BRIDGE, &case) {
                    Ok(()) => {
                        self.router_mac(view, *index, link, &mut tenants);
                        self.ports_of(view, *index, &mut tenants.ports);
                    }
                    // List the bridge itself, so that the status report has its refusal.
                    Err(reason) => tenants.ports.push(view.port(*index, link, Some(reason))),
                }
            } else if link.master.is_none()
                && link.kind.as_deref() == Some("veth")
                // The underlay NIC may itself be a veth device.
                && !self.nics.contains(index)
            {
                let refused = self.lone_tenant(view, &case, &mut tenants).err();
                tenants.ports.push(view.port(*index, link, refused));
            }
        }
        for device in self.devices.iter_mut().filter(|device| is_routed(device)) {
            device.ports.extend(tenants.ports.iter().cloned());
            for refused in &tenants.ipv6 {
                device.refuse_ipv6(Some(refused.clone()));
            }
        }
    }

    /// Adds a tenant on a veth pair without a bridge. The peer's address is the tenant's address.
    fn lone_tenant(
        &mut self,
        view: NetnsView<'_>,
        case: &LinkCase<'_>,
        tenants: &mut DevicePlan,
    ) -> Result<(), Refusal> {
        first(LONE_TENANT, case)?;
        let LinkCase { snapshot, index, link } = *case;
        let tenant = snapshot.peers.get(&index).and_then(|peer| peer.mac);
        let tenant = tenant.ok_or(Refusal::UnknownPeer {})?;
        self.router_mac(view, index, link, tenants);
        let domain = view.domain(index);
        self.fdb.insert((domain.id, tenant), local(snapshot, index, link, tenant));
        self.ports.insert(domain.id, domain);
        Ok(())
    }
}

impl DevicePlan {
    /// Records why routed IPv6 packets take the slow path, once per reason.
    fn refuse_ipv6(&mut self, refused: Option<Refusal>) {
        self.ipv6.extend(refused.filter(|refused| !self.ipv6.contains(refused)));
    }
}
