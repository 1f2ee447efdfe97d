//! What keeps something slow: rules, each a function by itself, in lists by what they are
//! asked about. When in doubt, refuse: the slow path is always right.
//!
//! To add a rule: a [`Refusal`](crate::model::Refusal) with the next code of its hundred, a
//! function beside its like, and its name in one of the lists below.

mod address;
mod bridge;
mod filters;
mod foreign;
mod link;
mod routed;
mod tunnel;
mod underlay;
mod vxlan;

use netstate::overlay::{Device, VxlanDevice};

pub(crate) use tunnel::TunnelCase;
pub(crate) use underlay::UnderlayCase;

use crate::model::{NetnsSnapshot, NetnsView, Refusal};

/// What a rule says: nothing, or why something stays slow.
pub(crate) type Verdict = Result<(), Refusal>;

/// A link that is asked about.
#[derive(Clone, Copy)]
pub(crate) struct LinkCase<'a> {
    /// The state of its namespace.
    pub(crate) snapshot: &'a NetnsSnapshot,
    /// Its index.
    pub(crate) index: u32,
    /// Itself.
    pub(crate) link: &'a Device,
}

/// A VXLAN device that is asked about.
#[derive(Clone, Copy)]
pub(crate) struct VxlanCase<'a> {
    /// Its namespace.
    pub(crate) view: NetnsView<'a>,
    /// Its index.
    pub(crate) index: u32,
    /// Itself as a link.
    pub(crate) device: &'a Device,
    /// Itself as a VXLAN device.
    pub(crate) vxlan: &'a VxlanDevice,
}

impl<'a> VxlanCase<'a> {
    fn link(&self) -> LinkCase<'a> {
        LinkCase { snapshot: self.view.snapshot, index: self.index, link: self.device }
    }
}

/// Rules about a link.
pub(crate) type LinkRules = [fn(&LinkCase<'_>) -> Verdict];
/// Rules about a VXLAN device.
pub(crate) type VxlanRules = [fn(&VxlanCase<'_>) -> Verdict];
/// Rules about a VXLAN device's way to all its remote VTEPs.
pub(crate) type TunnelRules = [fn(&TunnelCase<'_>) -> Verdict];
/// Rules about the way to one remote VTEP.
pub(crate) type UnderlayRules = [fn(&UnderlayCase<'_>) -> Verdict];

/// Of a VXLAN device, whatever is in front of it.
pub(crate) const VXLAN_DEVICE: &VxlanRules = &[
    vxlan::option,
    vxlan::unknown_attribute,
    vxlan::inherited_type_of_service,
    vxlan::inherited_dont_fragment,
    vxlan::own_address,
    vxlan::underlay_elsewhere,
    vxlan::down,
    vxlan::no_crossing,
    |case| first(PROGRAMS, &case.link()),
    |case| link::queueing_discipline(&case.link()),
    filters::base_chain,
    filters::rules_not_understood,
    filters::no_connections,
    foreign::program,
    foreign::links_hidden,
    foreign::socket_lookup,
    foreign::security_module,
    filters::unexplained_hook,
    filters::other_filter,
    filters::ipsec,
    underlay::policy_routing,
    underlay::policy_routing_ipv6,
];

/// Of a VXLAN device that is a port.
pub(crate) const BRIDGED_DEVICE: &VxlanRules = &[
    bridge::no_bridge,
    |case| bridge::of(case).map_or(Ok(()), |bridge| first(BRIDGE, &bridge)),
    |case| first(BRIDGE_PORT, &case.link()),
    bridge::neighbours_suppressed_beside,
];

/// Of a VXLAN device that is no port.
pub(crate) const ROUTED_DEVICE: &VxlanRules =
    &[routed::in_sandbox, routed::odd_route, |case| first(ROUTING_LINK, &case.link())];

/// Of a VXLAN device beside the other ones, and all its remote VTEPs.
pub(crate) const TUNNEL: &TunnelRules = &[tunnel::vni_taken, tunnel::several_underlays];

/// Of the way to one remote VTEP.
pub(crate) const UNDERLAY_ROUTE: &UnderlayRules = &[
    underlay::other_family,
    underlay::remote_address,
    underlay::no_route,
    underlay::odd_route,
    underlay::vrf,
    underlay::leads_into_tunnel,
    underlay::nic_without_ethernet,
    underlay::nic_down,
    underlay::nic_enslaved,
    underlay::nic_programs,
    underlay::no_source,
    underlay::odd_route_of_source,
    underlay::not_taken,
    underlay::rules,
    underlay::no_neighbour,
    underlay::ipv6_disabled,
];

/// Programs of others on a link that would pass it by.
const PROGRAMS: &LinkRules = &[link::tc_filters, link::tcx_program, link::xdp];

/// Of a bridge.
const BRIDGE: &LinkRules =
    &[bridge::vlan_filtering, bridge::option, bridge::unknown_attribute, link::down, |case| {
        first(PROGRAMS, case)
    }];

/// Of a bridge's port, a VXLAN device or a tenant's.
const BRIDGE_PORT: &LinkRules = &[
    bridge::no_bridge_port,
    bridge::not_forwarding,
    bridge::unknown_port_attribute,
    bridge::port_option,
];

/// Of a tenant's device that is a bridge's port.
pub(crate) const TENANT_PORT: &LinkRules = &[
    link::port_without_ethernet,
    link::port_down,
    |case| first(PROGRAMS, case),
    |case| first(BRIDGE_PORT, case),
    bridge::tenant_neighbours_suppressed,
];

/// Of a device that packets are routed from or to, and that belongs to no other.
const ROUTING_LINK: &LinkRules = &[routed::route_mtu, routed::forwarding_off];

/// Of a bridge of tenants whose packets are routed.
pub(crate) const ROUTING_BRIDGE: &LinkRules =
    &[|case| first(ROUTING_LINK, case), link::queueing_discipline, |case| first(BRIDGE, case)];

/// Of a tenant behind a veth pair that is no bridge's port.
pub(crate) const LONE_TENANT: &LinkRules = &[
    |case| first(ROUTING_LINK, case),
    link::down,
    |case| first(PROGRAMS, case),
    routed::unknown_peer,
];

/// Of IPv6 packets that are routed at a device; IPv4 packets are not concerned.
pub(crate) const IPV6_ROUTING: &LinkRules = &[
    routed::ipv6_forwarding_off,
    routed::neighbour_proxy,
    routed::policy_routing_ipv6,
    routed::odd_ipv6_route,
    routed::device_forwards_no_ipv6,
];

/// A veth's peer may be handed frames only where no queueing discipline is passed by.
pub(crate) use link::queueing_discipline;

/// What the first rule says that says something.
pub(crate) fn first<C>(rules: &[fn(&C) -> Verdict], case: &C) -> Verdict {
    rules.iter().try_for_each(|rule| rule(case))
}
