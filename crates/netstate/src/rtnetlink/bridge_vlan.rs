//! VLANs of a bridge with VLAN filtering, and the VNI of each VLAN on an `external` VXLAN device
//! (`CONFIG_BRIDGE_VLAN_FILTERING`).

use netlink_packet_route::link::{
    AfSpecBridge, BridgeFlag, BridgeVlanInfo, BridgeVlanInfoFlags, BridgeVlanTunnelInfo,
    InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, LinkAttribute,
    LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use packet::vlan::VlanId;
use packet::vxlan::Vni;

use crate::netlink::{Netlink, Result};

/// Membership of a bridge or port in a VLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// A port that sends untagged frames, and whose untagged frames belong to the VLAN (`pvid
    /// untagged`).
    Untagged,
    /// A port that sends and receives tagged frames.
    Tagged,
    /// The bridge itself, for devices on top of it (`self`).
    Bridge,
}

impl Netlink {
    /// Turns on VLAN filtering. Members belong to no VLAN until [`join_vlan`](Self::join_vlan). A
    /// kernel without VLAN filtering accepts the request and ignores it.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn filter_vlans(&self, bridge: &str) -> Result<()> {
        self.set(bridge, "filter VLANs of", |message| {
            message.attributes.push(LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Bridge),
                LinkInfo::Data(InfoData::Bridge(vec![
                    InfoBridge::VlanDefaultPvid(0),
                    InfoBridge::VlanFiltering(true),
                ])),
            ]));
        })
    }

    /// Makes a bridge or a port of one a member of a VLAN (`bridge vlan add`).
    ///
    /// # Errors
    /// `ENODEV`; `EOPNOTSUPP` if the kernel has no VLAN filtering, or `member` is neither a bridge
    /// nor a bridge port.
    pub fn join_vlan(&self, member: &str, vlan: VlanId, how: Membership) -> Result<()> {
        let flags = match how {
            Membership::Untagged => BridgeVlanInfoFlags::Pvid | BridgeVlanInfoFlags::Untagged,
            Membership::Tagged | Membership::Bridge => BridgeVlanInfoFlags::empty(),
        };
        let mut said = Vec::new();
        if how == Membership::Bridge {
            said.push(AfSpecBridge::Flags(BridgeFlag::LowerDev));
        }
        said.push(AfSpecBridge::VlanInfo(BridgeVlanInfo { flags, vid: vlan.get() }));
        self.set_vlan(member, "add VLAN of", said)
    }

    /// Maps a VLAN to a VNI on a port that is an `external` VXLAN device (`bridge vlan add …
    /// tunnel_info id`).
    ///
    /// # Errors
    /// As [`join_vlan`](Self::join_vlan). The port must be a member of the VLAN already.
    pub fn tunnel_vlan(&self, port: &str, vlan: VlanId, vni: Vni) -> Result<()> {
        self.set(port, "tunnel VLANs of", |message| {
            message.attributes.push(LinkAttribute::LinkInfo(vec![
                LinkInfo::PortKind(InfoPortKind::Bridge),
                LinkInfo::PortData(InfoPortData::BridgePort(vec![InfoBridgePort::VlanTunnel(
                    true,
                )])),
            ]));
        })?;
        let tunnel =
            vec![BridgeVlanTunnelInfo::Id(vni.get()), BridgeVlanTunnelInfo::Vid(vlan.get())];
        self.set_vlan(port, "add VLAN's VNI of", vec![AfSpecBridge::VlanTunnelInfo(tunnel)])
    }

    fn set_vlan(&self, name: &str, operation: &'static str, said: Vec<AfSpecBridge>) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Bridge;
        message.header.index = self.link(name)?.index;
        message.attributes.push(LinkAttribute::AfSpecBridge(said));
        self.change(RouteNetlinkMessage::SetLink(message), 0, operation, name)
    }
}
