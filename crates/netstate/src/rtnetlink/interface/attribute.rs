//! Parsing of link messages: the attributes of devices, bridges, VXLAN devices and bridge ports.
//!
//! Each attribute of the latter three is read, irrelevant for unicast packets, or reported by number.

use netlink_packet_core::Nla as _;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, BridgeBooleanOptionFlags, BridgePortState, BridgeQuerierState,
    BridgeStpState, InfoBridge, InfoBridgePort, InfoData, InfoGeneve, InfoMacVlan, InfoMacVtap,
    InfoPortData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
    LinkXdp, MacVlanMode, State, Stats64, VxlanDf, XdpAttached,
};
use packet::ethernet::MacAddr;

use super::{
    Bridge, Counters, Interface, Ipv6Settings, LinkDetail, Port, PortDetail, PortState, Vxlan,
    VxlanDetail,
};

/// `IFLA_BR_PAD`, `IFLA_BRPORT_PAD`: padding to 8 bytes.
const BR_PAD: u16 = 40;
const BRPORT_PAD: u16 = 26;

pub(super) fn interface(message: LinkMessage) -> Interface {
    let flags = message.header.flags;
    let running = flags.contains(LinkFlags::Up | LinkFlags::LowerUp);
    let mut link = Interface {
        index: message.header.index,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        noarp: flags.contains(LinkFlags::Noarp),
        detail: LinkDetail {
            ethernet: message.header.link_layer_type == LinkLayerType::Ether,
            running,
            promiscuous: flags.contains(LinkFlags::Promisc),
            ..LinkDetail::default()
        },
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
            LinkAttribute::OperState(State::Down) => link.carrier_is_new = link.carrier,
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
            LinkAttribute::IfAlias(alias) => link.detail.alias = Some(alias),
            LinkAttribute::Promiscuity(users) => link.detail.promiscuity = users,
            LinkAttribute::AfSpecUnspec(families) => link.detail.ipv6 = ipv6(&families),
            LinkAttribute::Xdp(attributes) => xdp(&mut link, &attributes),
            LinkAttribute::Stats64(stats) => link.counters = counters(&stats),
            LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|one| info(&mut link, one)),
            _ => {}
        }
    }
    link.counters.carrier_changes = carrier_changes;
    link
}

fn xdp(link: &mut Interface, attributes: &[LinkXdp]) {
    for attribute in attributes {
        match attribute {
            LinkXdp::ProgId(id) => link.xdp = Some(*id),
            LinkXdp::Attached(how) => {
                link.detail.xdp_attached |= *how != XdpAttached::None;
                // Unknown modes may be generic, too.
                let others = [XdpAttached::None, XdpAttached::Driver, XdpAttached::Hardware];
                link.detail.xdp_generic |= !others.contains(how);
            }
            _ => {}
        }
    }
}

/// Reads an attribute in `IFLA_LINKINFO`.
fn info(link: &mut Interface, info: &LinkInfo) {
    match info {
        LinkInfo::Kind(kind) => link.kind = Some(kind.to_string()),
        LinkInfo::Data(InfoData::Vxlan(data)) => link.vxlan = Some(vxlan(data)),
        LinkInfo::Data(InfoData::Geneve(data)) => {
            link.geneve_port = data.iter().find_map(|attribute| match attribute {
                InfoGeneve::Port(port) => Some(*port),
                _ => None,
            });
        }
        LinkInfo::Data(InfoData::MacVlan(data)) => {
            link.detail.macvlan =
                Some(macvlan(data.iter().find_map(|attribute| match attribute {
                    InfoMacVlan::Mode(mode) => Some(*mode),
                    _ => None,
                })));
        }
        LinkInfo::Data(InfoData::MacVtap(data)) => {
            link.detail.macvlan =
                Some(macvlan(data.iter().find_map(|attribute| match attribute {
                    InfoMacVtap::Mode(mode) => Some(*mode),
                    _ => None,
                })));
        }
        LinkInfo::Data(InfoData::Bridge(data)) => link.bridge = Some(bridge(data)),
        LinkInfo::PortData(InfoPortData::BridgePort(data)) => link.port = Some(port(data)),
        _ => {}
    }
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

/// Returns the name of a macvlan mode in `ip link`.
fn macvlan(mode: Option<MacVlanMode>) -> &'static str {
    match mode {
        Some(MacVlanMode::Private) => "private",
        Some(MacVlanMode::Vepa) => "vepa",
        Some(MacVlanMode::Bridge) => "bridge",
        Some(MacVlanMode::Passthrough) => "passthru",
        Some(MacVlanMode::Source) => "source",
        _ => "unknown",
    }
}

