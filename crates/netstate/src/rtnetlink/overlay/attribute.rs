//! Attributes of VXLAN devices, bridges and their ports. Each is supported, irrelevant for unicast
//! packets, or reported by number.

use netlink_packet_core::Nla as _;
use netlink_packet_route::link::{
    BridgeBooleanOptionFlags, BridgePortState, InfoBridge, InfoBridgePort, InfoVxlan, MacVlanMode,
    VxlanDf,
};

use super::{BridgeDevice, BridgePort, VxlanDevice};

/// `IFLA_BR_PAD`, `IFLA_BRPORT_PAD`: padding to 8 bytes.
const BR_PAD: u16 = 40;
const BRPORT_PAD: u16 = 26;

/// Returns the name of a macvlan mode in `ip link`.
pub(super) fn macvlan(mode: Option<MacVlanMode>) -> &'static str {
    match mode {
        Some(MacVlanMode::Private) => "private",
        Some(MacVlanMode::Vepa) => "vepa",
        Some(MacVlanMode::Bridge) => "bridge",
        Some(MacVlanMode::Passthrough) => "passthru",
        Some(MacVlanMode::Source) => "source",
        _ => "unknown",
    }
}

pub(super) fn vxlan(data: Vec<InfoVxlan>) -> VxlanDevice {
    // Options missing from a dump are off, except IPv4 checksums: some versions report them as "on"
    // or not at all.
    let mut device = VxlanDevice { df: Some(false), ..VxlanDevice::default() };
    let (mut checksum4, mut checksum6) = (false, true);
    for attribute in data {
        let mut option = |name, on| device.options.extend(on_then(on, name));
        match attribute {
            InfoVxlan::Id(vni) => device.vni = vni,
            InfoVxlan::Group6(_) => device.ipv6 = true,
            InfoVxlan::Local6(local) => {
                device.ipv6 = true;
                device.local = Some(local.into());
            }
            InfoVxlan::Local(local) => device.local = Some(local.into()),
            InfoVxlan::Link(link) => device.link = (link != 0).then_some(link),
            InfoVxlan::Port(port) => device.port = port,
            InfoVxlan::PortRange(range) => device.source_ports = range,
            InfoVxlan::Ttl(ttl) => device.ttl = ttl,
            InfoVxlan::Tos(tos) => device.tos = tos,
            InfoVxlan::Learning(on) => device.learning = on,
            InfoVxlan::Ageing(seconds) => device.ageing = seconds,
            InfoVxlan::UDPCsum(on) => checksum4 = on,
            InfoVxlan::UDPZeroCsumTX(zero) => checksum6 = !zero,
            InfoVxlan::UDPZeroCsumRX(zero) => device.takes_zero_checksum = zero,
            InfoVxlan::Label(label) => device.label = label,
            // VXLAN_LABEL_FIXED is 0.
            InfoVxlan::LabelPolicy(policy) => option("flowlabel inherit", policy != 0),
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
            // No effect without remcsumtx and remcsumrx.
            InfoVxlan::RemCsumNoPartial
            // The default remote is also listed as an entry.
            | InfoVxlan::Group(_)
            // Affects learning only; changes of entries are notified.
            | InfoVxlan::Limit(_)
            // Notifications about missing entries; such packets take the slow path.
            | InfoVxlan::L2Miss(_)
            | InfoVxlan::L3Miss(_)
            // A remote VTEP that is the host itself has no unicast route.
            | InfoVxlan::Localbypass(_)
            // Reserved bits that the device tolerates; the fast path rejects any.
            | InfoVxlan::ReservedBits(_)
            // Affects multicast packets only.
            | InfoVxlan::McRoute(_) => {}
            other => device.unknown.push(other.kind()),
        }
    }
    device.checksum = if device.ipv6 { checksum6 } else { checksum4 };
    device
}

