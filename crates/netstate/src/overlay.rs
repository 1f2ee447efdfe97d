//! Bridges, VXLAN devices, what forwards for them and what might interfere, as
//! one snapshot of a namespace.

mod attribute;
mod entry;
mod way;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, InfoData, InfoPortData, LinkAttribute, LinkFlags, LinkInfo,
    LinkLayerType, LinkMessage, LinkXdp, XdpAttached,
};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourMessage};
use netlink_packet_route::tc::{TcAttribute, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use packet::ethernet::MacAddr;

use attribute::{bridge, port, vxlan};
pub use entry::{Change, EntryChange, Table};
pub use way::{Found, Query};

use crate::netlink::{Netlink, Result};

/// Everything at one moment, or nearly: the kernel has no lock over all of it,
/// so a reader watches for changes meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overlay {
    /// Links of the namespace, by interface index.
    pub links: BTreeMap<u32, Device>,
    /// Bridges' forwarding entries: (bridge, address) to port.
    pub bridge_fdb: BTreeMap<(u32, MacAddr), BridgeEntry>,
    /// VXLAN devices' forwarding entries: (device, address) to destinations.
    pub vxlan_fdb: BTreeMap<(u32, MacAddr), Vec<VxlanEntry>>,
    /// Usable neighbours: (link, address).
    pub neighbours: BTreeMap<(u32, IpAddr), MacAddr>,
    /// Addresses of this namespace, but those of IPv6 that may be another's (RFC 4862).
    pub addresses: Vec<IpAddr>,
    /// Routing rules beyond the three every namespace has, described.
    pub rules: Vec<String>,
    /// Routes that no single next hop tells: network, prefix length, why.
    pub odd_routes: Vec<(IpAddr, u8, &'static str)>,
    /// Rules of IPv6 beyond the two every namespace has, described.
    pub rules6: Vec<String>,
    /// Links with a route that has an MTU of its own.
    pub route_mtus: BTreeSet<u32>,
    /// Links with an ingress or clsact qdisc, on which tc filters hang.
    pub filtered: BTreeMap<u32, String>,
}

/// A link, as far as forwarding goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Name of the device, `IFLA_IFNAME`.
    pub name: String,
    /// Kind (`veth`, `bridge`, `vxlan` …).
    pub kind: Option<String>,
    /// Whether its frames have Ethernet headers (`ARPHRD_ETHER`).
    pub ethernet: bool,
    /// Hardware address; `None` for a device without one of 6 bytes.
    pub mac: Option<MacAddr>,
    /// Layer-3 MTU, bytes.
    pub mtu: u32,
    /// `IFF_UP` and ready to carry packets.
    pub running: bool,
    /// Index of the device that it is a port of (`IFLA_MASTER`): a bridge, bond or VRF.
    pub master: Option<u32>,
    /// The link that belongs to it: a veth's peer, what a VXLAN device is on.
    pub link: Option<u32>,
    /// Namespace of `link`, as this one numbers it; none: here.
    pub link_netns: Option<u32>,
    /// Kind of the root queueing discipline (`IFLA_QDISC`).
    pub qdisc: Option<String>,
    /// An XDP program is attached.
    pub xdp: bool,
    /// What its owner calls it, `IFLA_IFALIAS`.
    pub alias: Option<String>,
    /// What it does with IPv6, where that is not disabled.
    pub ipv6: Option<Ipv6Settings>,
    /// `None` for devices that are no VXLAN devices.
    pub vxlan: Option<VxlanDevice>,
    /// `None` for devices that are no bridges.
    pub bridge: Option<BridgeDevice>,
    /// As a port of a bridge: `None` where it is none.
    pub port: Option<BridgePort>,
}

/// A link's settings of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Settings {
    /// `net.ipv6.conf.*.mtu`: of its routes that have none of their own, bytes.
    pub mtu: u32,
    /// `net.ipv6.conf.*.hop_limit`: of its routes that have none of their own.
    pub hop_limit: u8,
}

