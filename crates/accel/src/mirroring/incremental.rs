//! Changes of single forwarding entries, followed without reading anything else.
//!
//! The kernel tells of each. Its address is withdrawn from the maps before anything else
//! happens. Then the snapshot is brought up to date, the plan, and the maps. All other
//! addresses stay in force. So nothing may be changed here that concerns them, too. Examples
//! are a remote VTEP by another NIC, and the first address of a device. Then nothing is
//! followed: everything is read anew with the maps withdrawn.
//!
//! Why no order of events leaves an old entry in force:
//!
//! - From the moment that a notification is read, its address is out of the maps. The kernel
//!   sends it with the change, or just before (a VXLAN device that deletes).
//! - The address comes back with what the kernel answers to a question that was asked after
//!   the notification ([`Overlay::follow`]). It does not come back where the kernel told that
//!   the entry is gone.
//! - If the entry changes after that answer, there is another notification, still unread. The
//!   same begins again.
//! - Notifications of anything else have everything read anew. One that is lost is an error
//!   of the socket, with the same effect.
//!
//! One order escapes. A VXLAN device deletes an entry on one CPU, and learns the same address
//! anew on another. It may tell of the latter last, and answer as if it were there until the
//! former is done, some instructions later. That is for the periodic reading to find.
//!
//! Of neighbours, which change their states all the time, the kernel tells here, too; one
//! that still has the address that is in force is no change.
//!
//! [`Overlay::follow`]: netstate::overlay::Overlay::follow

use std::collections::BTreeSet;
use std::net::IpAddr;

use netstate::Netlink;
use netstate::overlay::{Change, EntryChange, Table};
use packet::ethernet::MacAddr;

use super::gather::add_routes_of;
use crate::model::{
    DeviceId, DevicePlan, EntryKey, Fdb, MachineSnapshot, NetnsSnapshot, NetnsView, Plan, Refusal,
    UnderlayRoute,
};
use crate::planning;

/// A change that concerns more than one address, or that is not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beyond;

/// What is to become of frames to an address.
struct Decided {
    /// The VXLAN device that it is behind, by place in the plan, its remote VTEP and the
    /// way there.
    remote: Option<(usize, IpAddr, Result<UnderlayRoute, Refusal>)>,
    entry: Option<Fdb>,
}

impl MachineSnapshot {
    pub(crate) fn view(&self, number: u16) -> Result<NetnsView<'_>, Beyond> {
        if number == 0 {
            return Ok(NetnsView::home(&self.home));
        }
        let sandbox = self.sandboxes.get(&number).ok_or(Beyond)?;
        Ok(NetnsView::sandbox(number, sandbox, &self.home))
    }

    /// The addresses that changes concern.
    pub(crate) fn keys(&self, changes: &[(u16, Change)]) -> Result<BTreeSet<EntryKey>, Beyond> {
        let mut keys = BTreeSet::new();
        for (number, change) in changes {
            let snapshot = self.view(*number)?.snapshot;
            match change {
                Change::Entry(change) => {
                    let id = |index| DeviceId { netns: *number, index };
                    keys.extend(domain(snapshot, change)?.map(|index| (id(index), change.mac)));
                }
                // Another state with the same address is nothing new; one that differs
                // from what is in force is told of at least once.
                Change::Neighbour { link, address, mac } => {
                    if snapshot.overlay.neighbours.get(&(*link, *address)) != mac.as_ref() {
                        return Err(Beyond);
                    }
                }
            }
        }
        Ok(keys)
    }

    /// Brings the snapshot up to date. `netlink` is in namespace `number`, `underlay` in the
    /// NICs'.
    pub(crate) fn follow(
        &mut self,
        netlink: &Netlink,
        underlay: &Netlink,
        number: u16,
        change: &EntryChange,
    ) -> netstate::Result<()> {
        let MachineSnapshot { home, sandboxes } = self;
        let NetnsSnapshot { overlay, routes, .. } = home;
        let overlay = match sandboxes.get_mut(&number) {
            Some(sandbox) => &mut sandbox.snapshot.overlay,
            None => overlay,
        };
        let (Table::Device(index), mac) = (change.table, change.mac) else {
            return overlay.follow(netlink, change);
        };
        let Some(vxlan) = overlay.links.get(&index).and_then(|link| link.vxlan.clone()) else {
            return Ok(());
        };
        let before = overlay.vxlan_fdb.get(&(index, mac)).cloned().unwrap_or_default();
        overlay.follow(netlink, change)?;
        let now = overlay.vxlan_fdb.get(&(index, mac)).map_or(&[][..], Vec::as_slice);
        let id = DeviceId { netns: number, index };
        add_routes_of(underlay, routes, id, &vxlan, now)?;
        // A way that nothing leads to any more is none that a reading anew would ask for.
        for remote in before.iter().filter_map(|entry| entry.remote) {
            let all = (index, MacAddr([0; 6]))..=(index, MacAddr([0xff; 6]));
            let mut entries = overlay.vxlan_fdb.range(all).flat_map(|(_, entries)| entries);
            if !entries.any(|entry| entry.remote == Some(remote)) {
                routes.remove(&(id, remote));
            }
        }
        Ok(())
    }
}

