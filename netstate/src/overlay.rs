//! Bridges, VXLAN devices, what forwards for them and what might interfere, as
//! one snapshot of a namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    BridgePortState, InfoBridge, InfoBridgePort, InfoData, InfoPortData, InfoVxlan, LinkAttribute,
    LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp, VxlanDf, XdpAttached,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::rule::{RuleAttribute, RuleMessage};
use netlink_packet_route::tc::{TcAttribute, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use packet::ethernet::MacAddr;

use crate::netlink::{Netlink, Result};

/// Everything at one moment, or nearly: the kernel has no lock over all of it,
/// so a reader watches for changes meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overlay {
    /// Links by index.
    pub links: BTreeMap<u32, Device>,
    /// Bridges' forwarding entries: (bridge, address) to port.
    pub bridge_fdb: BTreeMap<(u32, MacAddr), BridgeEntry>,
    /// VXLAN devices' forwarding entries: (device, address) to destinations.
    pub vxlan_fdb: BTreeMap<(u32, MacAddr), Vec<VxlanEntry>>,
    /// Usable IPv4 neighbours: (link, address).
    pub neighbours: BTreeMap<(u32, Ipv4Addr), MacAddr>,
    /// IPv4 addresses of this namespace.
    pub addresses: Vec<Ipv4Addr>,
    /// Routing rules beyond the three every namespace has, described.
    pub rules: Vec<String>,
    /// IPv4 routes that no single next hop tells: network, prefix length, why.
    pub odd_routes: Vec<(Ipv4Addr, u8, &'static str)>,
    /// Rules of IPv6 beyond the two every namespace has, described.
    pub rules6: Vec<String>,
    /// Why there are IPv6 routes that no single next hop tells.
    pub odd_routes6: BTreeSet<&'static str>,
    /// Links with a route that has an MTU of its own.
    pub route_mtus: BTreeSet<u32>,
    /// Links with an ingress or clsact qdisc, on which tc filters hang.
    pub filtered: BTreeMap<u32, String>,
}

/// A link, as far as forwarding goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Name.
    pub name: String,
    /// Kind (`veth`, `bridge`, `vxlan` …).
    pub kind: Option<String>,
    /// Has Ethernet headers.
    pub ethernet: bool,
    /// Address.
    pub mac: Option<MacAddr>,
    /// Layer-3 MTU, bytes.
    pub mtu: u32,
    /// `IFF_UP` and ready to carry packets.
    pub running: bool,
    /// Controller.
    pub master: Option<u32>,
    /// The link that belongs to it: a veth's peer, what a VXLAN device is on.
    pub link: Option<u32>,
    /// Namespace of `link`, as this one numbers it; none: here.
    pub link_netns: Option<u32>,
    /// Root queueing discipline.
    pub qdisc: Option<String>,
    /// An XDP program is attached.
    pub xdp: bool,
    /// Alias.
    pub alias: Option<String>,
    /// VXLAN attributes.
    pub vxlan: Option<VxlanDevice>,
    /// Bridge attributes.
    pub bridge: Option<BridgeDevice>,
    /// As a port of a bridge: `None` where it is none.
    pub port: Option<BridgePort>,
}

/// A VXLAN device's attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VxlanDevice {
    /// VXLAN network identifier.
    pub vni: u32,
    /// Own IPv4 address on the underlay.
    pub local: Option<Ipv4Addr>,
    /// Its underlay is IPv6.
    pub ipv6: bool,
    /// Link of the underlay that it is bound to.
    pub link: Option<u32>,
    /// UDP port.
    pub port: u16,
    /// Source ports; (0, 0): the namespace's local ports.
    pub source_ports: (u16, u16),
    /// Time to live; 0: the route's.
    pub ttl: u8,
    /// Type of service; 1: the inner packet's.
    pub tos: u8,
    /// Outer don't-fragment flag set; `None`: as the inner packet has it.
    pub df: Option<bool>,
    /// Learns from what it receives.
    pub learning: bool,
    /// Time after which learned entries go, s.
    pub ageing: u32,
    /// Sends outer checksums.
    pub checksum: bool,
    /// Answers for neighbours that it knows (`proxy`).
    pub proxy: bool,
    /// Options that change what packets look like or where they go, by their
    /// names in `ip link`.
    pub options: Vec<&'static str>,
}

/// A bridge's attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgeDevice {
    /// VLAN filtering.
    pub vlan_filtering: bool,
    /// Its frames are handed to iptables (`nf_call_iptables` and the like), whatever the
    /// namespace's sysctls say.
    pub calls_filters: bool,
    /// Time after which learned entries go, 1/100 s.
    pub ageing: u32,
}