fn vxlan(data: &[InfoVxlan]) -> Vxlan {
    // Options missing from a dump are off, except checksums over IPv6.
    let detail = VxlanDetail { df: Some(false), ..VxlanDetail::default() };
    let mut device = Vxlan { checksum6: true, detail, ..Vxlan::default() };
    for attribute in data {
        let detail = &mut device.detail;
        let mut option = |name, on| first(&mut detail.option, on, name);
        match *attribute {
            InfoVxlan::Id(vni) => device.vni = vni,
            InfoVxlan::Local(local) => device.local = Some(local.into()),
            InfoVxlan::Local6(local) => device.local = Some(local.into()),
            InfoVxlan::Group(remote) => device.remote = Some(remote.into()),
            InfoVxlan::Group6(remote) => device.remote = Some(remote.into()),
            InfoVxlan::Link(link) => device.device = (link != 0).then_some(link),
            InfoVxlan::Port(port) => device.port = port,
            InfoVxlan::PortRange((low, high)) => {
                device.source_ports = (high != 0).then_some((low, high));
            }
            InfoVxlan::Ttl(ttl) => device.ttl = ttl,
            InfoVxlan::Tos(tos) => detail.tos = tos,
            InfoVxlan::Learning(on) => device.learning = on,
            InfoVxlan::Ageing(seconds) => detail.ageing = seconds,
            InfoVxlan::UDPCsum(on) => device.checksum = on,
            InfoVxlan::UDPZeroCsumTX(zero) => device.checksum6 = !zero,
            InfoVxlan::UDPZeroCsumRX(zero) => detail.takes_zero_checksum = zero,
            InfoVxlan::Label(label) => detail.label = label,
            // VXLAN_LABEL_FIXED is 0.
            InfoVxlan::LabelPolicy(policy) => option("flowlabel inherit", policy != 0),
            InfoVxlan::Df(VxlanDf::Unset) => detail.df = Some(false),
            InfoVxlan::Df(VxlanDf::Set) => detail.df = Some(true),
            InfoVxlan::Df(_) => detail.df = None,
            InfoVxlan::CollectMetadata(on) => {
                device.external = on;
                option("external", on);
            }
            InfoVxlan::Proxy(on) => device.proxy = Some(on),
            InfoVxlan::Rsc(on) => option("rsc", on),
            InfoVxlan::RemCsumTX(on) => option("remcsumtx", on),
            InfoVxlan::RemCsumRX(on) => option("remcsumrx", on),
            InfoVxlan::Vnifilter(on) => option("vnifilter", on),
            InfoVxlan::TtlInherit(value) => option("ttl inherit", value != 0),
            InfoVxlan::TtlInheritFlag => option("ttl inherit", true),
            // Present without a value.
            InfoVxlan::Gbp => {
                device.gbp = true;
                option("gbp", true);
            }
            InfoVxlan::Gpe => {
                device.gpe = true;
                option("gpe", true);
            }
            // No effect without remcsumtx and remcsumrx.
            InfoVxlan::RemCsumNoPartial
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
            ref other => first(&mut detail.unknown, true, other.kind()),
        }
    }
    device
}

