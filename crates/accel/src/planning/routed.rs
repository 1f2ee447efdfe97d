//! VXLAN devices that packets are routed to, and the tenants' devices they are
//! routed from: bridges with an address, and veth pairs by themselves.
//!
//! Which way a packet is routed the programs ask the kernel; here is decided for
//! which devices they may, and which addresses are the host's as a router.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use netstate::overlay::Device;
use packet::ethernet::MacAddr;

use super::local;
use crate::eligibility::{IPV6_ROUTING, LONE_TENANT, LinkCase, ROUTING_BRIDGE, first};
use crate::model::{DevicePlan, Fdb, NetnsSnapshot, NetnsView, Plan, Refusal};

/// Addresses that a VXLAN device may be sent frames for.
pub(super) fn addresses(snapshot: &NetnsSnapshot, index: u32) -> BTreeSet<MacAddr> {
    let known = snapshot.overlay.vxlan_fdb.keys().filter(|(device, _)| *device == index);
    let neighbours = snapshot.overlay.neighbours.iter().filter(|((link, _), _)| *link == index);
    known
        .map(|(_, mac)| *mac)
        .chain(neighbours.map(|(_, mac)| *mac))
        // Zero stands for every address that has no entry.
        .filter(|mac| mac.0 != [0; 6])
        .collect()
}

/// Whether an address is among those.
pub(crate) fn knows(snapshot: &NetnsSnapshot, index: u32, mac: MacAddr) -> bool {
    let first = (index, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let mut neighbours =
        snapshot.overlay.neighbours.range(first..).take_while(|((link, _), _)| *link == index);
    mac.0 != [0; 6]
        && (snapshot.overlay.vxlan_fdb.contains_key(&(index, mac))
            || neighbours.any(|(_, known)| *known == mac))
}

impl Plan {
    /// Frames to a device's own address are routed.
    pub(super) fn router_mac(
        &mut self,
        view: NetnsView<'_>,
        index: u32,
        device: &Device,
        result: &mut DevicePlan,
    ) {
        let case = LinkCase { snapshot: view.snapshot, index, link: device };
        let refused = first(IPV6_ROUTING, &case).err();
        if let Some(mac) = device.mac {
            let entry = Fdb::RouterMac { ipv6: refused.is_none() };
            self.fdb.insert((view.domain(index).id, mac), entry);
        }
        result.refuse_ipv6(refused);
    }

    /// Adds the devices that tenants' packets are routed from, where there is a VXLAN
    /// device for them.
    pub(super) fn route(&mut self, view: NetnsView<'_>) {
        let snapshot = view.snapshot;
        let is_routed = |device: &DevicePlan| device.routed && device.refused.is_none();
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
                    Err(reason) => tenants.ports.push(view.port(*index, link, Some(reason))),
                }
            } else if link.master.is_none()
                && link.kind.as_deref() == Some("veth")
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

    /// A tenant behind a veth pair that is no bridge's port: its address is that of
    /// the other end.
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
    /// Notes why routed IPv6 packets stay slow, once.
    fn refuse_ipv6(&mut self, refused: Option<Refusal>) {
        self.ipv6.extend(refused.filter(|refused| !self.ipv6.contains(refused)));
    }
}