/// The domain in which a change concerns an address; none: it decides nothing.
fn domain(snapshot: &NetnsSnapshot, change: &EntryChange) -> Result<Option<u32>, Beyond> {
    let links = &snapshot.overlay.links;
    match change.table {
        Table::Bridge(bridge) => links.contains_key(&bridge).then_some(Some(bridge)).ok_or(Beyond),
        Table::Device(index) => {
            let link = links.get(&index).ok_or(Beyond)?;
            // Of other devices these are addresses that they receive (`dev_uc_add`).
            if link.vxlan.is_none() {
                return Ok(None);
            }
            // Zero stands for all that have no entry; groups have several destinations.
            if change.mac.0 == [0; 6] || change.mac.0[0] & 1 == 1 {
                return Err(Beyond);
            }
            Ok(Some(link.master.unwrap_or(index)))
        }
    }
}

impl Plan {
    /// The VXLAN device and the remote VTEP that an address is behind: what
    /// [`Plan::follow`] wants to know from before the change.
    pub(crate) fn behind(
        &self,
        view: NetnsView<'_>,
        key: EntryKey,
    ) -> Result<Option<(usize, IpAddr)>, Beyond> {
        let decided = self.decide(view, key)?;
        Ok(decided.remote.map(|(device, to, _)| (device, to)))
    }

    /// Brings the plan up to date for an address.
    pub(crate) fn follow(
        &mut self,
        view: NetnsView<'_>,
        key: EntryKey,
        before: Option<(usize, IpAddr)>,
    ) -> Result<(), Beyond> {
        // The host's own: packets to it are routed, unless a bridge knows better.
        let (domain, mac) = key;
        if view.snapshot.overlay.links.get(&domain.index).is_none_or(|link| link.mac == Some(mac)) {
            return Err(Beyond);
        }
        let decided = self.decide(view, key)?;
        if let Some((device, to, route)) = &decided.remote {
            self.devices[*device].count(*to, route);
            if let Ok(route) = route {
                self.fits(view, route)?;
            }
        }
        if let Some((device, to)) = before {
            self.uncount(device, to)?;
        }
        match decided.entry {
            Some(entry) => drop(self.fdb.insert(key, entry)),
            None => drop(self.fdb.remove(&key)),
        }
        Ok(())
    }

    /// A way is one more of its VXLAN device's only where these have led by the same NIC
    /// from the same address.
    fn fits(&self, view: NetnsView<'_>, route: &UnderlayRoute) -> Result<(), Beyond> {
        let link = view.snapshot.overlay.links.get(&route.vxlan).ok_or(Beyond)?;
        let vtep = self.vteps.get(&planning::key(link.vxlan.as_ref().ok_or(Beyond)?));
        let vtep = vtep.ok_or(Beyond)?;
        let same = vtep.device() == DeviceId { netns: view.number, index: route.vxlan }
            && (vtep.nic, vtep.local) == (route.nic, route.local);
        same.then_some(()).ok_or(Beyond)
    }

    /// One address less behind a remote VTEP.
    fn uncount(&mut self, device: usize, to: IpAddr) -> Result<(), Beyond> {
        let remotes = &mut self.devices[device].remotes;
        let remote = remotes.get_mut(&to).ok_or(Beyond)?;
        remote.addresses -= 1;
        if remote.addresses > 0 {
            return Ok(());
        }
        let led = remote.refused.is_none();
        remotes.remove(&to);
        // Without any the device is not served.
        let others = remotes.values().any(|remote| remote.refused.is_none());
        if led && !others { Err(Beyond) } else { Ok(()) }
    }

    /// What [`Plan::new`] would say of one address.
    fn decide(&self, view: NetnsView<'_>, (domain, mac): EntryKey) -> Result<Decided, Beyond> {
        let overlay = &view.snapshot.overlay;
        let nothing = Decided { remote: None, entry: None };
        let behind = match overlay.bridge_fdb.get(&(domain.index, mac)) {
            Some(entry) if entry.own => return Ok(nothing),
            Some(entry) => entry.port,
            None if planning::knows(view.snapshot, domain.index, mac) => domain.index,
            None => return Ok(nothing),
        };
        let Some(link) = overlay.links.get(&behind) else { return Err(Beyond) };
        let Some(vxlan) = &link.vxlan else {
            let port = self.ports.get(&DeviceId { index: behind, ..domain });
            let served = port.is_some_and(|of| of.id == domain);
            let entry = served.then(|| planning::local(view.snapshot, behind, link, mac));
            return Ok(Decided { remote: None, entry });
        };
        let is = |device: &DevicePlan| {
            device.index == behind && device.sandbox.unwrap_or(0) == view.number
        };
        let Some(device) = self.devices.iter().position(is) else { return Ok(nothing) };
        match planning::domain_of(view, behind, link, vxlan) {
            // It stays slow whatever its addresses are.
            Err(_) => return Ok(nothing),
            Ok(index) if index != domain.index => return Ok(nothing),
            Ok(_) => {}
        }
        // It may be one of the addresses that keeps it slow.
        if self.devices[device].refused.is_some() {
            return Err(Beyond);
        }
        let Some((to, route)) = planning::to_address(view, behind, vxlan, mac) else {
            return Ok(nothing);
        };
        let entry = route.as_ref().ok().map(|route| Fdb::Remote(*route));
        Ok(Decided { remote: Some((device, to, route)), entry })
    }
}

#[cfg(test)]
pub(crate) mod tests;