pub(super) fn bridge(data: &[InfoBridge]) -> BridgeDevice {
    let mut device = BridgeDevice::default();
    for attribute in data {
        match attribute {
            InfoBridge::VlanFiltering(on) => device.vlan_filtering = *on,
            InfoBridge::NfCallIpTables(on) | InfoBridge::NfCallIp6Tables(on) => {
                device.calls_filters |= *on;
            }
            InfoBridge::AgeingTime(time) => device.ageing = *time,
            InfoBridge::MultiBoolOpt(options) => {
                let mst = BridgeBooleanOptionFlags::MstEnable;
                device.options.extend(on_then(options.value.contains(mst), "mst_enable"));
                // Affects link-local addresses, multicast, notifications, and VLANs, which need
                // vlan_filtering.
                let known = mst
                    | BridgeBooleanOptionFlags::NoLinkLocalLearn
                    | BridgeBooleanOptionFlags::VlanMulticastSnooping
                    | BridgeBooleanOptionFlags::MdbOffloadFailNotif
                    | BridgeBooleanOptionFlags::FdbLocalVlan0;
                let rest = options.value.bits() & !known.bits();
                device.options.extend(on_then(rest != 0, "with an unknown number"));
            }
            // Affects multicast and link-local addresses, ARP, VLANs without filtering, and
            // spanning tree, whose result is in the ports' states.
            InfoBridge::GroupAddr(_)
            | InfoBridge::FdbFlush
            | InfoBridge::HelloTimer(_)
            | InfoBridge::TcnTimer(_)
            | InfoBridge::TopologyChangeTimer(_)
            | InfoBridge::GcTimer(_)
            | InfoBridge::MulticastMembershipInterval(_)
            | InfoBridge::MulticastQuerierInterval(_)
            | InfoBridge::MulticastQueryInterval(_)
            | InfoBridge::MulticastQueryResponseInterval(_)
            | InfoBridge::MulticastLastMemberInterval(_)
            | InfoBridge::MulticastStartupQueryInterval(_)
            | InfoBridge::ForwardDelay(_)
            | InfoBridge::HelloTime(_)
            | InfoBridge::MaxAge(_)
            | InfoBridge::StpState(_)
            | InfoBridge::MulticastHashElasticity(_)
            | InfoBridge::MulticastHashMax(_)
            | InfoBridge::MulticastLastMemberCount(_)
            | InfoBridge::MulticastStartupQueryCount(_)
            | InfoBridge::RootPathCost(_)
            | InfoBridge::Priority(_)
            | InfoBridge::VlanProtocol(_)
            | InfoBridge::GroupFwdMask(_)
            | InfoBridge::RootId(_)
            | InfoBridge::BridgeId(_)
            | InfoBridge::RootPort(_)
            | InfoBridge::VlanDefaultPvid(_)
            | InfoBridge::TopologyChange(_)
            | InfoBridge::TopologyChangeDetected(_)
            | InfoBridge::MulticastRouter(_)
            | InfoBridge::MulticastSnooping(_)
            | InfoBridge::MulticastQueryUseIfaddr(_)
            | InfoBridge::MulticastQuerier(_)
            | InfoBridge::NfCallArpTables(_)
            | InfoBridge::VlanStatsEnabled(_)
            | InfoBridge::MulticastStatsEnabled(_)
            | InfoBridge::MulticastIgmpVersion(_)
            | InfoBridge::MulticastMldVersion(_)
            | InfoBridge::VlanStatsPerPort(_)
            | InfoBridge::MulticastQuerierState(_)
            // Affects learning only; changes of entries are notified.
            | InfoBridge::FdbNLearned(_)
            | InfoBridge::FdbMaxLearned(_)
            | InfoBridge::StpMode(_) => {}
            other if other.kind() == BR_PAD => {}
            other => device.unknown.push(other.kind()),
        }
    }
    device
}

pub(super) fn port(data: &[InfoBridgePort]) -> BridgePort {
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
            InfoBridgePort::NeighSupress(on) => port.neigh_suppress = *on,
            InfoBridgePort::NeighVlanSuppress(on) => option("neigh_vlan_suppress", *on),
            InfoBridgePort::BackupPort(index) => option("backup_port", *index != 0),
            InfoBridgePort::BackupNextHopId(id) => option("backup_nhid", *id != 0),
            InfoBridgePort::MrpRingOpen(on) => option("mrp_ring_open", *on),
            InfoBridgePort::MrpInOpen(on) => option("mrp_in_open", *on),
            // Affects spanning tree frames, multicast, broadcast, ARP and addresses without an
            // entry.
            InfoBridgePort::Priority(_)
            | InfoBridgePort::Cost(_)
            | InfoBridgePort::Guard(_)
            | InfoBridgePort::Protect(_)
            | InfoBridgePort::FastLeave(_)
            | InfoBridgePort::Learning(_)
            | InfoBridgePort::UnicastFlood(_)
            | InfoBridgePort::ProxyARP(_)
            | InfoBridgePort::ProxyARPWifi(_)
            | InfoBridgePort::RootId(_)
            | InfoBridgePort::BridgeId(_)
            | InfoBridgePort::DesignatedPort(_)
            | InfoBridgePort::DesignatedCost(_)
            | InfoBridgePort::PortId(_)
            | InfoBridgePort::PortNumber(_)
            | InfoBridgePort::TopologyChangeAck(_)
            | InfoBridgePort::ConfigPending(_)
            | InfoBridgePort::MessageAgeTimer(_)
            | InfoBridgePort::ForwardDelayTimer(_)
            | InfoBridgePort::HoldTimer(_)
            | InfoBridgePort::Flush
            | InfoBridgePort::MulticastRouter(_)
            | InfoBridgePort::MulticastFlood(_)
            | InfoBridgePort::MulticastToUnicast(_)
            | InfoBridgePort::BroadcastFlood(_)
            | InfoBridgePort::GroupFwdMask(_)
            | InfoBridgePort::MulticastEhtHostsLimit(_)
            | InfoBridgePort::MulticastEhtHostsCnt(_)
            | InfoBridgePort::MulticastNGroups(_)
            | InfoBridgePort::MulticastMaxGroups(_)
            // Only effective with neigh_suppress.
            | InfoBridgePort::NeighForwardGrat(_) => {}
            other if other.kind() == BRPORT_PAD => {}
            other => port.unknown.push(other.kind()),
        }
    }
    port
}

