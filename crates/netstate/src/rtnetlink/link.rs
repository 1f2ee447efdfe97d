//! Creates, changes and deletes links. [`crate::interface`] reads them.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    BridgeStpState, GreIOFlags, InfoBridge, InfoBridgePort, InfoData, InfoGeneve, InfoGre,
    InfoGre6, InfoIpVlan, InfoKind, InfoMacVlan, InfoPortData, InfoPortKind, InfoVeth, InfoVlan,
    InfoVrf, InfoVxlan, IpVlanMode, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVlanMode,
};
use packet::ethernet::MacAddr;
use packet::vlan::VlanId;
use packet::vxlan::Vni;
use sys::netns::NetNs;

use crate::netlink::{Netlink, Result};

/// Parameters of a new VXLAN device.
#[derive(Debug, Clone)]
pub struct Vxlan<'a> {
    /// Name of the new device.
    pub name: &'a str,
    /// VXLAN network identifier, 24 bits. None: an `external` device, with a VNI per VLAN of a
    /// bridge ([`Netlink::tunnel_vlan`]).
    pub vni: Option<Vni>,
    /// Local address on the underlay.
    pub local: IpAddr,
    /// Default remote for unknown and broadcast destinations.
    pub remote: Option<IpAddr>,
    /// Name of the underlay device that it is bound to.
    pub underlay: &'a str,
    /// UDP port; IANA's is 4789.
    pub port: u16,
    /// Learn inner addresses from received packets.
    pub learning: bool,
    /// Send outer UDP checksums (IPv4).
    pub udp_csum: bool,
}

/// Parameters of a new Geneve device: a tunnel to a single remote end.
#[derive(Debug, Clone)]
pub struct Geneve<'a> {
    /// Name of the new device.
    pub name: &'a str,
    /// Virtual network identifier, 24 bits (RFC 8926, section 3.3).
    pub vni: Vni,
    /// Address of the remote end on the underlay.
    pub remote: IpAddr,
    /// UDP port; IANA's is 6081.
    pub port: u16,
    /// Send outer UDP checksums.
    pub udp_csum: bool,
}

/// `IFLA_GRE_FLAGS` (include/uapi/linux/if_tunnel.h).
const GRE_FLAGS: u16 = 13;
/// `IP6_TNL_F_IGN_ENCAP_LIMIT`: packets have no destination option with an encapsulation limit
/// (RFC 2473, section 4.1.1), which would take 8 bytes.
const NO_ENCAPSULATION_LIMIT: u32 = 1;

/// Modes of macvlan for tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Macvlan {
    /// Tenants on the same NIC reach each other directly.
    Bridge,
    /// Tenants reach each other through the external switch.
    Vepa,
}

fn geneve_data(geneve: &Geneve<'_>) -> InfoData {
    InfoData::Geneve(vec![
        InfoGeneve::Id(geneve.vni.get()),
        match geneve.remote {
            IpAddr::V4(remote) => InfoGeneve::Remote(remote),
            IpAddr::V6(remote) => InfoGeneve::Remote6(remote),
        },
        InfoGeneve::Port(geneve.port),
        InfoGeneve::UdpCsum(geneve.udp_csum),
        // Over IPv6, checksums are sent and required unless these flags are set.
        InfoGeneve::UdpZeroCsum6Tx(!geneve.udp_csum),
        InfoGeneve::UdpZeroCsum6Rx(!geneve.udp_csum),
    ])
}

impl Netlink {
    /// Creates a veth pair. `peer` is created in `peer_netns`.
    ///
    /// # Errors
    /// `EEXIST` if a name is taken, `EPERM`.
    pub fn add_veth(
        &self,
        name: &str,
        mac: MacAddr,
        peer: &str,
        peer_mac: MacAddr,
        peer_netns: &NetNs,
        mtu: u32,
    ) -> Result<()> {
        let mut other = LinkMessage::default();
        other.attributes = vec![
            LinkAttribute::IfName(peer.to_owned()),
            LinkAttribute::NetNsFd(peer_netns.as_fd().as_raw_fd()),
            LinkAttribute::Address(peer_mac.0.to_vec()),
            LinkAttribute::Mtu(mtu),
        ];
        self.add(
            name,
            vec![LinkAttribute::Address(mac.0.to_vec()), LinkAttribute::Mtu(mtu)],
            InfoKind::Veth,
            Some(InfoData::Veth(InfoVeth::Peer(other))),
            "add veth",
        )
    }

