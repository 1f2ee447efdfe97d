//! Links with all properties that affect their packets, as a serializable value: the content of `ip
//! -s -d link`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    BridgePortState, BridgeQuerierState, BridgeStpState, InfoBridge, InfoBridgePort, InfoData,
    InfoGeneve, InfoPortData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp,
    State, Stats64,
};
use nix::errno::Errno;
use packet::ethernet::MacAddr;
use serde::{Deserialize, Serialize};

use crate::netlink::{Error, Netlink, Result};

/// A network device, as reported by `RTM_GETLINK`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Interface {
    /// Interface index, unique in its namespace.
    pub index: u32,
    /// Name of the device, `IFLA_IFNAME`.
    pub name: String,
    /// Kind (`veth`, `bridge`, `vxlan`, `tun` …), if the driver has one.
    pub kind: Option<String>,
    /// Link-layer address (`IFLA_ADDRESS`); `None` unless it has 6 bytes.
    #[serde(with = "crate::mac_text")]
    pub mac: Option<MacAddr>,
    /// Layer-3 MTU, bytes.
    pub mtu: u32,
    /// Largest MTU that the driver accepts, bytes; `None`: no limit.
    pub max_mtu: Option<u32>,
    /// `IFF_UP`.
    pub up: bool,
    /// Ready to carry packets (`IFF_LOWER_UP`).
    pub carrier: bool,
    /// `IFF_LOOPBACK`.
    pub loopback: bool,
    /// Index of its bridge or other master.
    pub master: Option<u32>,
    /// Index of the related link: the veth peer, or the link below a VLAN or macvlan.
    pub link: Option<u32>,
    /// Id of the namespace of `link` in this namespace; `None`: the same namespace.
    pub link_netns: Option<u32>,
    /// Kind of the root queueing discipline (`IFLA_QDISC`).
    pub qdisc: Option<String>,
    /// Limit of packets in the root queueing discipline (`txqueuelen`).
    pub tx_queue_len: u32,
    /// Allocated transmit queues (`IFLA_NUM_TX_QUEUES`). Fewer may be in use.
    pub tx_queues: u32,
    /// Allocated receive queues (`IFLA_NUM_RX_QUEUES`). Fewer may be in use.
    pub rx_queues: u32,
    /// Largest IPv6 GSO packet that it accepts, bytes. Applies to IPv4, too, before Linux 6.3.
    pub gso_max_size: Option<u32>,
    /// Largest IPv4 GSO packet that it accepts, bytes. Since Linux 6.3.
    pub gso_ipv4_max_size: Option<u32>,
    /// Maximum number of segments in a GSO packet.
    pub gso_max_segs: Option<u32>,
    /// Largest GSO packet that the hardware accepts, bytes. Since Linux 6.0.
    pub tso_max_size: Option<u32>,
    /// Bus of a hardware or paravirtual device: `pci`, `virtio`.
    pub bus: Option<String>,
    /// Attributes of a VXLAN device.
    pub vxlan: Option<Vxlan>,
    /// UDP port of a Geneve device.
    pub geneve_port: Option<u16>,
    /// Attributes of a bridge; `None` for other devices.
    pub bridge: Option<Bridge>,
    /// Settings as a port of a bridge; `None` for other devices.
    #[serde(default)]
    pub port: Option<Port>,
    /// Number of the XDP program that handles received packets (`IFLA_XDP_PROG_ID`).
    #[serde(default)]
    pub xdp: Option<u32>,
    /// Counters since the link was created.
    pub counters: Counters,
}

/// Attributes of a VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Vxlan {
    /// VXLAN network identifier, 24 bits (`IFLA_VXLAN_ID`).
    pub vni: u32,
    /// Local address on the underlay, if set.
    pub local: Option<IpAddr>,
    /// Default remote or multicast group, if set.
    pub remote: Option<IpAddr>,
    /// UDP destination port (`IFLA_VXLAN_PORT`), in host byte order.
    pub port: u16,
    /// Learns addresses from received packets.
    pub learning: bool,
    /// Sends outer checksums over IPv4.
    pub checksum: bool,
    /// Sends outer checksums over IPv6.
    pub checksum6: bool,
    /// VNI and remote are set per packet (`external`): Open vSwitch, Cilium.
    pub external: bool,
    /// Index of the underlay link (`dev`), if set.
    #[serde(default)]
    pub device: Option<u32>,
    /// Answers ARP and neighbour discovery itself (`IFLA_VXLAN_PROXY`); `None`: unknown.
    #[serde(default)]
    pub proxy: Option<bool>,
    /// Range of source ports, without its end (`IFLA_VXLAN_PORT_RANGE`); `None`: the default.
    #[serde(default)]
    pub source_ports: Option<(u16, u16)>,
    /// Time to live of outer packets (`IFLA_VXLAN_TTL`), hops; 0: the default, or inherited.
    #[serde(default)]
    pub ttl: u8,
}

