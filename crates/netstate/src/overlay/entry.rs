//! Forwarding entries of bridges and VXLAN devices, neighbours, and the changes of single
//! ones.

use std::net::IpAddr;

use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use packet::ethernet::MacAddr;

use super::{BridgeEntry, Overlay, VxlanEntry, remote};
use crate::netlink::{Netlink, Result};

/// The forwarding table that an entry is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// A bridge's, by index.
    Bridge(u32),
    /// A device's own, by index; only those of VXLAN devices say where frames go.
    Device(u32),
}

/// A forwarding entry of which the kernel has told that it is new, another or gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryChange {
    /// Table that has the entry.
    pub table: Table,
    /// Hardware address that the entry is of.
    pub mac: MacAddr,
    /// It is no more.
    pub gone: bool,
}

/// A change of which the kernel has told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Of a forwarding entry.
    Entry(EntryChange),
    /// Of a neighbour, perhaps of its state only.
    Neighbour {
        /// Interface index of the device that has the neighbour.
        link: u32,
        /// IP address of the neighbour.
        address: IpAddr,
        /// Where the kernel sends to, by what was told; none: nowhere.
        mac: Option<MacAddr>,
    },
}

/// What a message of the kernel says of an entry.
struct Entry {
    table: Table,
    mac: MacAddr,
    /// Of a VLAN; not asked where VLANs are not filtered.
    vlan: bool,
    /// Destination where `table` is a bridge's.
    local: BridgeEntry,
    /// In a VXLAN device.
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
                NeighbourAttribute::Destination(address) => entry.remote = remote(address),
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
    /// What a notification tells: of an entry that is not read here there is nothing to
    /// tell. `None`: it tells nothing that is understood.
    pub(crate) fn read(message: &NeighbourMessage, gone: bool) -> Option<Option<Change>> {
        match message.header.family {
            AddressFamily::Bridge => {
                let Entry { table, mac, vlan, .. } = Entry::read(message)?;
                Some((!vlan).then_some(Change::Entry(EntryChange { table, mac, gone })))
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

/// Link, address and, where the kernel sends to it, the address there.
fn neighbour(message: &NeighbourMessage) -> Option<(u32, IpAddr, Option<MacAddr>)> {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // Groups have entries of IPv6, too.
            NeighbourAttribute::Destination(to) => {
                address = remote(to).filter(|to| !to.is_multicast());
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(MacAddr);
            }
            _ => {}
        }
    }
    // NUD_VALID: the kernel sends to the address in these.
    let valid = [Permanent, Noarp, Reachable, Probe, Stale, Delay].contains(&message.header.state);
    Some((message.header.ifindex, address?, mac.filter(|_| valid)))
}

impl Overlay {
    /// Adds what a message says of a neighbour.
    pub(super) fn neighbour(&mut self, message: &NeighbourMessage) {
        if let Some((link, address, Some(mac))) = neighbour(message) {
            self.neighbours.insert((link, address), mac);
        }
    }

    /// Adds what a message says.
    pub(super) fn forwarding(&mut self, message: &NeighbourMessage) {
        let Some(Entry { table, mac, vlan, local, remote }) = Entry::read(message) else { return };
        match table {
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

    /// Brings an entry up to date of which the kernel has told, in the namespace that
    /// `netlink` is in. Of an address that may have several destinations (zero, groups)
    /// the kernel names the first only: those are not for this.
    ///
    /// What is gone is believed, as a VXLAN device tells of it just before; for all else
    /// the kernel is asked, since notifications of learned entries may come in another
    /// order than the changes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn follow(&mut self, netlink: &Netlink, change: &EntryChange) -> Result<()> {
        match change.table {
            Table::Bridge(bridge) => drop(self.bridge_fdb.remove(&(bridge, change.mac))),
            Table::Device(index) => drop(self.vxlan_fdb.remove(&(index, change.mac))),
        }
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
            // It went meanwhile.
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            answer => answer,
        }
    }
}
