//! What a namespace knows of others: addresses, neighbours, forwarding entries,
//! as values that can be kept.

use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use packet::ethernet::MacAddr;
use serde::{Deserialize, Serialize};

use crate::netlink::{Netlink, Result};

/// An address of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Index of the link that has it.
    pub link: u32,
    /// IPv4 or IPv6 address of the host on that link.
    pub address: IpAddr,
    /// Prefix length, bits.
    pub prefix: u8,
}

/// How much the kernel knows of a neighbour (`NUD_…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knowledge {
    /// Set by an administrator or control plane, or needs no asking.
    Permanent,
    /// Answered lately, or is being confirmed.
    Usable,
    /// Answered once; still used.
    Stale,
    /// Being asked for the first time.
    Incomplete,
    /// Asked, and did not answer (`NUD_FAILED`).
    Failed,
}

/// A neighbour: the hardware address of an IP address on a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Index of the link that it is on.
    pub link: u32,
    /// IPv4 or IPv6 address of the neighbour.
    pub address: IpAddr,
    /// Hardware address, where it is known.
    #[serde(with = "crate::mac_text")]
    pub mac: Option<MacAddr>,
    /// How much the kernel knows of it now.
    pub knowledge: Knowledge,
}

/// A forwarding entry of a bridge or VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdbEntry {
    /// Index of the port, or of the VXLAN device.
    pub link: u32,
    /// Destination address; all zeros: the default.
    #[serde(with = "crate::mac_text")]
    pub mac: Option<MacAddr>,
    /// Index of the bridge whose entry it is; `None`: the device's own (`self`).
    pub bridge: Option<u32>,
    /// VTEP that frames to this address are sent to (VXLAN devices).
    pub remote: Option<IpAddr>,
    /// UDP port there, where it is not the device's.
    pub port: Option<u16>,
    /// VNI there, where it is not the device's.
    pub vni: Option<u32>,
    /// Set by an administrator or control plane, not learned.
    pub fixed: bool,
}

impl Netlink {
    /// Every address of the namespace.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub fn addresses(&self) -> Result<Vec<Address>> {
        let mut all = Vec::new();
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.dump(request, "list", "addresses", |answer| {
            let RouteNetlinkMessage::NewAddress(message) = answer else { return };
            // IPv6 addresses have no IFLA_LOCAL unless they are of a point-to-point link.
            let find = |local: bool| {
                message.attributes.iter().find_map(|attribute| match attribute {
                    AddressAttribute::Local(address) if local => Some(*address),
                    AddressAttribute::Address(address) if !local => Some(*address),
                    _ => None,
                })
            };
            if let Some(address) = find(true).or_else(|| find(false)) {
                let (link, prefix) = (message.header.index, message.header.prefix_len);
                all.push(Address { link, address, prefix });
            }
        })?;
        Ok(all)
    }

    /// Every neighbour of the namespace, IPv4 and IPv6, that is not multicast.
    ///
    /// # Errors
    /// When the kernel refuses a dump.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>> {
        let mut all = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = NeighbourMessage::default();
            message.header.family = family;
            let request = RouteNetlinkMessage::GetNeighbour(message);
            self.dump(request, "list", "neighbours", |answer| {
                if let RouteNetlinkMessage::NewNeighbour(message) = answer {
                    all.extend(neighbour(message));
                }
            })?;
        }
        Ok(all)
    }

    /// Every forwarding entry of the namespace's bridges and VXLAN devices.
    ///
    /// # Errors
    /// When the kernel refuses the dump.
    pub fn fdb(&self) -> Result<Vec<FdbEntry>> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        let mut all = Vec::new();
        let request = RouteNetlinkMessage::GetNeighbour(message);
        self.dump(request, "list", "forwarding entries", |answer| {
            if let RouteNetlinkMessage::NewNeighbour(message) = answer {
                all.extend(forwarding(message));
            }
        })?;
        Ok(all)
    }
}

fn neighbour(message: NeighbourMessage) -> Option<Neighbour> {
    let knowledge = match message.header.state {
        NeighbourState::Permanent | NeighbourState::Noarp => Knowledge::Permanent,
        NeighbourState::Reachable | NeighbourState::Delay | NeighbourState::Probe => {
            Knowledge::Usable
        }
        NeighbourState::Stale => Knowledge::Stale,
        NeighbourState::Incomplete => Knowledge::Incomplete,
        NeighbourState::Failed => Knowledge::Failed,
        _ => return None,
    };
    let (mut address, mut mac) = (None, None);
    for attribute in message.attributes {
        match attribute {
            NeighbourAttribute::Destination(to) => address = ip(&to),
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.try_into().ok().map(MacAddr);
            }
            _ => {}
        }
    }
    let address = address.filter(|address| !address.is_multicast())?;
    Some(Neighbour { link: message.header.ifindex, address, mac, knowledge })
}

fn forwarding(message: NeighbourMessage) -> Option<FdbEntry> {
    let fixed = matches!(message.header.state, NeighbourState::Permanent | NeighbourState::Noarp)
        || message.header.flags.contains(NeighbourFlags::ExtLearned);
    let mut entry = FdbEntry {
        link: message.header.ifindex,
        mac: None,
        bridge: None,
        remote: None,
        port: None,
        vni: None,
        fixed,
    };
    for attribute in message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                entry.mac = bytes.try_into().ok().map(MacAddr);
            }
            NeighbourAttribute::Controller(index) => entry.bridge = Some(index),
            NeighbourAttribute::Destination(to) => entry.remote = ip(&to),
            NeighbourAttribute::Port(port) => entry.port = Some(port),
            NeighbourAttribute::Vni(vni) => entry.vni = Some(vni),
            _ => {}
        }
    }
    entry.mac.is_some().then_some(entry)
}

pub(crate) fn ip(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(address) => Some((*address).into()),
        NeighbourAddress::Inet6(address) => Some((*address).into()),
        // In the bridge's family an address is told by its length.
        NeighbourAddress::Other(bytes) => <[u8; 4]>::try_from(bytes.as_slice())
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from))
            .ok(),
        _ => None,
    }
}