/// Returns the bytes that VXLAN adds in front of the tenant's IP packet: inner Ethernet 14, UDP 8,
/// VXLAN 8 and the outer IP header (RFC 7348).
pub fn vxlan_overhead(remote: IpAddr) -> u32 {
    if remote.is_ipv4() { 50 } else { 70 }
}

/// Settings of a bridge (`IFLA_BR_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bridge {
    /// VLAN filtering is on (`IFLA_BR_VLAN_FILTERING`).
    pub vlan_filtering: bool,
    /// Passes bridged frames to iptables (`nf_call_iptables`), whatever the namespace's sysctl is.
    pub call_iptables: bool,
    /// Runs the spanning tree protocol (`IFLA_BR_STP_STATE`).
    #[serde(default)]
    pub stp: bool,
    /// Sends multicast only to ports with members (`IFLA_BR_MCAST_SNOOPING`).
    #[serde(default)]
    pub mcast_snooping: bool,
    /// Asks for members itself (`IFLA_BR_MCAST_QUERIER`).
    #[serde(default)]
    pub mcast_querier: bool,
    /// Another querier for IPv6 was heard lately (`IFLA_BR_MCAST_QUERIER_STATE`).
    #[serde(default)]
    pub other_querier: bool,
}

/// Settings of a bridge port (`IFLA_BRPORT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// State of the spanning tree protocol.
    pub state: PortState,
    /// Sends frames back to the port they came from.
    pub hairpin: bool,
    /// Exchanges no frames with other isolated ports.
    pub isolated: bool,
    /// Learns source addresses.
    pub learning: bool,
    /// Gets frames to unknown addresses.
    pub flood: bool,
    /// Gets multicast without known members.
    pub mcast_flood: bool,
    /// Gets broadcast.
    pub bcast_flood: bool,
    /// The bridge answers ARP and neighbour discovery for neighbours behind it.
    #[serde(default)]
    pub neigh_suppress: bool,
    /// Drops frames from addresses that have no entry at this port (`IFLA_BRPORT_LOCKED`).
    #[serde(default)]
    pub locked: bool,
}

/// State of a bridge port (`BR_STATE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// Passes nothing, by command or because the device is down.
    Disabled,
    /// Waits for other bridges.
    Listening,
    /// Learns addresses, and passes nothing yet.
    Learning,
    /// Passes frames.
    Forwarding,
    /// Would close a loop.
    Blocking,
}

impl PortState {
    /// Name, as `bridge link` prints it.
    pub fn name(self) -> &'static str {
        match self {
            PortState::Disabled => "disabled",
            PortState::Listening => "listening",
            PortState::Learning => "learning",
            PortState::Forwarding => "forwarding",
            PortState::Blocking => "blocking",
        }
    }
}

/// Link counters (`IFLA_STATS64`, `include/uapi/linux/if_link.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Packets received. Most virtual devices count a GSO packet as one.
    pub rx_packets: u64,
    /// Bytes received, Ethernet header included.
    pub rx_bytes: u64,
    /// Packets sent. Most virtual devices count a GSO packet as one.
    pub tx_packets: u64,
    /// Bytes sent, Ethernet header included.
    pub tx_bytes: u64,
    /// Received and dropped: lack of resources, or an unknown protocol.
    pub rx_dropped: u64,
    /// Dropped on transmit.
    pub tx_dropped: u64,
    /// Receive errors of any kind.
    pub rx_errors: u64,
    /// Transmit errors of any kind.
    pub tx_errors: u64,
    /// Missed because the ring had no receive buffer.
    pub rx_missed: u64,
    /// Lost in the device's receive queue.
    pub rx_fifo: u64,
    /// Received with a wrong frame checksum.
    pub rx_crc: u64,
    /// Times the carrier was lost during transmission.
    pub tx_carrier: u64,
    /// Received for another hardware address and dropped by IP (`rx_otherhost_dropped`). Since Linux
    /// 5.19.
    #[serde(default)]
    pub rx_otherhost: u64,
    /// Times that the carrier was lost or came back (`IFLA_CARRIER_CHANGES`).
    #[serde(default)]
    pub carrier_changes: u64,
}

