//! Links with all properties that affect their packets: the content of `ip -s -d link`.
//!
//! The `detail` fields have properties that decide only whether the fast path may forward a packet.
//! They are not serialized, and [`Interface::without_detail`] drops them.

mod attribute;

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
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
    /// Has a carrier, of which its bridge does not know yet (`IFLA_OPERSTATE` is down): the kernel
    /// passes the news on after up to a second.
    #[serde(default)]
    pub carrier_is_new: bool,
    /// `IFF_LOOPBACK`.
    pub loopback: bool,
    /// Neither asks nor answers ARP and neighbour discovery (`IFF_NOARP`).
    #[serde(default)]
    pub noarp: bool,
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
    /// Properties that only the fast path checks.
    #[serde(skip)]
    pub detail: LinkDetail,
}

impl Interface {
    /// Returns the link as it is after writing it to a file and reading it back.
    #[must_use]
    pub fn without_detail(self) -> Interface {
        let vxlan = self.vxlan.map(|vxlan| Vxlan { detail: VxlanDetail::default(), ..vxlan });
        let bridge = self.bridge.map(|bridge| Bridge { detail: BridgeDetail::default(), ..bridge });
        let port = self.port.map(|port| Port { detail: PortDetail::default(), ..port });
        Interface { vxlan, bridge, port, detail: LinkDetail::default(), ..self }
    }
}

/// Properties of a link that only the fast path checks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkDetail {
    /// Whether its frames have Ethernet headers (`ARPHRD_ETHER`).
    pub ethernet: bool,
    /// `IFF_UP` and `IFF_LOWER_UP`, whatever `IFLA_OPERSTATE` is.
    pub running: bool,
    /// An XDP program is attached, in any mode.
    pub xdp_attached: bool,
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
    /// Sends the packet mark as a group policy (`IFLA_VXLAN_GBP`).
    #[serde(default)]
    pub gbp: bool,
    /// Has headers of the generic protocol extension (`IFLA_VXLAN_GPE`).
    #[serde(default)]
    pub gpe: bool,
    /// Properties that only the fast path checks.
    #[serde(skip)]
    pub detail: VxlanDetail,
}

/// Properties of a VXLAN device that only the fast path checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VxlanDetail {
    /// Type of service; 1: inherited from the inner packet.
    pub tos: u8,
    /// Outer don't-fragment flag of IPv4; `None`: inherited from the inner packet.
    pub df: Option<bool>,
    /// Lifetime of learned entries, s.
    pub ageing: u32,
    /// Accepts IPv6 packets without an outer checksum.
    pub takes_zero_checksum: bool,
    /// Flow label of outer IPv6 headers.
    pub label: u32,
    /// Option that changes packets or their destination, by its name in `ip link`: the first one.
    pub option: Option<&'static str>,
    /// Unknown attribute (`IFLA_VXLAN_*`): the first one.
    pub unknown: Option<u16>,
}

impl Vxlan {
    /// The underlay is IPv6, and so are all remote VTEPs.
    pub fn is_ipv6(&self) -> bool {
        self.local.or(self.remote).is_some_and(|address| address.is_ipv6())
    }

    /// Sends outer checksums, over the IP version of its underlay.
    pub fn sends_checksum(&self) -> bool {
        if self.is_ipv6() { self.checksum6 } else { self.checksum }
    }
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
    /// Properties that only the fast path checks.
    #[serde(skip)]
    pub detail: BridgeDetail,
}

/// Properties of a bridge that only the fast path checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BridgeDetail {
    /// Passes bridged frames to iptables or ip6tables, whatever the namespace's sysctls are.
    pub calls_filters: bool,
    /// Lifetime of learned entries, 1/100 s.
    pub ageing: u32,
    /// Option that changes the destination of packets, by its name in `ip link`: the first one.
    pub option: Option<&'static str>,
    /// Unknown attribute (`IFLA_BR_*`): the first one.
    pub unknown: Option<u16>,
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
    /// Properties that only the fast path checks.
    #[serde(skip)]
    pub detail: PortDetail,
}

/// Properties of a bridge port that only the fast path checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortDetail {
    /// Option that changes the destination of packets, by its name in `bridge link`: the first one.
    pub option: Option<&'static str>,
    /// Unknown attribute (`IFLA_BRPORT_*`): the first one.
    pub unknown: Option<u16>,
}

impl Default for Port {
    /// The values of a kernel that reports none.
    fn default() -> Port {
        Port {
            state: PortState::Forwarding,
            hairpin: false,
            isolated: false,
            learning: true,
            flood: true,
            mcast_flood: true,
            bcast_flood: true,
            neigh_suppress: false,
            locked: false,
            detail: PortDetail::default(),
        }
    }
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
    /// Received with a header or alignment that the device does not accept; part of `rx_errors`.
    #[serde(default)]
    pub rx_frame: u64,
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
            rx_frame: less(self.rx_frame, earlier.rx_frame),
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
                all.push(attribute::interface(message));
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
                found = Some(attribute::interface(message));
            }
        })?;
        // The kernel acknowledged without a link.
        found.ok_or_else(|| Error::Kernel {
            operation: "find link",
            object: name.to_owned(),
            errno: Errno::ENODEV,
        })
    }

    /// Returns a link of the namespace with id `netns` in this one.
    ///
    /// # Errors
    /// `ENODEV`, and `EINVAL` if there is no such id.
    pub fn link_in(&self, netns: u32, index: u32) -> Result<Option<Interface>> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::IfNetnsId(netns.cast_signed()));
        let object = format!("{index} of namespace id {netns}");
        let mut found = None;
        self.get(RouteNetlinkMessage::GetLink(message), "find link", &object, |answer| {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                found = Some(attribute::interface(message));
            }
        })?;
        Ok(found)
    }

    /// Returns the counters of all links by name.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn counters(&self) -> Result<BTreeMap<String, Counters>> {
        Ok(self.links()?.into_iter().map(|link| (link.name, link.counters)).collect())
    }
}
