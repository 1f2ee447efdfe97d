//! Contents of the BPF maps as data: devices, domains, VTEPs, forwarding entries.

use std::net::IpAddr;

use netstate::interface::Interface;
use packet::ethernet::MacAddr;

/// A device in the NICs' namespace or in a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId {
    /// Number of the namespace in the BPF maps: 0 is the NICs' namespace.
    pub netns: u16,
    /// Interface index in that namespace.
    pub index: u32,
}

/// A bridge, or a device that is not a bridge port: the scope of a MAC address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Domain {
    /// The bridge or device.
    pub id: DeviceId,
    /// Interface indices of the veth pair to the NICs' namespace, if the domain is in a sandbox:
    /// the sandbox's end, the NICs' end.
    pub crossing: Option<(u32, u32)>,
    /// br_netfilter checks IP headers and passes bridged packets to the IP hooks.
    pub checked: bool,
    /// IPv4 packets at the IP hooks meet netfilter rules, so flows need a verdict.
    pub rules: bool,
    /// The same for IPv6.
    pub rules_ipv6: bool,
}

/// The fields that identify the VXLAN device of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VtepKey {
    /// VXLAN network identifier, 24 bits (RFC 7348).
    pub vni: u32,
    /// UDP destination port, host byte order.
    pub port: u16,
    /// Whether the underlay is IPv6.
    pub ipv6: bool,
}

/// A VTEP on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vtep {
    /// The bridge, or the VXLAN device itself if it is not a bridge port.
    pub domain: Domain,
    /// Interface index of the underlay NIC.
    pub nic: u32,
    /// Interface index of the VXLAN device.
    pub vxlan: u32,
    /// Local address.
    pub local: IpAddr,
    /// Accept IPv6 packets without an outer UDP checksum.
    pub takes_zero_checksum: bool,
    /// The kernel takes packets above 64 KiB out of the tunnel ([`TunnelGso`]).
    pub takes_big: bool,
    /// The VXLAN device merges received segments (GRO), and the NIC does not.
    pub merges: bool,
}

/// GSO packets above 64 KiB (BIG TCP) that a VXLAN device encapsulates: their sizes are below these,
/// in bytes with the Ethernet header. Larger ones are segmented first. 0: no packet above 64 KiB.
///
/// Kernels since 7.3 encapsulate such packets with length fields of zero. Earlier kernels have no rule
/// for these fields, even if an administrator raises the limits of a VXLAN device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TunnelGso {
    pub ipv4: u32,
    pub ipv6: u32,
}

impl TunnelGso {
    /// `GSO_LEGACY_MAX_SIZE` (include/linux/netdevice.h): the default limit.
    const LEGACY: u32 = 65_536;

    /// Returns the limits of a device. `is_possible`: the kernel encapsulates packets above 64 KiB.
    pub fn new(device: &Interface, is_possible: bool) -> TunnelGso {
        let above = |size: Option<u32>| {
            size.filter(|size| is_possible && *size > TunnelGso::LEGACY).unwrap_or(0)
        };
        TunnelGso { ipv4: above(device.gso_ipv4_max_size), ipv6: above(device.gso_max_size) }
    }
}

/// Destination of frames to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fdb {
    /// A port on this host.
    Local {
        /// Interface index of the port.
        port: u32,
        /// MTU of the port in bytes; with `peer`, the smaller MTU of the veth pair.
        mtu: u32,
        /// Number of the veth peer's namespace, if frames may be delivered to the peer directly.
        peer: Option<u32>,
    },
    /// A remote VTEP.
    Remote(UnderlayRoute),
    /// The host itself, which routes the frames.
    RouterMac {
        /// Route IPv6 frames, too.
        ipv6: bool,
    },
}

/// The path to a remote VTEP with the fields of the outer headers, as `vxlan_xmit_one` in
/// `drivers/net/vxlan` would write them. Numbers are in host byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnderlayRoute {
    /// Interface index of the underlay NIC.
    pub nic: u32,
    /// Largest inner layer 3 packet, bytes.
    pub mtu: u32,
    /// Interface index of the VXLAN device.
    pub vxlan: u32,
    /// Network identifier in the VXLAN header, 24 bits.
    pub vni: u32,
    /// Local address.
    pub local: IpAddr,
    /// Address of the remote VTEP, of the same family as `local`.
    pub remote: IpAddr,
    /// UDP port of the remote VTEP.
    pub udp_port: u16,
    /// Range of source ports; the upper bound is exclusive.
    pub source_ports: (u16, u16),
    /// Outer don't-fragment flag (IPv4).
    pub dont_fragment: bool,
    /// GSO packets above 64 KiB.
    pub gso: TunnelGso,
    /// Send outer UDP checksums.
    pub checksum: bool,
    /// The VXLAN device or its bridge answers neighbour solicitations.
    pub proxy: bool,
    /// Outer time to live (IPv4) or hop limit (IPv6).
    pub ttl: u8,
    /// Outer type of service or traffic class, without the ECN bits (RFC 6040).
    pub tos: u8,
    /// The outer DSCP is the inner packet's, not that of `tos`.
    pub inherits_tos: bool,
    /// Outer IPv6 flow label, 20 bits.
    pub label: u32,
    /// Ethernet address of the next hop, from the neighbour table.
    pub next_hop: MacAddr,
    /// Ethernet address of the NIC.
    pub source: MacAddr,
}

/// An address in a domain.
pub type EntryKey = (DeviceId, MacAddr);

impl Vtep {
    pub fn device(&self) -> DeviceId {
        DeviceId { index: self.vxlan, ..self.domain.id }
    }
}

impl Fdb {
    /// Returns the device that receives the frames of an entry in `domain`; `None` for the host
    /// itself.
    pub fn device(&self, domain: DeviceId) -> Option<DeviceId> {
        let index = match self {
            Fdb::Local { port, .. } => *port,
            Fdb::Remote(remote) => remote.vxlan,
            Fdb::RouterMac { .. } => return None,
        };
        Some(DeviceId { index, ..domain })
    }
}
