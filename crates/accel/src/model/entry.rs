//! What the maps of the programs hold, as data: devices, domains, VTEPs, forwarding entries.

use std::net::IpAddr;

use packet::ethernet::MacAddr;

/// A device of one of the namespaces: the NICs' (0) or a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId {
    /// Number of the namespace, as the programs have it: 0 is the NICs'.
    pub netns: u16,
    /// Interface index there.
    pub index: u32,
}

/// What is common to the addresses of a bridge, or of a device that is no port of one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Domain {
    /// The bridge or device.
    pub id: DeviceId,
    /// Indices of the veth pair to the NICs' namespace, where the domain is in another:
    /// the domain's end, the NICs' end.
    pub crossing: Option<(u32, u32)>,
    /// br_netfilter looks at IP headers and hands what is bridged to IP's hooks.
    pub checked: bool,
    /// IPv4 packets that come to IP's hooks come to rules of netfilter: flows want a verdict.
    pub rules: bool,
    /// The same of IPv6.
    pub rules_ipv6: bool,
}

/// By what a datagram is known as a VXLAN device's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VtepKey {
    /// VXLAN network identifier, 24 bits (RFC 7348).
    pub vni: u32,
    /// UDP destination port, host byte order.
    pub port: u16,
    /// Over IPv6.
    pub ipv6: bool,
}

/// A VTEP of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vtep {
    /// The bridge, or the VXLAN device where that is no port of one.
    pub domain: Domain,
    /// Index of the underlay NIC.
    pub nic: u32,
    /// Index of the VXLAN device.
    pub vxlan: u32,
    /// Own address.
    pub local: IpAddr,
    /// Datagrams over IPv6 are taken without an outer checksum.
    pub takes_zero_checksum: bool,
}

/// Where frames to an address go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fdb {
    /// To a port of this host.
    Local {
        /// Index of the port.
        port: u32,
        /// Its MTU, bytes; with `peer`, the smaller of both ends'.
        mtu: u32,
        /// The number of the namespace of the veth's peer, where frames may be
        /// handed to it directly.
        peer: Option<u32>,
    },
    /// To a remote VTEP.
    Remote(UnderlayRoute),
    /// To the host itself, which routes them.
    RouterMac {
        /// Those of IPv6, too.
        ipv6: bool,
    },
}

/// The way to a remote VTEP, with what the outer headers say, as `vxlan_xmit_one` of
/// `drivers/net/vxlan` would write them. Numbers are in host byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnderlayRoute {
    /// Index of the underlay NIC.
    pub nic: u32,
    /// Largest inner layer-3 packet, bytes.
    pub mtu: u32,
    /// Index of the VXLAN device.
    pub vxlan: u32,
    /// Network identifier in the VXLAN header, 24 bits.
    pub vni: u32,
    /// Own address.
    pub local: IpAddr,
    /// The VTEP's, of the same family.
    pub remote: IpAddr,
    /// The VTEP's UDP port.
    pub udp_port: u16,
    /// Source ports: from the first up to, not including, the second.
    pub source_ports: (u16, u16),
    /// Outer don't-fragment flag of IPv4.
    pub dont_fragment: bool,
    /// Outer checksums are sent.
    pub checksum: bool,
    /// Neighbour solicitations are answered by the VXLAN device, or by its bridge.
    pub proxy: bool,
    /// Outer time to live (IPv4) or hop limit (IPv6).
    pub ttl: u8,
    /// Outer type of service or traffic class, without the bits of ECN (RFC 6040).
    pub tos: u8,
    /// Outer flow label of IPv6, 20 bits.
    pub label: u32,
    /// Ethernet address of the next hop, from the neighbour table.
    pub next_hop: MacAddr,
    /// Ethernet address of the NIC.
    pub source: MacAddr,
}

/// An address in a domain.
pub type EntryKey = (DeviceId, MacAddr);

impl Vtep {
    /// The VXLAN device.
    pub fn device(&self) -> DeviceId {
        DeviceId { index: self.vxlan, ..self.domain.id }
    }
}

impl Fdb {
    /// The device that frames go to, of an entry in `domain`; the host itself has none.
    pub fn device(&self, domain: DeviceId) -> Option<DeviceId> {
        let index = match self {
            Fdb::Local { port, .. } => *port,
            Fdb::Remote(remote) => remote.vxlan,
            Fdb::RouterMac { .. } => return None,
        };
        Some(DeviceId { index, ..domain })
    }
}