/// A VXLAN device's attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VxlanDevice {
    /// VXLAN network identifier, 24 bits (`IFLA_VXLAN_ID`).
    pub vni: u32,
    /// Own address on the underlay.
    pub local: Option<IpAddr>,
    /// Its underlay is IPv6; so are all its remote VTEPs.
    pub ipv6: bool,
    /// Link of the underlay that it is bound to.
    pub link: Option<u32>,
    /// UDP destination port (`IFLA_VXLAN_PORT`), in host byte order.
    pub port: u16,
    /// Source ports; (0, 0): the namespace's local ports.
    pub source_ports: (u16, u16),
    /// Time to live; 0: the route's.
    pub ttl: u8,
    /// Type of service; 1: the inner packet's.
    pub tos: u8,
    /// Outer don't-fragment flag of IPv4 set; `None`: as the inner packet has it.
    pub df: Option<bool>,
    /// Learns from what it receives.
    pub learning: bool,
    /// Time after which learned entries go, s.
    pub ageing: u32,
    /// Sends outer checksums, over whichever family its underlay is.
    pub checksum: bool,
    /// Takes datagrams over IPv6 without an outer checksum.
    pub takes_zero_checksum: bool,
    /// Flow label of outer IPv6 headers.
    pub label: u32,
    /// Answers for neighbours that it knows (`proxy`).
    pub proxy: bool,
    /// Options that change what packets look like or where they go, by their
    /// names in `ip link`.
    pub options: Vec<&'static str>,
    /// Attributes (`IFLA_VXLAN_*`) that are not known here.
    pub unknown: Vec<u16>,
}

/// Settings of a bridge (`IFLA_BR_*`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgeDevice {
    /// It forwards by VLAN (`IFLA_BR_VLAN_FILTERING`).
    pub vlan_filtering: bool,
    /// Its frames are handed to iptables (`nf_call_iptables` and the like), whatever the
    /// namespace's sysctls say.
    pub calls_filters: bool,
    /// Time after which learned entries go, 1/100 s.
    pub ageing: u32,
    /// Options that change where packets go, by their names in `ip link`.
    pub options: Vec<&'static str>,
    /// Attributes (`IFLA_BR_*`) that are not known here.
    pub unknown: Vec<u16>,
}

/// A bridge port's attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgePort {
    /// Spanning tree lets it forward.
    pub forwarding: bool,
    /// The bridge answers for neighbours behind it (`IFLA_BRPORT_NEIGH_SUPPRESS`).
    pub neigh_suppress: bool,
    /// Options that change where packets go, by their names in `bridge link`.
    pub options: Vec<&'static str>,
    /// Attributes (`IFLA_BRPORT_*`) that are not known here.
    pub unknown: Vec<u16>,
}

/// A bridge's forwarding entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeEntry {
    /// Index of the port behind which the address is.
    pub port: u32,
    /// The address is the port's or bridge's own.
    pub own: bool,
}

/// A VXLAN device's forwarding entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanEntry {
    /// Remote VTEP; `None`: by a next hop group.
    pub remote: Option<IpAddr>,
    /// Where it is not the device's: UDP port.
    pub port: Option<u16>,
    /// VNI to send with, where it is not the device's (`NDA_VNI`).
    pub vni: Option<u32>,
    /// Index of the device to send by, where it is not the tunnel's (`NDA_IFINDEX`).
    pub link: Option<u32>,
}

impl Netlink {
    /// Reads the snapshot.
    ///
    /// # Errors
    /// When the kernel refuses a dump.
    pub fn overlay(&self) -> Result<Overlay> {
        let mut all = self.overlay_but_entries()?;
        self.entries(AddressFamily::Bridge, |message| all.forwarding(&message))?;
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            self.entries(family, |message| all.neighbour(&message))?;
        }
        Ok(all)
    }

    /// Reads the snapshot without forwarding entries and neighbours, of which there may
    /// be many and of each of which the kernel tells.
    ///
    /// # Errors
    /// When the kernel refuses a dump.
    pub fn overlay_but_entries(&self) -> Result<Overlay> {
        let mut all = Overlay::default();
        let links = RouteNetlinkMessage::GetLink(LinkMessage::default());
        self.dump(links, "list", "links", |answer| {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                all.links.insert(message.header.index, device(message));
            }
        })?;
        let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.dump(addresses, "list", "addresses", |answer| {
            if let RouteNetlinkMessage::NewAddress(message) = answer {
                all.addresses.extend(own(&message));
            }
        })?;
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            self.routing(family, &mut all)?;
        }
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

    fn entries(&self, family: AddressFamily, mut each: impl FnMut(NeighbourMessage)) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family;
        let request = RouteNetlinkMessage::GetNeighbour(message);
        self.dump(request, "list", "neighbours", |answer| {
            if let RouteNetlinkMessage::NewNeighbour(message) = answer {
                each(message);
            }
        })
    }

    /// A link in a namespace that this one has given the number `netns`.
    ///
    /// # Errors
    /// `ENODEV`, and `EINVAL` when there is no such number.
    pub fn device_in(&self, netns: u32, index: u32) -> Result<Option<Device>> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::IfNetnsId(netns.cast_signed()));
        let object = format!("{index} of namespace id {netns}");
        let mut found = None;
        self.get(RouteNetlinkMessage::GetLink(message), "find link", &object, |answer| {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                found = Some(device(message));
            }
        })?;
        Ok(found)
    }
}

