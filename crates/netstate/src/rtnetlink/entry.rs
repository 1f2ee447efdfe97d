//! Addresses, neighbours and forwarding entries of a namespace, as serializable values.

use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
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
    /// Index of the link with the address.
    pub link: u32,
    /// IPv4 or IPv6 address of the host on that link.
    pub address: IpAddr,
    /// Prefix length, bits.
    pub prefix: u8,
    /// Another host has it, so the kernel does not use it (`IFA_F_DADFAILED`).
    #[serde(default)]
    pub duplicate: bool,
}

/// State of a neighbour entry (`NUD_…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knowledge {
    /// Set by an administrator or control plane, or needs no resolution.
    Permanent,
    /// Answered recently, or is being confirmed.
    Usable,
    /// Answered once, and is still in use.
    Stale,
    /// First resolution is in progress.
    Incomplete,
    /// Did not answer (`NUD_FAILED`).
    Failed,
}

/// A neighbour: the hardware address of an IP address on a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Index of its link.
    pub link: u32,
    /// IPv4 or IPv6 address of the neighbour.
    pub address: IpAddr,
    /// Hardware address, if known.
    #[serde(with = "crate::mac_text")]
    pub mac: Option<MacAddr>,
    /// State of the entry now.
    pub knowledge: Knowledge,
    /// A control plane set it and keeps it (`extern_learn`, `NTF_EXT_LEARNED`).
    #[serde(default)]
    pub external: bool,
    /// It needs no resolution (`nud noarp`), and is not `permanent`.
    #[serde(default)]
    pub noarp: bool,
}

/// A forwarding entry of a bridge or VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdbEntry {
    /// Index of the port, or of the VXLAN device.
    pub link: u32,
    /// Destination address; all zeros: the default.
    #[serde(with = "crate::mac_text")]
    pub mac: Option<MacAddr>,
    /// Index of the entry's bridge; `None`: the device's own entry (`self`).
    pub bridge: Option<u32>,
    /// VTEP that receives frames to this address (VXLAN devices).
    pub remote: Option<IpAddr>,
    /// UDP port of that VTEP, if it differs from the device's.
    pub port: Option<u16>,
    /// VNI for that VTEP, if it differs from the device's.
    pub vni: Option<u32>,
    /// Set by an administrator or control plane rather than learned.
    pub fixed: bool,
    /// A control plane set it and keeps it (`extern_learn`, `NTF_EXT_LEARNED`).
    #[serde(default)]
    pub external: bool,
}

impl Netlink {
    /// Lists all addresses of the namespace.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn addresses(&self) -> Result<Vec<Address>> {
        let mut all = Vec::new();
        self.each_address(|address, _| all.push(address))?;
        Ok(all)
    }

    /// Calls `each` with every address of the namespace, and whether the kernel still checks that no
    /// other host has it (`IFA_F_TENTATIVE`, RFC 4862).
    pub(crate) fn each_address(&self, mut each: impl FnMut(Address, bool)) -> Result<()> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.dump(request, "list", "addresses", |answer| {
            let RouteNetlinkMessage::NewAddress(message) = answer else { return };
            // IPv6 addresses have IFA_LOCAL only on point-to-point links.
            let find = |local: bool| {
                message.attributes.iter().find_map(|attribute| match attribute {
                    AddressAttribute::Local(address) if local => Some(*address),
                    AddressAttribute::Address(address) if !local => Some(*address),
                    _ => None,
                })
            };
            if let Some(address) = find(true).or_else(|| find(false)) {
                let (link, prefix) = (message.header.index, message.header.prefix_len);
                let flags = message.header.flags;
                let duplicate = flags.contains(AddressHeaderFlags::Dadfailed);
                let address = Address { link, address, prefix, duplicate };
                each(address, flags.contains(AddressHeaderFlags::Tentative));
            }
        })
    }

    /// Calls `each` with the neighbours of a family, or with the forwarding entries.
    pub(crate) fn each_neighbour(
        &self,
        family: AddressFamily,
        mut each: impl FnMut(&NeighbourMessage),
    ) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family;
        let object = match family {
            AddressFamily::Bridge => "forwarding entries",
            _ => "neighbours",
        };
        self.dump(RouteNetlinkMessage::GetNeighbour(message), "list", object, |answer| {
            if let RouteNetlinkMessage::NewNeighbour(message) = answer {
                each(&message);
            }
        })
    }

    /// Lists all unicast neighbours of the namespace, IPv4 and IPv6.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>> {
        let mut all = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            self.each_neighbour(family, |message| all.extend(neighbour(message)))?;
        }
        Ok(all)
    }

    /// Lists the addresses for which devices answer neighbour solicitations of IPv6 (`ip -6 neigh
    /// show proxy`), each with the index of the device.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn proxied(&self) -> Result<Vec<(u32, IpAddr)>> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet6;
        message.header.flags = NeighbourFlags::Proxy;
        let mut all = Vec::new();
        let request = RouteNetlinkMessage::GetNeighbour(message);
        self.dump(request, "list", "proxied neighbours", |answer| {
            let RouteNetlinkMessage::NewNeighbour(message) = answer else { return };
            let address = message.attributes.iter().find_map(|attribute| match attribute {
                NeighbourAttribute::Destination(to) => ip(to),
                _ => None,
            });
            all.extend(address.map(|address| (message.header.ifindex, address)));
        })?;
        Ok(all)
    }

    /// Lists all forwarding entries of the namespace's bridges and VXLAN devices.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn fdb(&self) -> Result<Vec<FdbEntry>> {
        let mut all = Vec::new();
        self.each_neighbour(AddressFamily::Bridge, |message| {
            all.extend(forwarding(message).map(|entry| entry.entry));
        })?;
        Ok(all)
    }
}