/// A bridge port's attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgePort {
    /// Spanning tree lets it forward.
    pub forwarding: bool,
    /// Options that change where packets go, by their names in `bridge link`.
    pub options: Vec<&'static str>,
}

/// A bridge's forwarding entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeEntry {
    /// Port.
    pub port: u32,
    /// The address is the port's or bridge's own.
    pub own: bool,
}

/// A VXLAN device's forwarding entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanEntry {
    /// Remote VTEP; `None`: over IPv6, or by a next hop group.
    pub remote: Option<Ipv4Addr>,
    /// Where it is not the device's: UDP port.
    pub port: Option<u16>,
    /// VNI.
    pub vni: Option<u32>,
    /// Link.
    pub link: Option<u32>,
}

/// What a route look-up answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Link to leave by.
    pub link: u32,
    /// Next hop, where it is not the destination.
    pub via: Option<Ipv4Addr>,
    /// Source address that the kernel prefers.
    pub source: Option<Ipv4Addr>,
    /// MTU of the route or path, bytes.
    pub mtu: Option<u32>,
    /// Hop limit of the route.
    pub ttl: Option<u8>,
}

impl Netlink {
    /// Reads the snapshot.
    ///
    /// # Errors
    /// When the kernel refuses a dump.
    pub fn overlay(&self) -> Result<Overlay> {
        let mut all = Overlay::default();
        let links = RouteNetlinkMessage::GetLink(LinkMessage::default());
        self.dump(links, "list", "links", |answer| {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                all.links.insert(message.header.index, device(message));
            }
        })?;
        self.entries(AddressFamily::Bridge, |message| all.forwarding(message))?;
        self.entries(AddressFamily::Inet, |message| all.neighbour(message))?;
        let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.dump(addresses, "list", "addresses", |answer| {
            if let RouteNetlinkMessage::NewAddress(message) = answer {
                all.addresses.extend(message.attributes.iter().find_map(|a| match a {
                    AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
                    _ => None,
                }));
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

    /// Rules and routes, as far as they are unusual.
    fn routing(&self, family: AddressFamily, all: &mut Overlay) -> Result<()> {
        let four = family == AddressFamily::Inet;
        let mut rules = RuleMessage::default();
        rules.header.family = family;
        self.dump(RouteNetlinkMessage::GetRule(rules), "list", "rules", |answer| {
            if let RouteNetlinkMessage::NewRule(rule) = answer {
                if four { &mut all.rules } else { &mut all.rules6 }.extend(unusual(&rule));
            }
        })?;
        let mut routes = RouteMessage::default();
        routes.header.address_family = family;
        self.dump(RouteNetlinkMessage::GetRoute(routes), "list", "routes", |answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else { return };
            all.route_mtus.extend(has_mtu(&route));
            let Some((network, length, why)) = odd(&route) else { return };
            if four {
                all.odd_routes.push((network, length, why));
            } else {
                all.odd_routes6.insert(why);
            }
        })
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

    /// Asks the kernel for the way to an address: `None` where it is not unicast
    /// or there is none.
    ///
    /// # Errors
    /// When the kernel refuses for another reason.
    pub fn route_to(
        &self,
        to: Ipv4Addr,
        from: Option<Ipv4Addr>,
        link: Option<u32>,
    ) -> Result<Option<Found>> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = 32;
        message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(to)));
        if let Some(from) = from {
            message.header.source_prefix_length = 32;
            message.attributes.push(RouteAttribute::Source(RouteAddress::Inet(from)));
        }
        message.attributes.extend(link.map(RouteAttribute::Oif));
        let mut found = None;
        let request = RouteNetlinkMessage::GetRoute(message);
        let answer = self.get(request, "find route to", &to.to_string(), |answer| {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                found = way(route);
            }
        });
        match answer {
            Ok(()) => Ok(found),
            Err(error) => match error.errno() {
                Some(
                    nix::errno::Errno::ENETUNREACH
                    | nix::errno::Errno::EHOSTUNREACH
                    | nix::errno::Errno::EINVAL
                    | nix::errno::Errno::ENODEV
                    | nix::errno::Errno::EACCES,
                ) => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl Overlay {
    fn forwarding(&mut self, message: NeighbourMessage) {
        let (mut mac, mut bridge, mut vlan, mut has_destination) = (None, None, false, false);
        let mut entry = VxlanEntry { remote: None, port: None, vni: None, link: None };
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::LinkLayerAddress(bytes) => {
                    mac = bytes.as_slice().try_into().ok().map(MacAddr);
                }
                NeighbourAttribute::Controller(index) => bridge = Some(*index),
                NeighbourAttribute::Vlan(id) => vlan = *id != 0,
                NeighbourAttribute::Destination(address) => {
                    has_destination = true;
                    entry.remote = match address {
                        NeighbourAddress::Inet(address) => Some(*address),
                        NeighbourAddress::Other(bytes) => {
                            // In this family the address is told by its length.
                            <[u8; 4]>::try_from(bytes.as_slice()).ok().map(Ipv4Addr::from)
                        }
                        _ => None,
                    };
                }
                NeighbourAttribute::Port(port) => entry.port = Some(*port),
                NeighbourAttribute::Vni(vni) => entry.vni = Some(*vni),
                NeighbourAttribute::IfIndex(index) => entry.link = Some(*index),
                _ => {}
            }
        }
        let (Some(mac), index) = (mac, message.header.ifindex) else { return };
        let is_vxlan = self.links.get(&index).is_some_and(|link| link.vxlan.is_some());
        match bridge {
            // One of a VLAN is not asked where VLANs are not filtered.
            Some(bridge) if !vlan => {
                let own = message.header.state == NeighbourState::Permanent;
                self.bridge_fdb.insert((bridge, mac), BridgeEntry { port: index, own });
            }
            None if is_vxlan || has_destination => {
                self.vxlan_fdb.entry((index, mac)).or_default().push(entry);
            }
            _ => {}
        }
    }

    fn neighbour(&mut self, message: NeighbourMessage) {
        use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
        // NUD_VALID: the kernel sends to the address in these.
        if ![Permanent, Noarp, Reachable, Probe, Stale, Delay].contains(&message.header.state) {
            return;
        }
        let (mut address, mut mac) = (None, None);
        for attribute in message.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(to)) => address = Some(to),
                NeighbourAttribute::LinkLayerAddress(bytes) => {
                    mac = bytes.try_into().ok().map(MacAddr);
                }
                _ => {}
            }
        }
        if let (Some(address), Some(mac)) = (address, mac) {
            self.neighbours.insert((message.header.ifindex, address), mac);
        }
    }
}