fn on_then(on: bool, name: &'static str) -> Option<&'static str> {
    on.then_some(name)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use netlink_packet_core::DefaultNla;
    use netlink_packet_route::link::BridgeBooleanOptions;

    use super::*;

    #[test]
    fn checksums_are_those_of_the_underlay_s_family() {
        let both = [InfoVxlan::UDPCsum(false), InfoVxlan::UDPZeroCsumTX(false)];
        assert!(!vxlan(both.to_vec()).checksum);
        let six = [InfoVxlan::Local6(Ipv6Addr::LOCALHOST)];
        let device = vxlan([&both[..], &six].concat());
        assert!(device.checksum && device.ipv6 && !device.takes_zero_checksum);
    }

    #[test]
    fn an_unknown_attribute_is_reported() {
        let new = || DefaultNla::new(99, vec![0]);
        assert_eq!(vxlan(vec![InfoVxlan::Other(new())]).unknown, [99]);
        assert_eq!(bridge(&[InfoBridge::Other(new())]).unknown, [99]);
        assert_eq!(port(&[InfoBridgePort::Other(new())]).unknown, [99]);
        let padding = |kind| DefaultNla::new(kind, vec![]);
        assert!(bridge(&[InfoBridge::Other(padding(BR_PAD))]).unknown.is_empty());
        assert!(port(&[InfoBridgePort::Other(padding(BRPORT_PAD))]).unknown.is_empty());
    }

    #[test]
    fn group_attributes_are_no_options() {
        let bridge = bridge(&[InfoBridge::MulticastSnooping(true), InfoBridge::GroupFwdMask(8)]);
        assert!(bridge.options.is_empty() && bridge.unknown.is_empty());
        let port = port(&[InfoBridgePort::MulticastToUnicast(true), InfoBridgePort::Guard(true)]);
        assert!(port.options.is_empty() && port.unknown.is_empty());
    }

    #[test]
    fn options_that_this_kernel_may_lack_are_reported() {
        for (attribute, name) in [
            (InfoBridgePort::Locked(true), "locked"),
            (InfoBridgePort::Mab(true), "mab"),
            (InfoBridgePort::VlanTunnel(true), "vlan_tunnel"),
            (InfoBridgePort::BackupPort(7), "backup_port"),
            (InfoBridgePort::BackupNextHopId(7), "backup_nhid"),
            (InfoBridgePort::NeighVlanSuppress(true), "neigh_vlan_suppress"),
            (InfoBridgePort::MrpRingOpen(true), "mrp_ring_open"),
            (InfoBridgePort::MrpInOpen(true), "mrp_in_open"),
        ] {
            assert_eq!(port(&[attribute]).options, [name]);
        }
        let mst = BridgeBooleanOptions {
            value: BridgeBooleanOptionFlags::MstEnable,
            mask: BridgeBooleanOptionFlags::all(),
        };
        assert_eq!(bridge(&[InfoBridge::MultiBoolOpt(mst)]).options, ["mst_enable"]);
        assert!(bridge(&[InfoBridge::VlanFiltering(true)]).vlan_filtering);
    }

    #[test]
    fn a_flow_label_from_the_inner_packet_is_a_reported_option() {
        assert_eq!(vxlan(vec![InfoVxlan::LabelPolicy(1)]).options, ["flowlabel inherit"]);
        assert!(vxlan(vec![InfoVxlan::LabelPolicy(0)]).options.is_empty());
    }
}
