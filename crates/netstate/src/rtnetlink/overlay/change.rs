//! Notified changes of single entries.

use std::net::IpAddr;

use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use packet::ethernet::MacAddr;

use super::{BridgeEntry, Overlay, VxlanEntry};
use crate::entry::{FdbEntry, Forwarding, forwarding, next_hop};
use crate::netlink::{Netlink, Result};

/// A forwarding table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// A bridge's table, by index.
    Bridge(u32),
    /// A device's own table, by index. Only tables of VXLAN devices define destinations.
    Device(u32),
}

/// A forwarding entry that the kernel notified as added, changed or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryChange {
    /// Table of the entry.
    pub table: Table,
    /// Hardware address of the entry.
    pub mac: MacAddr,
    /// Index of the bridge port in front of the address, or of the device with the table.
    pub port: u32,
    /// A frame from the address caused the change, not a control plane.
    pub learned: bool,
    /// The entry was removed.
    pub gone: bool,
}

/// A change that the kernel notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A forwarding entry changed.
    Entry(EntryChange),
    /// A neighbour changed, perhaps only its state.
    Neighbour {
        /// Interface index of the neighbour's link.
        link: u32,
        /// IP address of the neighbour.
        address: IpAddr,
        /// Address that the kernel sends to, according to the notification; none: it does not send.
        mac: Option<MacAddr>,
    },
}

impl Change {
    /// Parses a notification. `Some(None)`: an entry that is not read here. `None`: unsupported.
    pub(crate) fn read(message: &NeighbourMessage, gone: bool) -> Option<Option<Change>> {
        match message.header.family {
            AddressFamily::Bridge => {
                let entry = forwarding(message)?;
                // Entries that were added have the states `NOARP` or `PERMANENT`.
                let state = message.header.state;
                let learned = [NeighbourState::Reachable, NeighbourState::Stale].contains(&state)
                    && !message.header.flags.contains(NeighbourFlags::ExtLearned);
                let (table, mac, port) = (Table::of(&entry), entry.mac, entry.entry.link);
                let change = EntryChange { table, mac, port, learned, gone };
                Some((!entry.vlan).then_some(Change::Entry(change)))
            }
            AddressFamily::Inet | AddressFamily::Inet6 => {
                let change = |(link, address, mac): (_, _, Option<_>)| Change::Neighbour {
                    link,
                    address,
                    mac: mac.filter(|_| !gone),
                };
                Some(next_hop(message).map(change))
            }
            _ => None,
        }
    }
}

impl Table {
    fn of(entry: &Forwarding) -> Table {
        entry.entry.bridge.map_or(Table::Device(entry.entry.link), Table::Bridge)
    }
}

impl Overlay {
    /// Adds a forwarding entry.
    pub(super) fn add_forwarding(&mut self, entry: Forwarding) {
        let Forwarding { mac, vlan, own, output, entry: FdbEntry { link, remote, port, vni, .. } } =
            entry;
        match Table::of(&entry) {
            // Entries of VLANs belong to bridges with VLAN filtering, which are not supported.
            Table::Bridge(bridge) if !vlan => {
                self.bridge_fdb.insert((bridge, mac), BridgeEntry { port: link, own });
            }
            Table::Device(index)
                if self.links.get(&index).is_some_and(|link| link.vxlan.is_some()) =>
            {
                let to = VxlanEntry { remote, port, vni, link: output };
                self.vxlan_fdb.entry((index, mac)).or_default().push(to);
            }
            _ => {}
        }
    }

    /// Updates an entry after a notification. `netlink` is in the entry's namespace. Not for
    /// addresses with several destinations (zero, multicast), of which the kernel notifies only the
    /// first.
    ///
    /// A removal is applied directly, because a VXLAN device notifies it just before. Otherwise the
    /// kernel is queried, because notifications of learned entries may arrive in another order than
    /// the changes.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn follow(&mut self, netlink: &Netlink, change: &EntryChange) -> Result<()> {
        match change.table {
            Table::Bridge(bridge) => drop(self.bridge_fdb.remove(&(bridge, change.mac))),
            Table::Device(index) => drop(self.vxlan_fdb.remove(&(index, change.mac))),
        }
        // Removals need no query.
        if change.gone {
            return Ok(());
        }
        let mut request = NeighbourMessage::default();
        request.header.family = AddressFamily::Bridge;
        request.attributes.push(NeighbourAttribute::LinkLayerAddress(change.mac.0.to_vec()));
        match change.table {
            Table::Bridge(bridge) => {
                request.attributes.push(NeighbourAttribute::Controller(bridge));
            }
            Table::Device(index) => {
                request.header.ifindex = index;
                request.header.flags = NeighbourFlags::Own;
            }
        }
        let request = RouteNetlinkMessage::GetNeighbour(request);
        let object = format!("of {}", change.mac);
        let answer = netlink.get(request, "find forwarding entry", &object, |answer| {
            if let RouteNetlinkMessage::NewNeighbour(message) = answer
                && let Some(entry) = forwarding(&message)
            {
                self.add_forwarding(entry);
            }
        });
        match answer {
            // The entry was removed meanwhile.
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            answer => answer,
        }
    }
}
