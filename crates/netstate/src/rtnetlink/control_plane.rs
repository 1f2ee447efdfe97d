//! Forwarding entries and neighbours set by a control plane, marked as externally learned
//! (`NTF_EXT_LEARNED`).

use std::net::IpAddr;

use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use packet::ethernet::MacAddr;

use crate::entry::ip;
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
        self.controlled(AddressFamily::Bridge, "controlled forwarding entries")
    }

    /// Lists the IPv4 neighbours set by a control plane.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn controlled_neighbours(&self) -> Result<Vec<Controlled>> {
        self.controlled(AddressFamily::Inet, "controlled neighbours")
    }

    fn controlled(&self, family: AddressFamily, what: &str) -> Result<Vec<Controlled>> {
        let mut message = NeighbourMessage::default();
        message.header.family = family;
        let mut all = Vec::new();
        let request = RouteNetlinkMessage::GetNeighbour(message);
        self.dump(request, "list", what, |answer| {
            if let RouteNetlinkMessage::NewNeighbour(message) = answer {
                all.extend(read(&message));
            }
        })?;
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
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(MacAddr);
            }
            NeighbourAttribute::Controller(index) => bridge = Some(*index),
            NeighbourAttribute::Destination(to) => address = ip(to),
            NeighbourAttribute::Protocol(by) => protocol = Some(u8::from(*by)),
            _ => {}
        }
    }
    Some(Controlled { link: message.header.ifindex, bridge, mac: mac?, address, protocol })
}