fn bridge(data: &[InfoBridge]) -> Bridge {
    let mut device = Bridge::default();
    for attribute in data {
        let detail = &mut device.detail;
        match attribute {
            InfoBridge::VlanFiltering(on) => device.vlan_filtering = *on,
            InfoBridge::NfCallIpTables(on) => {
                device.call_iptables = *on;
                detail.calls_filters |= *on;
            }
            InfoBridge::NfCallIp6Tables(on) => detail.calls_filters |= *on,
            InfoBridge::StpState(state) => device.stp = *state != BridgeStpState::Disabled,
            InfoBridge::MulticastSnooping(on) => device.mcast_snooping = *on,
            InfoBridge::MulticastQuerier(on) => device.mcast_querier = *on,
            InfoBridge::MulticastQuerierState(state) => {
                let timer =
                    |one: &BridgeQuerierState| matches!(one, BridgeQuerierState::Ipv6OtherTimer(_));
                device.other_querier = state.iter().any(timer);
            }
            InfoBridge::AgeingTime(time) => detail.ageing = *time,
            InfoBridge::MultiBoolOpt(options) => {
                let mst = BridgeBooleanOptionFlags::MstEnable;
                first(&mut detail.option, options.value.contains(mst), "mst_enable");
                // Affects link-local addresses, multicast, notifications, and VLANs, which need
                // vlan_filtering.
                let known = mst
                    | BridgeBooleanOptionFlags::NoLinkLocalLearn
                    | BridgeBooleanOptionFlags::VlanMulticastSnooping
                    | BridgeBooleanOptionFlags::MdbOffloadFailNotif
                    | BridgeBooleanOptionFlags::FdbLocalVlan0;
                let rest = options.value.bits() & !known.bits();
                first(&mut detail.option, rest != 0, "with an unknown number");
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
            | InfoBridge::MulticastQueryUseIfaddr(_)
            | InfoBridge::NfCallArpTables(_)
            | InfoBridge::VlanStatsEnabled(_)
            | InfoBridge::MulticastStatsEnabled(_)
            | InfoBridge::MulticastIgmpVersion(_)
            | InfoBridge::MulticastMldVersion(_)
            | InfoBridge::VlanStatsPerPort(_)
            // Affects learning only; changes of entries are notified.
            | InfoBridge::FdbNLearned(_)
            | InfoBridge::FdbMaxLearned(_)
            | InfoBridge::StpMode(_) => {}
            other if other.kind() == BR_PAD => {}
            other => first(&mut detail.unknown, true, other.kind()),
        }
    }
    device
}

fn port(data: &[InfoBridgePort]) -> Port {
    let mut port = Port::default();
    for attribute in data {
        let PortDetail { option: named, unknown } = &mut port.detail;
        let mut option = |name, on: bool| first(named, on, name);
        match attribute {
            InfoBridgePort::State(state) => port.state = port_state(*state),
            InfoBridgePort::HairpinMode(on) => {
                port.hairpin = *on;
                option("hairpin", *on);
            }
            InfoBridgePort::Isolated(on) => {
                port.isolated = *on;
                option("isolated", *on);
            }
            InfoBridgePort::Locked(on) => {
                port.locked = *on;
                option("locked", *on);
            }
            InfoBridgePort::Learning(on) => port.learning = *on,
            InfoBridgePort::UnicastFlood(on) => port.flood = *on,
            InfoBridgePort::MulticastFlood(on) => port.mcast_flood = *on,
            InfoBridgePort::BroadcastFlood(on) => port.bcast_flood = *on,
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
            | InfoBridgePort::MulticastToUnicast(_)
            | InfoBridgePort::GroupFwdMask(_)
            | InfoBridgePort::MulticastEhtHostsLimit(_)
            | InfoBridgePort::MulticastEhtHostsCnt(_)
            | InfoBridgePort::MulticastNGroups(_)
            | InfoBridgePort::MulticastMaxGroups(_)
            // Only effective with neigh_suppress.
            | InfoBridgePort::NeighForwardGrat(_) => {}
            other if other.kind() == BRPORT_PAD => {}
            other => first(unknown, true, other.kind()),
        }
    }
    port
}

fn port_state(state: BridgePortState) -> PortState {
    match state {
        BridgePortState::Listening => PortState::Listening,
        BridgePortState::Learning => PortState::Learning,
        BridgePortState::Forwarding => PortState::Forwarding,
        BridgePortState::Blocking => PortState::Blocking,
        // A state of a newer kernel may pass nothing, too.
        _ => PortState::Disabled,
    }
}

/// Stores a value if the condition holds and there is none yet.
fn first<T>(found: &mut Option<T>, holds: bool, value: T) {
    if holds {
        found.get_or_insert(value);
    }
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
        rx_frame: stats.rx_frame_errors,
        rx_crc: stats.rx_crc_errors,
        tx_carrier: stats.tx_carrier_errors,
        rx_otherhost: stats.rx_otherhost_dropped,
        // An attribute of its own.
        carrier_changes: 0,
    }
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
        assert!(!vxlan(&both).sends_checksum());
        let six = [InfoVxlan::Local6(Ipv6Addr::LOCALHOST)];
        let device = vxlan(&[&both[..], &six].concat());
        assert!(device.sends_checksum() && device.is_ipv6() && !device.detail.takes_zero_checksum);
    }

    #[test]
    fn an_unknown_attribute_is_reported() {
        let new = || DefaultNla::new(99, vec![0]);
        assert_eq!(vxlan(&[InfoVxlan::Other(new())]).detail.unknown, Some(99));
        assert_eq!(bridge(&[InfoBridge::Other(new())]).detail.unknown, Some(99));
        assert_eq!(port(&[InfoBridgePort::Other(new())]).detail.unknown, Some(99));
        let padding = |kind| DefaultNla::new(kind, vec![]);
        assert!(bridge(&[InfoBridge::Other(padding(BR_PAD))]).detail.unknown.is_none());
        assert!(port(&[InfoBridgePort::Other(padding(BRPORT_PAD))]).detail.unknown.is_none());
    }

    #[test]
    fn group_attributes_are_no_options() {
        let bridge = bridge(&[InfoBridge::MulticastSnooping(true), InfoBridge::GroupFwdMask(8)]);
        assert!(bridge.detail.option.is_none() && bridge.detail.unknown.is_none());
        let port = port(&[InfoBridgePort::MulticastToUnicast(true), InfoBridgePort::Guard(true)]);
        assert!(port.detail.option.is_none() && port.detail.unknown.is_none());
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
            assert_eq!(port(&[attribute]).detail.option, Some(name));
        }
        let mst = BridgeBooleanOptions {
            value: BridgeBooleanOptionFlags::MstEnable,
            mask: BridgeBooleanOptionFlags::all(),
        };
        assert_eq!(bridge(&[InfoBridge::MultiBoolOpt(mst)]).detail.option, Some("mst_enable"));
        assert!(bridge(&[InfoBridge::VlanFiltering(true)]).vlan_filtering);
    }

    #[test]
    fn a_flow_label_from_the_inner_packet_is_a_reported_option() {
        assert_eq!(vxlan(&[InfoVxlan::LabelPolicy(1)]).detail.option, Some("flowlabel inherit"));
        assert!(vxlan(&[InfoVxlan::LabelPolicy(0)]).detail.option.is_none());
    }
}
