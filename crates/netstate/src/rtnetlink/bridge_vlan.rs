//! VLANs of a bridge with VLAN filtering, and the VNI of each VLAN on an `external` VXLAN device
//! (`CONFIG_BRIDGE_VLAN_FILTERING`).

use netlink_packet_route::link::{
    AfSpecBridge, BridgeFlag, BridgeVlanInfo, BridgeVlanInfoFlags, BridgeVlanTunnelInfo,
    InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, LinkAttribute,
    LinkExtentMask, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use packet::vlan::VlanId;
use packet::vxlan::Vni;
use serde::{Deserialize, Serialize};

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

/// VLANs in a row of which a bridge or a port is a member (`bridge vlan show`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vlans {
    /// Index of the bridge or port.
    pub link: u32,
    /// The first VLAN, 1 to 4094.
    pub first: u16,
    /// The last VLAN, 1 to 4094.
    pub last: u16,
    /// Untagged frames that come in belong to it.
    pub pvid: bool,
    /// Its frames leave untagged.
    pub untagged: bool,
}

impl Netlink {
    /// Lists the VLANs of all bridges and ports. A kernel without VLAN filtering has none.
    ///
    /// # Errors
    /// If the kernel refuses the dump.
    pub fn vlans(&self) -> Result<Vec<Vlans>> {
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Bridge;
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::BrvlanCompressed]));
        let mut all = Vec::new();
        let request = RouteNetlinkMessage::GetLink(message);
        self.dump(request, "list", "VLANs", |answer| {
            let RouteNetlinkMessage::NewLink(message) = answer else { return };
            for attribute in &message.attributes {
                if let LinkAttribute::AfSpecBridge(spec) = attribute {
                    all.extend(ranges(message.header.index, spec));
                }
            }
        })?;
        Ok(all)
    }

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

/// Joins the two attributes of a range. A single VLAN has one.
fn ranges(link: u32, spec: &[AfSpecBridge]) -> Vec<Vlans> {
    let mut begun = None;
    let mut all = Vec::new();
    for part in spec {
        let AfSpecBridge::VlanInfo(BridgeVlanInfo { flags, vid }) = *part else { continue };
        // A range has a second entry, for its end.
        if flags.contains(BridgeVlanInfoFlags::RangeBegin) {
            begun = Some(vid);
            continue;
        }
        let first = match flags.contains(BridgeVlanInfoFlags::RangeEnd) {
            true => begun.take().unwrap_or(vid),
            false => vid,
        };
        all.push(Vlans {
            link,
            first,
            last: vid,
            pvid: flags.contains(BridgeVlanInfoFlags::Pvid),
            untagged: flags.contains(BridgeVlanInfoFlags::Untagged),
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_two_attributes_and_a_single_vlan_one() {
        let info = |flags, vid| AfSpecBridge::VlanInfo(BridgeVlanInfo { flags, vid });
        let pvid = BridgeVlanInfoFlags::Pvid | BridgeVlanInfoFlags::Untagged;
        let spec = [
            info(pvid, 1),
            info(BridgeVlanInfoFlags::RangeBegin, 100),
            info(BridgeVlanInfoFlags::RangeEnd, 200),
            info(BridgeVlanInfoFlags::empty(), 300),
        ];
        let of = |first, last, flag| Vlans { link: 7, first, last, pvid: flag, untagged: flag };
        assert_eq!(ranges(7, &spec), [of(1, 1, true), of(100, 200, false), of(300, 300, false)]);
    }
}
