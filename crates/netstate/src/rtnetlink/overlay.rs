//! A snapshot of a namespace: bridges, VXLAN devices, their forwarding state, and other objects
//! that may affect their packets.

mod address_type;
mod change;
mod lookup;
mod rule;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_packet_route::tc::{TcAttribute, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use packet::ethernet::MacAddr;

pub use address_type::AddressTypes;
pub use change::{Change, EntryChange, Table};
pub use lookup::{Found, Query};

use crate::entry::{forwarding, next_hop};
use crate::interface::{Counters, Interface};
use crate::netlink::{Netlink, Result};

/// Forwarding state of nearly one moment: the kernel has no lock over all of it, so a reader must
/// watch for changes meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overlay {
    /// Links of the namespace, by interface index. Their counters are left out, so that snapshots of
    /// the same state are equal.
    pub links: BTreeMap<u32, Interface>,
    /// Bridges' forwarding entries: (bridge, address) to port.
    pub bridge_fdb: BTreeMap<(u32, MacAddr), BridgeEntry>,
    /// VXLAN devices' forwarding entries: (device, address) to destinations.
    pub vxlan_fdb: BTreeMap<(u32, MacAddr), Vec<VxlanEntry>>,
    /// Usable neighbours: (link, address).
    pub neighbours: BTreeMap<(u32, IpAddr), MacAddr>,
    /// Addresses of this namespace, except IPv6 addresses not yet known to be unique (RFC 4862).
    pub addresses: Vec<IpAddr>,
    /// Types of addresses in the routing tables.
    pub address_types: AddressTypes,
    /// IPv4 routing rules that differ from the three default rules, described. Rules that match
    /// only packets of VRFs are left out.
    pub rules: Vec<String>,
    /// Routes that are more than a single next hop: network, prefix length, reason.
    pub unsupported_routes: Vec<(IpAddr, u8, &'static str)>,
    /// The same for IPv6, which has two default rules.
    pub rules6: Vec<String>,
    /// Links with a route that sets an MTU.
    pub route_mtus: BTreeSet<u32>,
    /// Links with an ingress or clsact qdisc, to which tc filters attach.
    pub filtered: BTreeMap<u32, String>,
}

/// A bridge's forwarding entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeEntry {
    /// Index of the port in front of the address.
    pub port: u32,
    /// The address belongs to the port or the bridge itself.
    pub own: bool,
}

/// A VXLAN device's forwarding entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanEntry {
    /// Remote VTEP; `None`: a next hop group.
    pub remote: Option<IpAddr>,
    /// UDP port, if it differs from the device's.
    pub port: Option<u16>,
    /// VNI to send with, if it differs from the device's (`NDA_VNI`).
    pub vni: Option<u32>,
    /// Index of the output device, if it differs from the tunnel's (`NDA_IFINDEX`).
    pub link: Option<u32>,
}

impl Netlink {
    /// Reads the snapshot.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn overlay(&self) -> Result<Overlay> {
        let mut all = self.overlay_but_entries()?;
        self.each_neighbour(AddressFamily::Bridge, |message| {
            if let Some(entry) = forwarding(message) {
                all.add_forwarding(entry);
            }
        })?;
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            self.each_neighbour(family, |message| {
                if let Some((link, address, Some(mac))) = next_hop(message) {
                    all.neighbours.insert((link, address), mac);
                }
            })?;
        }
        Ok(all)
    }

    /// Reads the snapshot without forwarding entries and neighbours. There may be many, and the
    /// kernel notifies each change.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn overlay_but_entries(&self) -> Result<Overlay> {
        let mut all = Overlay::default();
        for link in self.links()? {
            all.links.insert(link.index, Interface { counters: Counters::default(), ..link });
        }
        self.each_address(|address, is_tentative| {
            // Another host may have the address.
            let is_own = !is_tentative && !address.duplicate;
            all.addresses.extend(is_own.then_some(address.address));
        })?;
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            self.routing(family, &mut all)?;
        }
        all.address_types.finish(!all.rules6.is_empty());
        let qdiscs = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        self.dump(qdiscs, "list", "queueing disciplines", |answer| {
            let RouteNetlinkMessage::NewQueueDiscipline(message) = answer else { return };
            for attribute in message.attributes {
                if let TcAttribute::Kind(kind) = attribute
                    && ["clsact", "ingress"].contains(&kind.as_str())
                {
                    all.filtered.insert(message.header.index.unsigned_abs(), kind);
                }
            }
        })?;
        Ok(all)
    }
}

impl Overlay {
    /// Swaps the entries that [`Netlink::overlay_but_entries`] leaves out.
    pub fn swap_entries(&mut self, other: &mut Overlay) {
        std::mem::swap(&mut self.bridge_fdb, &mut other.bridge_fdb);
        std::mem::swap(&mut self.vxlan_fdb, &mut other.vxlan_fdb);
        std::mem::swap(&mut self.neighbours, &mut other.neighbours);
    }
}