impl Overlay {
    /// Exchanges what [`Netlink::overlay_but_entries`] leaves out.
    pub fn swap_entries(&mut self, other: &mut Overlay) {
        std::mem::swap(&mut self.bridge_fdb, &mut other.bridge_fdb);
        std::mem::swap(&mut self.vxlan_fdb, &mut other.vxlan_fdb);
        std::mem::swap(&mut self.neighbours, &mut other.neighbours);
    }
}

/// An address by which the host can be reached now.
fn own(message: &AddressMessage) -> Option<IpAddr> {
    let unsure = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    if message.header.flags.intersects(unsure) {
        return None;
    }
    let (mut local, mut address) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(own) => local = Some(*own),
            // IPv6's, where there is no other end.
            AddressAttribute::Address(own @ IpAddr::V6(_)) => address = Some(*own),
            _ => {}
        }
    }
    local.or(address)
}

/// A neighbour's or a remote VTEP's address.
fn remote(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(address) => Some((*address).into()),
        NeighbourAddress::Inet6(address) => Some((*address).into()),
        // Of a bridge's family the address is told by its length.
        NeighbourAddress::Other(bytes) => {
            let four =
                <[u8; 4]>::try_from(bytes.as_slice()).map(|four| Ipv4Addr::from(four).into());
            let six =
                || <[u8; 16]>::try_from(bytes.as_slice()).map(|six| Ipv6Addr::from(six).into());
            four.or_else(|_| six()).ok()
        }
        _ => None,
    }
}

fn device(message: LinkMessage) -> Device {
    let flags = message.header.flags;
    let mut device = Device {
        ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        running: flags.contains(LinkFlags::Up) && flags.contains(LinkFlags::LowerUp),
        ..Device::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name = name,
            LinkAttribute::Address(mac) => device.mac = mac.try_into().ok().map(MacAddr),
            LinkAttribute::Mtu(mtu) => device.mtu = mtu,
            LinkAttribute::Controller(index) => device.master = Some(index),
            LinkAttribute::Link(index) => device.link = Some(index),
            LinkAttribute::LinkNetNsId(id) => device.link_netns = u32::try_from(id).ok(),
            LinkAttribute::Qdisc(qdisc) => device.qdisc = Some(qdisc),
            LinkAttribute::IfAlias(alias) => device.alias = Some(alias),
            LinkAttribute::Xdp(attributes) => {
                device.xdp = attributes.iter().any(|attribute| {
                    matches!(attribute, LinkXdp::Attached(how) if *how != XdpAttached::None)
                });
            }
            LinkAttribute::AfSpecUnspec(families) => device.ipv6 = ipv6(&families),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => device.kind = Some(kind.to_string()),
                        LinkInfo::Data(InfoData::Vxlan(data)) => device.vxlan = Some(vxlan(data)),
                        LinkInfo::Data(InfoData::Bridge(data)) => {
                            device.bridge = Some(bridge(&data));
                        }
                        LinkInfo::PortData(InfoPortData::BridgePort(data)) => {
                            device.port = Some(port(&data));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    device
}

fn ipv6(families: &[AfSpecUnspec]) -> Option<Ipv6Settings> {
    let settings = families.iter().find_map(|family| match family {
        AfSpecUnspec::Inet6(settings) => Some(settings),
        _ => None,
    })?;
    settings.iter().find_map(|setting| match setting {
        AfSpecInet6::DevConf(conf) if conf.disable_ipv6 == 0 => Some(Ipv6Settings {
            mtu: conf.mtu6.try_into().ok()?,
            hop_limit: conf.hoplimit.try_into().ok()?,
        }),
        _ => None,
    })
}