    /// Creates a bridge without spanning tree and multicast snooping, so that it adds no traffic of
    /// its own. It forwards immediately.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without bridge support, `EEXIST`.
    pub fn add_bridge(&self, name: &str, mac: MacAddr, mtu: u32) -> Result<()> {
        self.add(
            name,
            vec![LinkAttribute::Address(mac.0.to_vec()), LinkAttribute::Mtu(mtu)],
            InfoKind::Bridge,
            Some(InfoData::Bridge(vec![
                // Forward immediately, without learning first.
                InfoBridge::ForwardDelay(0),
                InfoBridge::StpState(BridgeStpState::Disabled),
                InfoBridge::MulticastSnooping(false),
            ])),
            "add bridge",
        )
    }

    /// Creates a VXLAN device.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without VXLAN support, `EEXIST`, `ENODEV` for the underlay.
    pub fn add_vxlan(&self, vxlan: &Vxlan<'_>, mac: MacAddr, mtu: u32) -> Result<()> {
        let attributes = vec![LinkAttribute::Address(mac.0.to_vec()), LinkAttribute::Mtu(mtu)];
        let data = Some(InfoData::Vxlan(self.vxlan_data(vxlan)?));
        self.add(vxlan.name, attributes, InfoKind::Vxlan, data, "add vxlan")
    }

    /// Creates a VXLAN device in another namespace. Its underlay stays in this one, where the
    /// device has no name at any time. `udp_csum` applies to IPv6, too.
    ///
    /// # Errors
    /// As [`Netlink::add_vxlan`].
    pub fn add_vxlan_in(
        &self,
        vxlan: &Vxlan<'_>,
        mac: MacAddr,
        mtu: u32,
        netns: &NetNs,
    ) -> Result<()> {
        let mut data = self.vxlan_data(vxlan)?;
        data.push(InfoVxlan::UDPZeroCsumTX(!vxlan.udp_csum));
        let attributes = vec![
            LinkAttribute::Address(mac.0.to_vec()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd()),
        ];
        let data = Some(InfoData::Vxlan(data));
        self.add(vxlan.name, attributes, InfoKind::Vxlan, data, "add vxlan")
    }

    fn vxlan_data(&self, vxlan: &Vxlan<'_>) -> Result<Vec<InfoVxlan>> {
        let underlay = self.link(vxlan.underlay)?.index;
        let mut data = vec![
            match vxlan.vni {
                Some(vni) => InfoVxlan::Id(vni.get()),
                // Without a VNI, the device is `external`.
                None => InfoVxlan::CollectMetadata(true),
            },
            InfoVxlan::Link(underlay),
            InfoVxlan::Port(vxlan.port),
            InfoVxlan::Learning(vxlan.learning),
            InfoVxlan::UDPCsum(vxlan.udp_csum),
        ];
        data.push(match vxlan.local {
            IpAddr::V4(address) => InfoVxlan::Local(address),
            IpAddr::V6(address) => InfoVxlan::Local6(address),
        });
        match vxlan.remote {
            Some(IpAddr::V4(address)) => data.push(InfoVxlan::Group(address)),
            Some(IpAddr::V6(address)) => data.push(InfoVxlan::Group6(address)),
            None => {}
        }
        Ok(data)
    }

    /// Creates a Geneve device. It does not learn: all packets go to its single remote end.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without Geneve support, `EEXIST`.
    pub fn add_geneve(&self, geneve: &Geneve<'_>, mac: MacAddr, mtu: u32) -> Result<()> {
        let attributes = vec![LinkAttribute::Address(mac.0.to_vec()), LinkAttribute::Mtu(mtu)];
        self.add(geneve.name, attributes, InfoKind::Geneve, Some(geneve_data(geneve)), "add geneve")
    }

    /// Creates a Geneve device in another namespace. Its underlay stays in this one.
    ///
    /// # Errors
    /// As [`Netlink::add_geneve`].
    pub fn add_geneve_in(
        &self,
        geneve: &Geneve<'_>,
        mac: MacAddr,
        mtu: u32,
        netns: &NetNs,
    ) -> Result<()> {
        let attributes = vec![
            LinkAttribute::Address(mac.0.to_vec()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd()),
        ];
        self.add(geneve.name, attributes, InfoKind::Geneve, Some(geneve_data(geneve)), "add geneve")
    }