impl Counters {
    /// Returns the increments since `earlier`. A counter that went backwards (the link was
    /// replaced) counts as zero.
    #[must_use]
    pub fn since(&self, earlier: &Counters) -> Counters {
        // A replaced link starts at zero.
        let less = u64::saturating_sub;
        Counters {
            rx_packets: less(self.rx_packets, earlier.rx_packets),
            rx_bytes: less(self.rx_bytes, earlier.rx_bytes),
            tx_packets: less(self.tx_packets, earlier.tx_packets),
            tx_bytes: less(self.tx_bytes, earlier.tx_bytes),
            rx_dropped: less(self.rx_dropped, earlier.rx_dropped),
            tx_dropped: less(self.tx_dropped, earlier.tx_dropped),
            rx_errors: less(self.rx_errors, earlier.rx_errors),
            tx_errors: less(self.tx_errors, earlier.tx_errors),
            rx_missed: less(self.rx_missed, earlier.rx_missed),
            rx_fifo: less(self.rx_fifo, earlier.rx_fifo),
            rx_crc: less(self.rx_crc, earlier.rx_crc),
            tx_carrier: less(self.tx_carrier, earlier.tx_carrier),
            rx_otherhost: less(self.rx_otherhost, earlier.rx_otherhost),
            carrier_changes: less(self.carrier_changes, earlier.carrier_changes),
        }
    }
}

impl Netlink {
    /// Lists all links of the namespace, by index.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn links(&self) -> Result<Vec<Interface>> {
        let mut all = Vec::new();
        let links = RouteNetlinkMessage::GetLink(LinkMessage::default());
        self.dump(links, "list", "links", |answer| {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                all.push(interface(message));
            }
        })?;
        all.sort_by_key(|interface| interface.index);
        Ok(all)
    }

    /// Returns a link by name.
    ///
    /// # Errors
    /// `ENODEV` if there is none.
    pub fn link(&self, name: &str) -> Result<Interface> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let mut found = None;
        self.get(RouteNetlinkMessage::GetLink(message), "find link", name, |answer| {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                found = Some(interface(message));
            }
        })?;
        // The kernel acknowledged without a link.
        found.ok_or_else(|| Error::Kernel {
            operation: "find link",
            object: name.to_owned(),
            errno: Errno::ENODEV,
        })
    }

    /// Returns the counters of all links by name.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn counters(&self) -> Result<BTreeMap<String, Counters>> {
        Ok(self.links()?.into_iter().map(|link| (link.name, link.counters)).collect())
    }
}

