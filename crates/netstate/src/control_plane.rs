//! Forwarding entries and neighbours that a control plane has set: marked as learned outside
//! of the kernel (`NTF_EXT_LEARNED`).

use std::net::IpAddr;

use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use packet::ethernet::MacAddr;

use crate::entry::ip;
use crate::netlink::{Netlink, Result};

/// An entry of a control plane's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Controlled {
    /// Index of the link: a neighbour's, a bridge's port, or a VXLAN device.
    pub link: u32,
    /// Index of the bridge whose forwarding entry it is (`NDA_MASTER`).
    pub bridge: Option<u32>,
    /// Hardware address that it is of, or leads to.
    pub mac: MacAddr,
    /// The neighbour's address, or the remote VTEP of a VXLAN device's entry.
    pub address: Option<IpAddr>,
    /// Who set it (`NDA_PROTOCOL`, `RTPROT_*` of `linux/rtnetlink.h`); the kernel keeps it for
    /// neighbours only.
    pub protocol: Option<u8>,
}

impl Netlink {
    /// Every forwarding entry of bridges and VXLAN devices that a control plane has set.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub fn controlled_fdb(&self) -> Result<Vec<Controlled>> {
        self.controlled(AddressFamily::Bridge, "controlled forwarding entries")
    }

    /// Every IPv4 neighbour that a control plane has set.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
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