fn way(route: RouteMessage) -> Option<Found> {
    if route.header.kind != RouteType::Unicast {
        return None;
    }
    let mut found = Found { link: 0, via: None, source: None, mtu: None, ttl: None };
    for attribute in route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => found.link = index,
            RouteAttribute::Gateway(RouteAddress::Inet(via)) => found.via = Some(via),
            RouteAttribute::PrefSource(RouteAddress::Inet(source)) => found.source = Some(source),
            // An IPv4 destination by way of an IPv6 neighbour (RFC 5549).
            RouteAttribute::Via(_) => return None,
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    match metric {
                        RouteMetric::Mtu(mtu) => found.mtu = Some(mtu),
                        RouteMetric::Hoplimit(ttl) => found.ttl = u8::try_from(ttl).ok(),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (found.link != 0).then_some(found)
}

/// A rule that is none of the three of a new namespace (`fib_default_rules_init`).
fn unusual(rule: &RuleMessage) -> Option<String> {
    let (mut priority, mut table) = (0, u32::from(rule.header.table));
    let mut selects = rule.header.dst_len > 0 || rule.header.src_len > 0 || rule.header.tos > 0;
    for attribute in &rule.attributes {
        match attribute {
            RuleAttribute::Priority(value) => priority = *value,
            RuleAttribute::Table(value) => table = *value,
            RuleAttribute::SuppressPrefixLen(u32::MAX) | RuleAttribute::Protocol(_) => {}
            RuleAttribute::Other(_) => {}
            _ => selects = true,
        }
    }
    let usual = !selects && [(0, 255), (32766, 254), (32767, 253)].contains(&(priority, table));
    (!usual).then(|| format!("rule {priority} (table {table})"))
}

fn odd(route: &RouteMessage) -> Option<(Ipv4Addr, u8, &'static str)> {
    let (mut to, mut why) = (Ipv4Addr::UNSPECIFIED, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(network)) => to = *network,
            RouteAttribute::MultiPath(_) => why = Some("several next hops"),
            RouteAttribute::NhId(_) => why = Some("a next hop object"),
            RouteAttribute::Encap(_) => why = Some("an encapsulation"),
            _ => {}
        }
    }
    Some((to, route.header.destination_prefix_length, why?))
}

