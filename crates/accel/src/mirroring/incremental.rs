//! Applies changes of single forwarding entries without reading anything else.
//!
//! The kernel notifies each change. First its address is withdrawn from the maps. Then the
//! snapshot, the plan and the maps are updated, while all other addresses stay in force. This is
//! allowed only if the change affects no other address. Counterexamples are a remote VTEP behind
//! another NIC, and the first address of a device. In such a case, everything is withdrawn and read
//! again.
//!
//! No order of events leaves an outdated entry in force:
//!
//! - From the moment a notification is read, its address is out of the maps. The kernel sends it
//!   with the change, or just before (a VXLAN device that deletes an entry).
//! - The address returns with the kernel's answer to a query that was sent after the notification
//!   ([`Overlay::follow`]). It does not return if the notification said that the entry is gone.
//! - If the entry changes after that answer, another notification is still unread, and the same
//!   steps start again.
//! - Any other notification causes everything to be read again. A lost notification is an error of
//!   the socket, with the same effect.
//!
//! One order escapes. A VXLAN device deletes an entry on one CPU and learns the same address on
//! another. It may notify the learning last, and report the entry as present until the deletion
//! finishes some instructions later. The periodic audit finds this.
//!
//! The kernel also notifies neighbours, whose state changes all the time. A notification with the
//! address that is in force is not a change.
//!
//! [`Overlay::follow`]: netstate::overlay::Overlay::follow

use std::collections::BTreeSet;
use std::net::IpAddr;

use netstate::Netlink;
use netstate::overlay::{Change, EntryChange, Overlay, Table};
use packet::ethernet::MacAddr;

use super::gather::add_routes_of;
use crate::model::{
    DeviceId, DevicePlan, EntryKey, Fdb, MachineSnapshot, NetnsSnapshot, NetnsView, Plan, Refusal,
    UnderlayRoute,
};
use crate::planning;

/// A change that affects more than one address, or cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beyond;

/// Decision about frames to an address.
struct Decided {
    /// The VXLAN device in front of it, as index into the plan, with the remote VTEP and the path
    /// there.
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

    /// Returns the addresses that changes affect.
    pub(crate) fn keys(&self, changes: &[(u16, Change)]) -> Result<BTreeSet<EntryKey>, Beyond> {
        let mut keys = BTreeSet::new();
        for (number, change) in changes {
            let snapshot = self.view(*number)?.snapshot;
            match change {
                Change::Entry(change) => {
                    let id = |index| DeviceId { netns: *number, index };
                    keys.extend(domain(snapshot, change)?.map(|index| (id(index), change.mac)));
                }
                // A new state with the same address changes nothing. Each new address is notified
                // at least once.
                Change::Neighbour { link, address, mac } => {
                    if snapshot.overlay.neighbours.get(&(*link, *address)) != mac.as_ref() {
                        return Err(Beyond);
                    }
                }
            }
        }
        Ok(keys)
    }

    /// Whether a change affects frames to a single address.
    pub(crate) fn matters(&self, number: u16, change: &EntryChange) -> bool {
        let of = self.view(number).and_then(|view| domain(view.snapshot, change));
        matches!(of, Ok(Some(_)))
    }

    /// Whether the snapshot has the entry that a change affects.
    pub(crate) fn has(&self, number: u16, change: &EntryChange) -> bool {
        let Ok(view) = self.view(number) else { return false };
        let overlay = &view.snapshot.overlay;
        match change.table {
            Table::Bridge(bridge) => overlay.bridge_fdb.contains_key(&(bridge, change.mac)),
            Table::Device(index) => overlay.vxlan_fdb.contains_key(&(index, change.mac)),
        }
    }

    /// Removes the entry that a change affects.
    pub(crate) fn forget(&mut self, number: u16, change: &EntryChange) {
        for (_, overlay) in self.overlays().filter(|(of, _)| *of == number) {
            match change.table {
                Table::Bridge(bridge) => drop(overlay.bridge_fdb.remove(&(bridge, change.mac))),
                Table::Device(index) => drop(overlay.vxlan_fdb.remove(&(index, change.mac))),
            }
        }
    }

    /// Removes the addresses behind some tenants' ports.
    pub(crate) fn leave_out(&mut self, is_left_out: impl Fn(DeviceId) -> bool) {
        for (netns, Overlay { links, bridge_fdb, .. }) in self.overlays() {
            let is_tunnel = |port: u32| links.get(&port).is_some_and(|link| link.vxlan.is_some());
            bridge_fdb.retain(|_, entry| {
                let port = DeviceId { netns, index: entry.port };
                entry.own || is_tunnel(entry.port) || !is_left_out(port)
            });
        }
    }