/// Returns the state of an entry; `None`: no entry, or a state of a newer kernel.
fn knowledge(state: NeighbourState) -> Option<Knowledge> {
    match state {
        NeighbourState::Permanent | NeighbourState::Noarp => Some(Knowledge::Permanent),
        NeighbourState::Reachable | NeighbourState::Delay | NeighbourState::Probe => {
            Some(Knowledge::Usable)
        }
        NeighbourState::Stale => Some(Knowledge::Stale),
        NeighbourState::Incomplete => Some(Knowledge::Incomplete),
        NeighbourState::Failed => Some(Knowledge::Failed),
        _ => None,
    }
}

/// Returns the addresses of a unicast neighbour.
fn addresses(message: &NeighbourMessage) -> Option<(IpAddr, Option<MacAddr>)> {
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(to) => address = ip(to),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = hardware_address(bytes),
            _ => {}
        }
    }
    // Entries of groups are computed, not resolved.
    Some((address.filter(|address| !address.is_multicast())?, mac))
}

fn neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    let (address, mac) = addresses(message)?;
    let knowledge = knowledge(message.header.state)?;
    let external = message.header.flags.contains(NeighbourFlags::ExtLearned);
    let noarp = message.header.state == NeighbourState::Noarp;
    Some(Neighbour { link: message.header.ifindex, address, mac, knowledge, external, noarp })
}

/// Returns link, address and, if the kernel sends to the neighbour, its hardware address.
pub(crate) fn next_hop(message: &NeighbourMessage) -> Option<(u32, IpAddr, Option<MacAddr>)> {
    use Knowledge::{Permanent, Stale, Usable};
    let (address, mac) = addresses(message)?;
    let valid = matches!(knowledge(message.header.state), Some(Permanent | Usable | Stale));
    Some((message.header.ifindex, address, mac.filter(|_| valid)))
}

pub(crate) fn hardware_address(bytes: &[u8]) -> Option<MacAddr> {
    bytes.try_into().ok().map(MacAddr)
}

/// Bits of `ndm_state` (linux/neighbour.h).
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;

/// A forwarding entry with properties that only the fast path checks.
pub(crate) struct Forwarding {
    pub(crate) entry: FdbEntry,
    /// Destination address.
    pub(crate) mac: MacAddr,
    /// The entry belongs to a VLAN.
    pub(crate) vlan: bool,
    /// The address belongs to the port or the bridge itself.
    pub(crate) own: bool,
    /// Index of the output link, if it differs from the tunnel's (`NDA_IFINDEX`).
    pub(crate) output: Option<u32>,
}

pub(crate) fn forwarding(message: &NeighbourMessage) -> Option<Forwarding> {
    // `bridge fdb … permanent` sets both bits.
    const FIXED: u16 = NUD_PERMANENT | NUD_NOARP;
    let external = message.header.flags.contains(NeighbourFlags::ExtLearned);
    let fixed = u16::from(message.header.state) & FIXED != 0 || external;
    let mut entry = FdbEntry {
        link: message.header.ifindex,
        mac: None,
        bridge: None,
        remote: None,
        port: None,
        vni: None,
        fixed,
        external,
    };
    let (mut vlan, mut output) = (false, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => entry.mac = hardware_address(bytes),
            NeighbourAttribute::Controller(index) => entry.bridge = Some(*index),
            NeighbourAttribute::Destination(to) => entry.remote = ip(to),
            NeighbourAttribute::Port(port) => entry.port = Some(*port),
            NeighbourAttribute::Vni(vni) => entry.vni = Some(*vni),
            NeighbourAttribute::Vlan(id) => vlan = *id != 0,
            NeighbourAttribute::IfIndex(index) => output = Some(*index),
            _ => {}
        }
    }
    let own = message.header.state == NeighbourState::Permanent;
    // An entry without a hardware address forwards nothing.
    Some(Forwarding { mac: entry.mac?, entry, vlan, own, output })
}

pub(crate) fn ip(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(address) => Some((*address).into()),
        NeighbourAddress::Inet6(address) => Some((*address).into()),
        // In the bridge family, the length of the address determines its family.
        NeighbourAddress::Other(bytes) => <[u8; 4]>::try_from(bytes.as_slice())
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from))
            .ok(),
        _ => None,
    }
}