/// The link of a route whose metrics have an MTU.
fn has_mtu(route: &RouteMessage) -> Option<u32> {
    let (mut link, mut has) = (None, false);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => link = Some(*index),
            RouteAttribute::Metrics(metrics) => {
                has = metrics.iter().any(|metric| matches!(metric, RouteMetric::Mtu(_)));
            }
            _ => {}
        }
    }
    link.filter(|_| has)
}

fn device(message: LinkMessage) -> Device {
    let flags = message.header.flags;
    let mut device = Device {
        name: String::new(),
        kind: None,
        ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        mac: None,
        mtu: 0,
        running: flags.contains(LinkFlags::Up) && flags.contains(LinkFlags::LowerUp),
        master: None,
        link: None,
        link_netns: None,
        qdisc: None,
        xdp: false,
        alias: None,
        vxlan: None,
        bridge: None,
        port: None,
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

fn vxlan(data: Vec<InfoVxlan>) -> VxlanDevice {
    // What the kernel leaves out of a dump is off, IPv4 checksums apart: they are
    // told as "on" or not at all by some versions.
    let mut device = VxlanDevice { df: Some(false), ..VxlanDevice::default() };
    for attribute in data {
        let mut option = |name, on| device.options.extend(on_then(on, name));
        match attribute {
            InfoVxlan::Id(vni) => device.vni = vni,
            InfoVxlan::Group6(_) | InfoVxlan::Local6(_) => device.ipv6 = true,
            InfoVxlan::Local(local) => device.local = Some(local),
            InfoVxlan::Link(link) => device.link = (link != 0).then_some(link),
            InfoVxlan::Port(port) => device.port = port,
            InfoVxlan::PortRange(range) => device.source_ports = range,
            InfoVxlan::Ttl(ttl) => device.ttl = ttl,
            InfoVxlan::Tos(tos) => device.tos = tos,
            InfoVxlan::Learning(on) => device.learning = on,
            InfoVxlan::Ageing(seconds) => device.ageing = seconds,
            InfoVxlan::UDPCsum(on) => device.checksum = on,
            InfoVxlan::Df(VxlanDf::Unset) => device.df = Some(false),
            InfoVxlan::Df(VxlanDf::Set) => device.df = Some(true),
            InfoVxlan::Df(_) => device.df = None,
            InfoVxlan::CollectMetadata(on) => option("external", on),
            InfoVxlan::Proxy(on) => device.proxy = on,
            InfoVxlan::Rsc(on) => option("rsc", on),
            InfoVxlan::RemCsumTX(on) => option("remcsumtx", on),
            InfoVxlan::RemCsumRX(on) => option("remcsumrx", on),
            InfoVxlan::Vnifilter(on) => option("vnifilter", on),
            InfoVxlan::TtlInherit(value) => option("ttl inherit", value != 0),
            InfoVxlan::TtlInheritFlag => option("ttl inherit", true),
            InfoVxlan::Gbp => option("gbp", true),
            InfoVxlan::Gpe => option("gpe", true),
            _ => {}
        }
    }
    device
}

fn bridge(data: &[InfoBridge]) -> BridgeDevice {
    let mut device = BridgeDevice::default();
    for attribute in data {
        match attribute {
            InfoBridge::VlanFiltering(on) => device.vlan_filtering = *on,
            InfoBridge::NfCallIpTables(on) | InfoBridge::NfCallIp6Tables(on) => {
                device.calls_filters |= *on;
            }
            InfoBridge::AgeingTime(time) => device.ageing = *time,
            _ => {}
        }
    }
    device
}

fn port(data: &[InfoBridgePort]) -> BridgePort {
    let mut port = BridgePort::default();
    for attribute in data {
        let mut option = |name, on: bool| port.options.extend(on_then(on, name));
        match attribute {
            InfoBridgePort::State(state) => port.forwarding = *state == BridgePortState::Forwarding,
            InfoBridgePort::HairpinMode(on) => option("hairpin", *on),
            InfoBridgePort::Isolated(on) => option("isolated", *on),
            InfoBridgePort::Locked(on) => option("locked", *on),
            InfoBridgePort::Mab(on) => option("mab", *on),
            InfoBridgePort::VlanTunnel(on) => option("vlan_tunnel", *on),
            InfoBridgePort::NeighSupress(on) => option("neigh_suppress", *on),
            InfoBridgePort::NeighVlanSuppress(on) => option("neigh_vlan_suppress", *on),
            InfoBridgePort::BackupPort(index) => option("backup_port", *index != 0),
            InfoBridgePort::BackupNextHopId(id) => option("backup_nhid", *id != 0),
            _ => {}
        }
    }
    port
}

fn on_then(on: bool, name: &'static str) -> Option<&'static str> {
    on.then_some(name)
}
