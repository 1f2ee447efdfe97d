//! A snapshot of a namespace: bridges, VXLAN devices, their forwarding state, and other objects
//! that may affect their packets.

mod address_type;
mod attribute;
mod entry;
mod lookup;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, InfoData, InfoMacVlan, InfoMacVtap, InfoPortData, LinkAttribute,
    LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp, XdpAttached,
};
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::tc::{TcAttribute, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use packet::ethernet::MacAddr;

pub use address_type::AddressTypes;
use attribute::{bridge, macvlan, port, vxlan};
pub use entry::{Change, EntryChange, Table};
pub use lookup::{Found, Query};

use crate::netlink::{Netlink, Result};

/// Forwarding state of nearly one moment: the kernel has no lock over all of it, so a reader must
/// watch for changes meanwhile.
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
    /// Addresses of this namespace, except IPv6 addresses not yet known to be unique (RFC 4862).
    pub addresses: Vec<IpAddr>,
    /// Types of addresses in the routing tables.
    pub address_types: AddressTypes,
    /// IPv4 routing rules beyond the three default rules, described.
    pub rules: Vec<String>,
    /// Routes that are more than a single next hop: network, prefix length, reason.
    pub unsupported_routes: Vec<(IpAddr, u8, &'static str)>,
    /// IPv6 routing rules beyond the two default rules, described.
    pub rules6: Vec<String>,
    /// Links with a route that sets an MTU.
    pub route_mtus: BTreeSet<u32>,
    /// Links with an ingress or clsact qdisc, to which tc filters attach.
    pub filtered: BTreeMap<u32, String>,
}

/// The properties of a link that affect forwarding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Name of the device, `IFLA_IFNAME`.
    pub name: String,
    /// Kind (`veth`, `bridge`, `vxlan` …).
    pub kind: Option<String>,
    /// Whether its frames have Ethernet headers (`ARPHRD_ETHER`).
    pub ethernet: bool,
    /// Hardware address; `None` unless it has 6 bytes.
    pub mac: Option<MacAddr>,
    /// Layer-3 MTU, bytes.
    pub mtu: u32,
    /// `IFF_UP` and ready to carry packets.
    pub running: bool,
    /// Index of its master (`IFLA_MASTER`): a bridge, bond or VRF.
    pub master: Option<u32>,
    /// Index of the related link: the veth peer, or the link below a VXLAN device.
    pub link: Option<u32>,
    /// Id of the namespace of `link` in this namespace; none: the same namespace.
    pub link_netns: Option<u32>,
    /// Kind of the root queueing discipline (`IFLA_QDISC`).
    pub qdisc: Option<String>,
    /// Size from which GSO packets are segmented before the device gets them (`IFLA_GSO_MAX_SIZE`).
    pub gso_max_size: u32,
    /// The same for IPv4 (`IFLA_GSO_IPV4_MAX_SIZE`, Linux 6.3).
    pub gso_ipv4_max_size: u32,
    /// An XDP program is attached.
    pub xdp: bool,
    /// It is attached in generic mode, which skips redirected packets.
    pub xdp_generic: bool,
    /// Mode of a macvlan or macvtap device, by its name in `ip link`.
    pub macvlan: Option<&'static str>,
    /// Number of users that want all frames (`IFLA_PROMISCUITY`), with the administrator.
    pub promiscuity: u32,
    /// The administrator wants all frames (`IFF_PROMISC`).
    pub promiscuous: bool,
    /// Alias, `IFLA_IFALIAS`.
    pub alias: Option<String>,
    /// IPv6 settings, unless IPv6 is disabled.
    pub ipv6: Option<Ipv6Settings>,
    /// `None` unless it is a VXLAN device.
    pub vxlan: Option<VxlanDevice>,
    /// `None` unless it is a bridge.
    pub bridge: Option<BridgeDevice>,
    /// Port attributes; `None` unless it is a bridge port.
    pub port: Option<BridgePort>,
}

/// IPv6 settings of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Settings {
    /// `net.ipv6.conf.*.mtu`, bytes: MTU of its routes that set none.
    pub mtu: u32,
    /// `net.ipv6.conf.*.hop_limit`: hop limit of its routes that set none.
    pub hop_limit: u8,
}

/// Attributes of a VXLAN device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VxlanDevice {
    /// VXLAN network identifier, 24 bits (`IFLA_VXLAN_ID`).
    pub vni: u32,
    /// Local address on the underlay.
    pub local: Option<IpAddr>,
    /// The underlay is IPv6, and so are all remote VTEPs.
    pub ipv6: bool,
    /// Underlay link to which it is bound.
    pub link: Option<u32>,
    /// UDP destination port (`IFLA_VXLAN_PORT`), in host byte order.
    pub port: u16,
    /// Source port range; (0, 0): the namespace's local ports.
    pub source_ports: (u16, u16),
    /// Time to live; 0: the route's.
    pub ttl: u8,
    /// Type of service; 1: inherited from the inner packet.
    pub tos: u8,
    /// Outer don't-fragment flag of IPv4; `None`: inherited from the inner packet.
    pub df: Option<bool>,
    /// Learns addresses from received packets.
    pub learning: bool,
    /// Lifetime of learned entries, s.
    pub ageing: u32,
    /// Sends outer checksums, for the family of its underlay.
    pub checksum: bool,
    /// Accepts IPv6 packets without an outer checksum.
    pub takes_zero_checksum: bool,
    /// Flow label of outer IPv6 headers.
    pub label: u32,
    /// Answers for known neighbours (`proxy`).
    pub proxy: bool,
    /// Options that change packets or their destination, by their names in `ip link`.
    pub options: Vec<&'static str>,
    /// Unknown attributes (`IFLA_VXLAN_*`).
    pub unknown: Vec<u16>,
}