    /// Updates the snapshot. `netlink` is in namespace `number`, `underlay` in the namespace of the
    /// NICs.
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
        // Only entries of VXLAN devices have remote destinations.
        let Some(vxlan) = overlay.links.get(&index).and_then(|link| link.vxlan.clone()) else {
            return Ok(());
        };
        let before = overlay.vxlan_fdb.get(&(index, mac)).cloned().unwrap_or_default();
        overlay.follow(netlink, change)?;
        let now = overlay.vxlan_fdb.get(&(index, mac)).map_or(&[][..], Vec::as_slice);
        let id = DeviceId { netns: number, index };
        add_routes_of(underlay, routes, id, &vxlan, now)?;
        // Drop routes that no entry uses any more, as a full read would not look them up.
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

/// Returns the domain in which a change affects an address. `None`: the change is irrelevant.
fn domain(snapshot: &NetnsSnapshot, change: &EntryChange) -> Result<Option<u32>, Beyond> {
    let links = &snapshot.overlay.links;
    match change.table {
        Table::Bridge(bridge) => links.contains_key(&bridge).then_some(Some(bridge)).ok_or(Beyond),
        Table::Device(index) => {
            let link = links.get(&index).ok_or(Beyond)?;
            // Entries of other devices are addresses that they receive (`dev_uc_add`).
            if link.vxlan.is_none() {
                return Ok(None);
            }
            // The zero address stands for all addresses without an entry. Groups have several
            // destinations.
            if change.mac.0 == [0; 6] || change.mac.0[0] & 1 == 1 {
                return Err(Beyond);
            }
            Ok(Some(link.master.unwrap_or(index)))
        }
    }
}

impl Plan {
    /// Returns the VXLAN device and the remote VTEP of an address. [`Plan::follow`] needs the
    /// values from before the change.
    pub(crate) fn behind(
        &self,
        view: NetnsView<'_>,
        key: EntryKey,
    ) -> Result<Option<(usize, IpAddr)>, Beyond> {
        let decided = self.decide(view, key)?;
        Ok(decided.remote.map(|(device, to, _)| (device, to)))
    }

    /// Updates the plan for an address.
    pub(crate) fn follow(
        &mut self,
        view: NetnsView<'_>,
        key: EntryKey,
        before: Option<(usize, IpAddr)>,
    ) -> Result<(), Beyond> {
        // Packets to the host's own address are routed, unless the bridge has an entry.
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

    /// A new path must use the NIC and the local address of the device's other paths.
    fn fits(&self, view: NetnsView<'_>, route: &UnderlayRoute) -> Result<(), Beyond> {
        let link = view.snapshot.overlay.links.get(&route.vxlan).ok_or(Beyond)?;
        let vtep = self.vteps.get(&planning::key(link.vxlan.as_ref().ok_or(Beyond)?));
        let vtep = vtep.ok_or(Beyond)?;
        // Another NIC or local address affects all paths of the device.
        let same = vtep.device() == DeviceId { netns: view.number, index: route.vxlan }
            && (vtep.nic, vtep.local) == (route.nic, route.local);
        same.then_some(()).ok_or(Beyond)
    }

    /// Removes one address behind a remote VTEP.
    fn uncount(&mut self, device: usize, to: IpAddr) -> Result<(), Beyond> {
        let remotes = &mut self.devices[device].remotes;
        let remote = remotes.get_mut(&to).ok_or(Beyond)?;
        remote.addresses -= 1;
        if remote.addresses > 0 {
            return Ok(());
        }
        let led = remote.refused.is_none();
        remotes.remove(&to);
        // The last usable VTEP is gone, so the device is no longer accelerated.
        let others = remotes.values().any(|remote| remote.refused.is_none());
        if led && !others { Err(Beyond) } else { Ok(()) }
    }

    /// Decides about one address as [`Plan::new`] would.
    fn decide(&self, view: NetnsView<'_>, (domain, mac): EntryKey) -> Result<Decided, Beyond> {
        let overlay = &view.snapshot.overlay;
        let nothing = Decided { remote: None, entry: None };
        let behind = match overlay.bridge_fdb.get(&(domain.index, mac)) {
            // The kernel receives frames to its own addresses.
            Some(entry) if entry.own => return Ok(nothing),
            Some(entry) => entry.port,
            None if planning::knows(view.snapshot, domain.index, mac) => domain.index,
            // Unknown addresses take the slow path.
            None => return Ok(nothing),
        };
        // The link is newer than the snapshot.
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
            // The device is refused whatever its addresses are.
            Err(_) => return Ok(nothing),
            // The entry belongs to another domain.
            Ok(index) if index != domain.index => return Ok(nothing),
            Ok(_) => {}
        }
        // This address may be the cause of the refusal.
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