fn interface(message: LinkMessage) -> Interface {
    let flags = message.header.flags;
    let mut link = Interface {
        index: message.header.index,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        ..Interface::default()
    };
    let mut carrier_changes = 0;
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(mac) => link.mac = mac.try_into().ok().map(MacAddr),
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            // 0 means no limit.
            LinkAttribute::MaxMtu(mtu) => link.max_mtu = Some(mtu).filter(|mtu| *mtu != 0),
            // A TAP device whose process has ended is up without a carrier.
            LinkAttribute::OperState(State::Down) => link.carrier = false,
            LinkAttribute::Controller(index) => link.master = Some(index),
            LinkAttribute::Link(index) => link.link = Some(index).filter(|index| *index != 0),
            LinkAttribute::LinkNetNsId(id) => link.link_netns = u32::try_from(id).ok(),
            LinkAttribute::Qdisc(qdisc) => link.qdisc = Some(qdisc),
            LinkAttribute::TxQueueLen(length) => link.tx_queue_len = length,
            LinkAttribute::NumTxQueues(queues) => link.tx_queues = queues,
            LinkAttribute::NumRxQueues(queues) => link.rx_queues = queues,
            LinkAttribute::GsoMaxSize(size) => link.gso_max_size = Some(size),
            LinkAttribute::GsoIpv4MaxSize(size) => link.gso_ipv4_max_size = Some(size),
            LinkAttribute::GsoMaxSegs(most) => link.gso_max_segs = Some(most),
            LinkAttribute::TsoMaxSize(size) => link.tso_max_size = Some(size),
            LinkAttribute::ParentDevBusName(bus) => link.bus = Some(bus),
            LinkAttribute::CarrierChanges(changes) => carrier_changes = changes.into(),
            LinkAttribute::Xdp(attributes) => {
                link.xdp = attributes.iter().find_map(|attribute| match attribute {
                    LinkXdp::ProgId(id) => Some(*id),
                    _ => None,
                });
            }
            LinkAttribute::Stats64(stats) => link.counters = counters(&stats),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => link.kind = Some(kind.to_string()),
                        LinkInfo::Data(InfoData::Vxlan(data)) => link.vxlan = Some(vxlan(&data)),
                        LinkInfo::Data(InfoData::Geneve(data)) => {
                            link.geneve_port = data.iter().find_map(|attribute| match attribute {
                                InfoGeneve::Port(port) => Some(*port),
                                _ => None,
                            });
                        }
                        LinkInfo::Data(InfoData::Bridge(data)) => {
                            link.bridge = Some(bridge(&data));
                        }
                        LinkInfo::PortData(InfoPortData::BridgePort(data)) => {
                            link.port = Some(port(&data));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    link.counters.carrier_changes = carrier_changes;
    link
}

fn vxlan(data: &[InfoVxlan]) -> Vxlan {
    // IPv6 checksums are on unless the kernel reports otherwise.
    let mut device = Vxlan { checksum6: true, ..Vxlan::default() };
    for attribute in data {
        match *attribute {
            InfoVxlan::Id(vni) => device.vni = vni,
            InfoVxlan::Local(local) => device.local = Some(local.into()),
            InfoVxlan::Local6(local) => device.local = Some(local.into()),
            InfoVxlan::Group(remote) => device.remote = Some(remote.into()),
            InfoVxlan::Group6(remote) => device.remote = Some(remote.into()),
            InfoVxlan::Link(link) => device.device = (link != 0).then_some(link),
            InfoVxlan::Port(port) => device.port = port,
            InfoVxlan::Learning(on) => device.learning = on,
            InfoVxlan::UDPCsum(on) => device.checksum = on,
            InfoVxlan::UDPZeroCsumTX(zero) => device.checksum6 = !zero,
            InfoVxlan::CollectMetadata(on) => device.external = on,
            InfoVxlan::Proxy(on) => device.proxy = Some(on),
            InfoVxlan::Ttl(ttl) => device.ttl = ttl,
            InfoVxlan::PortRange((low, high)) => {
                device.source_ports = (high != 0).then_some((low, high));
            }
            _ => {}
        }
    }
    device
}

fn bridge(data: &[InfoBridge]) -> Bridge {
    let mut bridge = Bridge::default();
    for attribute in data {
        match *attribute {
            InfoBridge::VlanFiltering(on) => bridge.vlan_filtering = on,
            InfoBridge::NfCallIpTables(on) => bridge.call_iptables = on,
            InfoBridge::StpState(state) => bridge.stp = state != BridgeStpState::Disabled,
            InfoBridge::MulticastSnooping(on) => bridge.mcast_snooping = on,
            InfoBridge::MulticastQuerier(on) => bridge.mcast_querier = on,
            InfoBridge::MulticastQuerierState(ref state) => {
                let timer =
                    |one: &BridgeQuerierState| matches!(one, BridgeQuerierState::Ipv6OtherTimer(_));
                bridge.other_querier = state.iter().any(timer);
            }
            _ => {}
        }
    }
    bridge
}

fn port(data: &[InfoBridgePort]) -> Port {
    // Values of a kernel that reports none.
    let mut port = Port {
        state: PortState::Forwarding,
        hairpin: false,
        isolated: false,
        learning: true,
        flood: true,
        mcast_flood: true,
        bcast_flood: true,
        neigh_suppress: false,
        locked: false,
    };
    for attribute in data {
        match *attribute {
            InfoBridgePort::State(BridgePortState::Disabled) => port.state = PortState::Disabled,
            InfoBridgePort::State(BridgePortState::Listening) => port.state = PortState::Listening,
            InfoBridgePort::State(BridgePortState::Learning) => port.state = PortState::Learning,
            InfoBridgePort::State(BridgePortState::Blocking) => port.state = PortState::Blocking,
            InfoBridgePort::HairpinMode(on) => port.hairpin = on,
            InfoBridgePort::Isolated(on) => port.isolated = on,
            InfoBridgePort::Learning(on) => port.learning = on,
            InfoBridgePort::UnicastFlood(on) => port.flood = on,
            InfoBridgePort::MulticastFlood(on) => port.mcast_flood = on,
            InfoBridgePort::BroadcastFlood(on) => port.bcast_flood = on,
            InfoBridgePort::NeighSupress(on) => port.neigh_suppress = on,
            InfoBridgePort::Locked(on) => port.locked = on,
            _ => {}
        }
    }
    port
}

fn counters(stats: &Stats64) -> Counters {
    Counters {
        rx_packets: stats.rx_packets,
        rx_bytes: stats.rx_bytes,
        tx_packets: stats.tx_packets,
        tx_bytes: stats.tx_bytes,
        rx_dropped: stats.rx_dropped,
        tx_dropped: stats.tx_dropped,
        rx_errors: stats.rx_errors,
        tx_errors: stats.tx_errors,
        rx_missed: stats.rx_missed_errors,
        rx_fifo: stats.rx_fifo_errors,
        rx_crc: stats.rx_crc_errors,
        tx_carrier: stats.tx_carrier_errors,
        rx_otherhost: stats.rx_otherhost_dropped,
        // An attribute of its own.
        carrier_changes: 0,
    }
}
