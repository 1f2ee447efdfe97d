//! The rules that refuse acceleration. Each is an independent function, listed by the object it
//! checks. If in doubt, refuse: the slow path is always correct.
//!
//! To add a rule, add a [`Refusal`](crate::model::Refusal) with the next free code of its hundred,
//! a function in the matching module, and its name in a list below.

mod address;
mod bridge;
mod filters;
mod foreign;
mod link;
mod routed;
mod tunnel;
mod underlay;
mod vxlan;

use netstate::interface::{Interface, Vxlan};

pub(crate) use tunnel::TunnelCase;
pub(crate) use underlay::UnderlayCase;

use crate::model::{NetnsSnapshot, NetnsView, Refusal};

/// Result of a rule: accepted, or the reason for the slow path.
pub(crate) type Verdict = Result<(), Refusal>;

/// A link to check.
#[derive(Clone, Copy)]
pub(crate) struct LinkCase<'a> {
    /// State of its namespace.
    pub(crate) snapshot: &'a NetnsSnapshot,
    /// Interface index.
    pub(crate) index: u32,
    pub(crate) link: &'a Interface,
}

/// A VXLAN device to check.
#[derive(Clone, Copy)]
pub(crate) struct VxlanCase<'a> {
    pub(crate) view: NetnsView<'a>,
    /// Interface index.
    pub(crate) index: u32,
    /// The device as a link.
    pub(crate) device: &'a Interface,
    /// The device as a VXLAN device.
    pub(crate) vxlan: &'a Vxlan,
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
/// Rules about a VXLAN device's paths to all its remote VTEPs.
pub(crate) type TunnelRules = [fn(&TunnelCase<'_>) -> Verdict];
/// Rules about the path to one remote VTEP.
pub(crate) type UnderlayRules = [fn(&UnderlayCase<'_>) -> Verdict];

/// Rules for every VXLAN device.
pub(crate) const VXLAN_DEVICE: &VxlanRules = &[
    vxlan::option,
    vxlan::unknown_attribute,
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
    filters::accounting,
    foreign::program,
    foreign::links_hidden,
    foreign::socket_lookup,
    foreign::security_module,
    foreign::selinux,
    filters::unexplained_hook,
    filters::other_filter,
    filters::ipsec,
    underlay::policy_routing,
    underlay::policy_routing_ipv6,
];

/// Rules for a VXLAN device that is a bridge port.
pub(crate) const BRIDGED_DEVICE: &VxlanRules = &[
    bridge::no_bridge,
    |case| bridge::of(case).map_or(Ok(()), |bridge| first(BRIDGE, &bridge)),
    |case| first(BRIDGE_PORT, &case.link()),
    bridge::neighbours_suppressed_beside,
];

/// Rules for a VXLAN device that is not a bridge port.
pub(crate) const ROUTED_DEVICE: &VxlanRules =
    &[routed::in_sandbox, routed::unsupported_route, |case| first(ROUTING_LINK, &case.link())];

/// Rules for a VXLAN device in relation to other devices and all its remote VTEPs.
pub(crate) const TUNNEL: &TunnelRules = &[tunnel::vni_taken, tunnel::several_underlays];

/// Rules for the path to one remote VTEP.
pub(crate) const UNDERLAY_ROUTE: &UnderlayRules = &[
    underlay::other_family,
    underlay::remote_address,
    underlay::no_route,
    underlay::unsupported_route,
    underlay::vrf,
    underlay::leads_into_tunnel,
    underlay::nic_without_ethernet,
    underlay::nic_down,
    underlay::nic_enslaved,
    underlay::nic_programs,
    underlay::nic_peer_programs,
    underlay::nic_frames_taken,
    underlay::no_source,
    underlay::unsupported_route_of_source,
    underlay::not_taken,
    underlay::rules,
    underlay::no_neighbour,
    underlay::ipv6_disabled,
];

/// Rules for foreign programs on a link, which the fast path would bypass.
const PROGRAMS: &LinkRules = &[link::tc_filters, link::tcx_program, link::xdp];

const BRIDGE: &LinkRules = &[
    bridge::vlan_filtering,
    bridge::option,
    bridge::unknown_attribute,
    bridge::routed_in_vrf,
    link::down,
    |case| first(PROGRAMS, case),
];

/// Rules for a bridge port, a VXLAN device or a tenant's.
const BRIDGE_PORT: &LinkRules = &[
    bridge::no_bridge_port,
    bridge::not_forwarding,
    bridge::unknown_port_attribute,
    bridge::port_option,
];

/// Rules for a tenant's bridge port.
pub(crate) const TENANT_PORT: &LinkRules = &[
    link::port_without_ethernet,
    link::port_down,
    |case| first(PROGRAMS, case),
    link::peer_xdp,
    |case| first(BRIDGE_PORT, case),
    bridge::tenant_neighbours_suppressed,
];

/// Rules for a device that routes packets and has no master.
const ROUTING_LINK: &LinkRules = &[routed::route_mtu, routed::forwarding_off, link::frames_taken];

/// Rules for a bridge of tenants whose packets are routed.
pub(crate) const ROUTING_BRIDGE: &LinkRules =
    &[|case| first(ROUTING_LINK, case), link::queueing_discipline, |case| first(BRIDGE, case)];

/// Rules for a tenant on a veth pair without a bridge.
pub(crate) const LONE_TENANT: &LinkRules = &[
    |case| first(ROUTING_LINK, case),
    link::down,
    |case| first(PROGRAMS, case),
    link::peer_xdp,
    routed::unknown_peer,
];

/// Rules for IPv6 packets that a device routes. IPv4 packets are not affected.
pub(crate) const IPV6_ROUTING: &LinkRules = &[
    routed::ipv6_forwarding_off,
    routed::neighbour_proxy,
    routed::policy_routing_ipv6,
    routed::unsupported_ipv6_route,
    routed::device_forwards_no_ipv6,
];

/// Frames may be delivered to a veth peer only if that bypasses no queueing discipline.
pub(crate) use link::queueing_discipline;

/// Returns the first refusal.
pub(crate) fn first<C>(rules: &[fn(&C) -> Verdict], case: &C) -> Verdict {
    rules.iter().try_for_each(|rule| rule(case))
}
