//! Neighbours (ARP and ND entries) and forwarding database entries.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::RouteType;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use packet::ethernet::MacAddr;

use crate::addr::family;
use crate::netlink::{Netlink, Result};

impl Netlink {
    /// Adds a permanent neighbour.
    ///
    /// # Errors
    /// `ENODEV` if there is no such link.
    pub fn add_neighbour(&self, link: &str, address: IpAddr, mac: MacAddr) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = self.link(link)?.index;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        message.attributes.push(NeighbourAttribute::Destination(neighbour(address)));
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        self.change(
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_REPLACE,
            "add neighbour",
            &format!("{address} dev {link}"),
        )
    }

    /// Adds a permanent FDB entry to a VXLAN device: frames to `mac` go to the VTEP `remote`
    /// (`bridge fdb add … dst … self permanent`).
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` if it is not a VXLAN device.
    pub fn add_vxlan_fdb(&self, link: &str, mac: MacAddr, remote: IpAddr) -> Result<()> {
        let mut message = NeighbourMessage::default();
        // PF_BRIDGE selects the forwarding database rather than a neighbour table.
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = self.link(link)?.index;
        message.header.state = NeighbourState::Permanent;
        message.header.flags = NeighbourFlags::Own;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        message.attributes.push(NeighbourAttribute::Destination(neighbour(remote)));
        self.change(
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_REPLACE,
            "add fdb entry",
            &format!("dev {link} dst {remote}"),
        )
    }
}

fn neighbour(address: IpAddr) -> NeighbourAddress {
    match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    }
}
