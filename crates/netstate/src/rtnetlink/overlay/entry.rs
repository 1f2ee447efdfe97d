//! Forwarding entries of bridges and VXLAN devices, neighbours, and notified changes of single
//! entries.

use std::net::IpAddr;

use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use packet::ethernet::MacAddr;

use super::{BridgeEntry, Overlay, VxlanEntry};
use crate::entry::ip;
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

/// The content of an entry in a message.
struct Entry {
    table: Table,
    mac: MacAddr,
    /// Whether it belongs to a VLAN. Such entries are skipped, as bridges with VLAN filtering are
    /// not supported.
    vlan: bool,
    /// Destination, for a bridge's table.
    local: BridgeEntry,
    /// Destination, for a VXLAN device's table.
    remote: VxlanEntry,
}

impl Entry {
    fn read(message: &NeighbourMessage) -> Option<Entry> {
        let (mut mac, mut bridge, mut vlan) = (None, None, false);
        let mut entry = VxlanEntry { remote: None, port: None, vni: None, link: None };
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::LinkLayerAddress(bytes) => {
                    mac = bytes.as_slice().try_into().ok().map(MacAddr);
                }
                NeighbourAttribute::Controller(index) => bridge = Some(*index),
                NeighbourAttribute::Vlan(id) => vlan = *id != 0,
                NeighbourAttribute::Destination(address) => entry.remote = ip(address),
                NeighbourAttribute::Port(port) => entry.port = Some(*port),
                NeighbourAttribute::Vni(vni) => entry.vni = Some(*vni),
                NeighbourAttribute::IfIndex(index) => entry.link = Some(*index),
                _ => {}
            }
        }
        let index = message.header.ifindex;
        let own = message.header.state == NeighbourState::Permanent;
        Some(Entry {
            table: bridge.map_or(Table::Device(index), Table::Bridge),
            mac: mac?,
            vlan,
            local: BridgeEntry { port: index, own },
            remote: entry,
        })
    }
}

impl Change {
    /// Parses a notification. `Some(None)`: an entry that is not read here. `None`: unsupported.
    pub(crate) fn read(message: &NeighbourMessage, gone: bool) -> Option<Option<Change>> {
        match message.header.family {
            AddressFamily::Bridge => {
                let Entry { table, mac, vlan, local, .. } = Entry::read(message)?;
                // Entries that were added have the states `NOARP` or `PERMANENT`.
                let state = message.header.state;
                let learned = [NeighbourState::Reachable, NeighbourState::Stale].contains(&state)
                    && !message.header.flags.contains(NeighbourFlags::ExtLearned);
                let change = EntryChange { table, mac, port: local.port, learned, gone };
                Some((!vlan).then_some(Change::Entry(change)))
            }
            AddressFamily::Inet | AddressFamily::Inet6 => {
                let change = |(link, address, mac): (_, _, Option<_>)| Change::Neighbour {
                    link,
                    address,
                    mac: mac.filter(|_| !gone),
                };
                Some(neighbour(message).map(change))
            }
            _ => None,
        }
    }
}

/// Returns link, address and, if the kernel sends to the neighbour, its hardware address.
fn neighbour(message: &NeighbourMessage) -> Option<(u32, IpAddr, Option<MacAddr>)> {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // IPv6 multicast groups have entries, too.
            NeighbourAttribute::Destination(to) => {
                address = ip(to).filter(|to| !to.is_multicast());
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(MacAddr);
            }
            _ => {}
        }
    }
    // NUD_VALID: states in which the kernel sends to the neighbour.
    let valid = [Permanent, Noarp, Reachable, Probe, Stale, Delay].contains(&message.header.state);
    Some((message.header.ifindex, address?, mac.filter(|_| valid)))
}

impl Overlay {
    /// Adds the neighbour in a message.
    pub(super) fn neighbour(&mut self, message: &NeighbourMessage) {
        if let Some((link, address, Some(mac))) = neighbour(message) {
            self.neighbours.insert((link, address), mac);
        }
    }

    /// Adds the forwarding entry in a message.
    pub(super) fn forwarding(&mut self, message: &NeighbourMessage) {
        let Some(Entry { table, mac, vlan, local, remote }) = Entry::read(message) else { return };
        match table {
            // Entries of VLANs belong to bridges with VLAN filtering.
            Table::Bridge(bridge) if !vlan => {
                self.bridge_fdb.insert((bridge, mac), local);
            }
            Table::Device(index)
                if self.links.get(&index).is_some_and(|link| link.vxlan.is_some()) =>
            {
                self.vxlan_fdb.entry((index, mac)).or_default().push(remote);
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
            if let RouteNetlinkMessage::NewNeighbour(message) = answer {
                self.forwarding(&message);
            }
        });
        match answer {
            // The entry was removed meanwhile.
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            answer => answer,
        }
    }
}