    /// Creates a GRE device of layer 3 that sends packets without key and checksum (RFC 2784), with
    /// its underlay in another namespace, in which it appears for a moment before the kernel moves
    /// it here. It receives only packets with this key (RFC 2890), none of another device's.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without GRE support, `EEXIST` if the name is taken here or there, `EPERM`.
    pub fn add_gre_from(
        &self,
        name: &str,
        (local, remote): (IpAddr, IpAddr),
        key: u32,
        mtu: u32,
        underlay: &NetNs,
    ) -> Result<()> {
        self.give_number(underlay)?;
        let number = self.number_of(underlay)?.and_then(|number| i32::try_from(number).ok());
        let mut attributes = vec![LinkAttribute::Mtu(mtu)];
        attributes.extend(number.map(LinkAttribute::LinkNetNsId));
        let (kind, data) = match (local, remote) {
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let flags = NO_ENCAPSULATION_LIMIT.to_ne_bytes().to_vec();
                let data = vec![
                    InfoGre6::Local(local),
                    InfoGre6::Remote(remote),
                    InfoGre6::Ttl(64),
                    InfoGre6::IFlags(GreIOFlags::Key),
                    InfoGre6::IKey(key),
                    InfoGre6::Other(DefaultNla::new(GRE_FLAGS, flags)),
                ];
                (InfoKind::GreTun6, InfoData::GreTun6(data))
            }
            (local, remote) => {
                let v4 = [local, remote].into_iter().filter_map(|address| match address {
                    IpAddr::V4(address) => Some(address),
                    // Mixed versions: the kernel refuses a tunnel without an address.
                    IpAddr::V6(_) => None,
                });
                let mut data =
                    vec![InfoGre::Ttl(64), InfoGre::IFlags(GreIOFlags::Key), InfoGre::IKey(key)];
                data.extend(v4.zip([InfoGre::Local, InfoGre::Remote]).map(|(a, of)| of(a)));
                (InfoKind::GreTun, InfoData::GreTun(data))
            }
        };
        self.add(name, attributes, kind, Some(data), "add gre")
    }

    /// Creates a macvlan on `nic`, in `netns`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without macvlan support, `EEXIST`, `ENODEV` for the NIC.
    pub fn add_macvlan(
        &self,
        name: &str,
        nic: &str,
        mode: Macvlan,
        mac: MacAddr,
        netns: &NetNs,
    ) -> Result<()> {
        let mode = match mode {
            Macvlan::Bridge => MacVlanMode::Bridge,
            Macvlan::Vepa => MacVlanMode::Vepa,
        };
        self.add(
            name,
            vec![
                LinkAttribute::Link(self.link(nic)?.index),
                LinkAttribute::Address(mac.0.to_vec()),
                LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd()),
            ],
            InfoKind::MacVlan,
            Some(InfoData::MacVlan(vec![InfoMacVlan::Mode(mode)])),
            "add macvlan",
        )
    }

    /// Creates a layer-2 ipvlan on `nic`, in `netns`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without ipvlan support, `EEXIST`, `ENODEV` for the NIC.
    pub fn add_ipvlan(&self, name: &str, nic: &str, netns: &NetNs) -> Result<()> {
        self.add(
            name,
            vec![
                LinkAttribute::Link(self.link(nic)?.index),
                LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd()),
            ],
            InfoKind::IpVlan,
            Some(InfoData::IpVlan(vec![InfoIpVlan::Mode(IpVlanMode::L2)])),
            "add ipvlan",
        )
    }

    /// Creates an 802.1Q device on `nic`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without 8021q, `EEXIST`, `ENODEV` for the NIC.
    pub fn add_vlan(&self, name: &str, nic: &str, id: VlanId) -> Result<()> {
        self.add(
            name,
            vec![LinkAttribute::Link(self.link(nic)?.index)],
            InfoKind::Vlan,
            Some(InfoData::Vlan(vec![InfoVlan::Id(id.get())])),
            "add vlan",
        )
    }

    /// Creates a VRF device. Table `table` routes its members' packets.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without VRF, `EEXIST`.
    pub fn add_vrf(&self, name: &str, table: u32) -> Result<()> {
        let data = Some(InfoData::Vrf(vec![InfoVrf::TableId(table)]));
        self.add(name, Vec::new(), InfoKind::Vrf, data, "add vrf")
    }

    /// Sets a link up.
    ///
    /// # Errors
    /// `ENODEV`, or an error of the driver.
    pub fn set_up(&self, name: &str) -> Result<()> {
        self.set(name, "set up", |message| {
            message.header.flags |= LinkFlags::Up;
            message.header.change_mask |= LinkFlags::Up;
        })
    }

    /// Sets a link down.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn set_down(&self, name: &str) -> Result<()> {
        self.set(name, "set down", |message| {
            message.header.change_mask |= LinkFlags::Up;
        })
    }

    /// Sets the MTU, bytes.
    ///
    /// # Errors
    /// `ENODEV`, `EINVAL` outside the driver's limits.
    pub fn set_mtu(&self, name: &str, mtu: u32) -> Result<()> {
        self.set(name, "set mtu of", |message| message.attributes.push(LinkAttribute::Mtu(mtu)))
    }

    /// Sets the length of the transmit queue, packets.
    ///
    /// # Errors
    /// `ENODEV`, `ENOMEM`.
    pub fn set_tx_queue_len(&self, name: &str, packets: u32) -> Result<()> {
        self.set(name, "set txqueuelen of", |message| {
            message.attributes.push(LinkAttribute::TxQueueLen(packets));
        })
    }

    /// Sets the largest GSO packet, bytes. Up to 64 KiB this applies to IPv4, too.
    ///
    /// # Errors
    /// `ENODEV`, `EINVAL` above the device's limit.
    pub fn set_gso_max_size(&self, name: &str, bytes: u32) -> Result<()> {
        self.set(name, "set gso_max_size of", |message| {
            message.attributes.push(LinkAttribute::GsoMaxSize(bytes));
        })
    }

    /// Sets the largest GSO packet of IPv4, bytes. Requires Linux 6.3.
    ///
    /// # Errors
    /// `ENODEV`, `EINVAL` above the device's limit.
    pub fn set_gso_ipv4_max_size(&self, name: &str, bytes: u32) -> Result<()> {
        self.set(name, "set gso_ipv4_max_size of", |message| {
            message.attributes.push(LinkAttribute::GsoIpv4MaxSize(bytes));
        })
    }

    /// Sets the maximum number of segments in a GSO packet.
    ///
    /// # Errors
    /// `ENODEV`, `EINVAL` above the device's limit.
    pub fn set_gso_max_segs(&self, name: &str, segments: u32) -> Result<()> {
        self.set(name, "set gso_max_segs of", |message| {
            message.attributes.push(LinkAttribute::GsoMaxSegs(segments));
        })
    }

    /// Sets the link-layer address.
    ///
    /// # Errors
    /// `ENODEV`, `EADDRNOTAVAIL`.
    pub fn set_mac(&self, name: &str, mac: MacAddr) -> Result<()> {
        self.set(name, "set address of", |message| {
            message.attributes.push(LinkAttribute::Address(mac.0.to_vec()));
        })
    }

    /// Makes a link a bridge port or a member of a VRF.
    ///
    /// # Errors
    /// `ENODEV`, `EBUSY` if it has another master.
    pub fn set_master(&self, name: &str, master: &str) -> Result<()> {
        let master = self.link(master)?.index;
        self.set(name, "set master of", |message| {
            message.attributes.push(LinkAttribute::Controller(master));
        })
    }

    /// Prepares a bridge port for a control plane: the bridge learns no addresses there, and
    /// answers for known neighbours behind it (`bridge link set … learning off neigh_suppress on`).
    ///
    /// # Errors
    /// `ENODEV`; `EOPNOTSUPP` if it is not a bridge port.
    pub fn control_bridge_port(&self, name: &str) -> Result<()> {
        self.set(name, "set control plane options of", |message| {
            message.attributes.push(LinkAttribute::LinkInfo(vec![
                LinkInfo::PortKind(InfoPortKind::Bridge),
                LinkInfo::PortData(InfoPortData::BridgePort(vec![
                    InfoBridgePort::Learning(false),
                    InfoBridgePort::NeighSupress(true),
                ])),
            ]));
        })
    }

    /// Moves a link to another namespace.
    ///
    /// # Errors
    /// `ENODEV`, `EINVAL` for links that cannot be moved.
    pub fn set_netns(&self, name: &str, netns: &NetNs) -> Result<()> {
        let fd = netns.as_fd().as_raw_fd();
        self.set(name, "move", |message| message.attributes.push(LinkAttribute::NetNsFd(fd)))
    }

    /// Sets a link's alias, a description.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn set_alias(&self, name: &str, alias: &str) -> Result<()> {
        self.set(name, "set alias of", |message| {
            message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
        })
    }

    /// Deletes a link.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn delete_link(&self, name: &str) -> Result<()> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.change(RouteNetlinkMessage::DelLink(message), 0, "delete link", name)
    }

    /// Creates a link of any kind without further parameters, to find out whether the kernel
    /// supports the kind.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it does not.
    pub fn add_kind(&self, name: &str, kind: &str) -> Result<()> {
        self.add(name, Vec::new(), InfoKind::from(kind), None, "add link")
    }

    fn add(
        &self,
        name: &str,
        mut attributes: Vec<LinkAttribute>,
        kind: InfoKind,
        data: Option<InfoData>,
        operation: &'static str,
    ) -> Result<()> {
        // The kind must precede its data.
        let mut info = vec![LinkInfo::Kind(kind)];
        info.extend(data.map(LinkInfo::Data));
        attributes.push(LinkAttribute::IfName(name.to_owned()));
        attributes.push(LinkAttribute::LinkInfo(info));
        let mut message = LinkMessage::default();
        message.attributes = attributes;
        self.change(
            RouteNetlinkMessage::NewLink(message),
            NLM_F_CREATE | NLM_F_EXCL,
            operation,
            name,
        )
    }

    pub(crate) fn set(
        &self,
        name: &str,
        operation: &'static str,
        fill: impl FnOnce(&mut LinkMessage),
    ) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.link(name)?.index;
        fill(&mut message);
        self.change(RouteNetlinkMessage::NewLink(message), 0, operation, name)
    }
}