/// Settings of a bridge (`IFLA_BR_*`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgeDevice {
    /// VLAN filtering is on (`IFLA_BR_VLAN_FILTERING`).
    pub vlan_filtering: bool,
    /// Passes bridged frames to iptables (`nf_call_iptables` and similar), whatever the namespace's
    /// sysctls are.
    pub calls_filters: bool,
    /// Lifetime of learned entries, 1/100 s.
    pub ageing: u32,
    /// Options that change the destination of packets, by their names in `ip link`.
    pub options: Vec<&'static str>,
    /// Unknown attributes (`IFLA_BR_*`).
    pub unknown: Vec<u16>,
}

/// Attributes of a bridge port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgePort {
    /// Spanning tree has put it into the forwarding state.
    pub forwarding: bool,
    /// The bridge answers for neighbours behind it (`IFLA_BRPORT_NEIGH_SUPPRESS`).
    pub neigh_suppress: bool,
    /// Options that change the destination of packets, by their names in `bridge link`.
    pub options: Vec<&'static str>,
    /// Unknown attributes (`IFLA_BRPORT_*`).
    pub unknown: Vec<u16>,
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
        self.entries(AddressFamily::Bridge, |message| all.forwarding(&message))?;
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            self.entries(family, |message| all.neighbour(&message))?;
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

    /// Returns a link of the namespace with id `netns` in this one.
    ///
    /// # Errors
    /// `ENODEV`, and `EINVAL` if there is no such id.
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
    /// Swaps the entries that [`Netlink::overlay_but_entries`] leaves out.
    pub fn swap_entries(&mut self, other: &mut Overlay) {
        std::mem::swap(&mut self.bridge_fdb, &mut other.bridge_fdb);
        std::mem::swap(&mut self.vxlan_fdb, &mut other.vxlan_fdb);
        std::mem::swap(&mut self.neighbours, &mut other.neighbours);
    }
}

/// Returns an address of the host that is usable now.
fn own(message: &AddressMessage) -> Option<IpAddr> {
    let unsure = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    // Another host may have the address.
    if message.header.flags.intersects(unsure) {
        return None;
    }
    let (mut local, mut address) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(own) => local = Some(*own),
            // IPv6 addresses without a peer.
            AddressAttribute::Address(own @ IpAddr::V6(_)) => address = Some(*own),
            _ => {}
        }
    }
    local.or(address)
}

fn device(message: LinkMessage) -> Device {
    let flags = message.header.flags;
    let mut device = Device {
        ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        running: flags.contains(LinkFlags::Up) && flags.contains(LinkFlags::LowerUp),
        promiscuous: flags.contains(LinkFlags::Promisc),
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
            LinkAttribute::GsoMaxSize(size) => device.gso_max_size = size,
            LinkAttribute::GsoIpv4MaxSize(size) => device.gso_ipv4_max_size = size,
            LinkAttribute::IfAlias(alias) => device.alias = Some(alias),
            LinkAttribute::Promiscuity(users) => device.promiscuity = users,
            LinkAttribute::Xdp(attributes) => {
                for attribute in attributes {
                    let LinkXdp::Attached(how) = attribute else { continue };
                    device.xdp |= how != XdpAttached::None;
                    // Unknown modes may be generic, too.
                    let is_other = [XdpAttached::None, XdpAttached::Driver, XdpAttached::Hardware];
                    device.xdp_generic |= !is_other.contains(&how);
                }
            }
            LinkAttribute::AfSpecUnspec(families) => device.ipv6 = ipv6(&families),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => device.kind = Some(kind.to_string()),
                        LinkInfo::Data(InfoData::Vxlan(data)) => device.vxlan = Some(vxlan(data)),
                        LinkInfo::Data(InfoData::MacVlan(data)) => {
                            device.macvlan = Some(macvlan(data.iter().find_map(|a| match a {
                                InfoMacVlan::Mode(mode) => Some(*mode),
                                _ => None,
                            })));
                        }
                        LinkInfo::Data(InfoData::MacVtap(data)) => {
                            device.macvlan = Some(macvlan(data.iter().find_map(|a| match a {
                                InfoMacVtap::Mode(mode) => Some(*mode),
                                _ => None,
                            })));
                        }
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
        // Without IPv6, the settings have no effect.
        AfSpecInet6::DevConf(conf) if conf.disable_ipv6 == 0 => Some(Ipv6Settings {
            mtu: conf.mtu6.try_into().ok()?,
            hop_limit: conf.hoplimit.try_into().ok()?,
        }),
        _ => None,
    })
}
