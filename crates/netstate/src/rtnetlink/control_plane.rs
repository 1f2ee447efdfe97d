//! Forwarding entries and neighbours set by a control plane, marked as externally learned
//! (`NTF_EXT_LEARNED`).

use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use packet::ethernet::MacAddr;

use crate::entry::{hardware_address, ip};
use crate::netlink::{Netlink, Result};

/// An entry set by a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Controlled {
    /// Index of the neighbour's link, the bridge port, or the VXLAN device.
    pub link: u32,
    /// Index of the bridge, for a bridge's forwarding entry (`NDA_MASTER`).
    pub bridge: Option<u32>,
    /// Hardware address of the entry.
    pub mac: MacAddr,
    /// The neighbour's address, or the remote VTEP of a VXLAN device's entry.
    pub address: Option<IpAddr>,
    /// Origin of the entry (`NDA_PROTOCOL`, `RTPROT_*` of `linux/rtnetlink.h`). The kernel stores
    /// it for neighbours only.
    pub protocol: Option<u8>,
}

impl Netlink {
    /// Lists the forwarding entries of bridges and VXLAN devices set by a control plane.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn controlled_fdb(&self) -> Result<Vec<Controlled>> {
        self.controlled(AddressFamily::Bridge)
    }

    /// Lists the IPv4 neighbours set by a control plane.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn controlled_neighbours(&self) -> Result<Vec<Controlled>> {
        self.controlled(AddressFamily::Inet)
    }

    fn controlled(&self, family: AddressFamily) -> Result<Vec<Controlled>> {
        let mut all = Vec::new();
        self.each_neighbour(family, |message| all.extend(read(message)))?;
        Ok(all)
    }
}

fn read(message: &NeighbourMessage) -> Option<Controlled> {
    // Learned by the kernel or set by an administrator.
    if !message.header.flags.contains(NeighbourFlags::ExtLearned) {
        return None;
    }
    let (mut mac, mut bridge, mut address, mut protocol) = (None, None, None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = hardware_address(bytes),
            NeighbourAttribute::Controller(index) => bridge = Some(*index),
            NeighbourAttribute::Destination(to) => address = ip(to),
            NeighbourAttribute::Protocol(by) => protocol = Some(u8::from(*by)),
            _ => {}
        }
    }
    Some(Controlled { link: message.header.ifindex, bridge, mac: mac?, address, protocol })
}
