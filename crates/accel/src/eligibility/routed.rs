//! Rules about VXLAN devices and tenants' devices that route packets.

use netstate::overlay::Overlay;

use super::{LinkCase, Verdict, VxlanCase};
use crate::model::{Family, Refusal};

pub(super) fn in_sandbox(case: &VxlanCase<'_>) -> Verdict {
    if case.view.number != 0 { Err(Refusal::RoutedInSandbox {}) } else { Ok(()) }
}

/// With several next hops, the kernel selects one by a hash that BPF programs cannot see.
pub(super) fn unsupported_route(case: &VxlanCase<'_>) -> Verdict {
    let overlay: &Overlay = &case.view.snapshot.overlay;
    // IPv6 routes affect IPv6 packets only, see `unsupported_ipv6_route`.
    match overlay.unsupported_routes.iter().find(|(to, ..)| to.is_ipv4()) {
        Some((network, length, what)) => {
            Err(Refusal::OddTenantRoute { network: *network, length: *length, what })
        }
        None => Ok(()),
    }
}

/// The route lookup of BPF programs ignores an MTU unless it is locked.
pub(super) fn route_mtu(case: &LinkCase<'_>) -> Verdict {
    if case.snapshot.overlay.route_mtus.contains(&case.index) {
        return Err(Refusal::RouteMtu { device: case.link.name.clone() });
    }
    Ok(())
}

pub(super) fn forwarding_off(case: &LinkCase<'_>) -> Verdict {
    let forwarding = case.snapshot.forwarding.get(&case.index);
    if forwarding.is_some_and(|forwarding| forwarding.ipv4) {
        return Ok(());
    }
    // The kernel would drop packets that arrive on this device.
    Err(Refusal::ForwardingOff { device: case.link.name.clone(), family: Family::V4 })
}

pub(super) fn unknown_peer(case: &LinkCase<'_>) -> Verdict {
    // The MAC address of the peer is the tenant's address.
    let peer = case.snapshot.peers.get(&case.index);
    if peer.and_then(|peer| peer.mac).is_some() { Ok(()) } else { Err(Refusal::UnknownPeer {}) }
}

/// `ip6_forward` checks the setting of all devices, the BPF lookup that of the single device.
pub(super) fn ipv6_forwarding_off(case: &LinkCase<'_>) -> Verdict {
    if case.snapshot.ipv6_forwarding_off { Err(Refusal::Ipv6ForwardingOff {}) } else { Ok(()) }
}

/// The proxy answers solicitations that the host would otherwise forward.
pub(super) fn neighbour_proxy(case: &LinkCase<'_>) -> Verdict {
    if case.snapshot.neighbour_proxy { Err(Refusal::NeighbourProxy {}) } else { Ok(()) }
}

pub(super) fn policy_routing_ipv6(case: &LinkCase<'_>) -> Verdict {
    match case.snapshot.overlay.rules6.first() {
        Some(rule) => Err(Refusal::PolicyRoutingIpv6 { rule: rule.clone() }),
        None => Ok(()),
    }
}

pub(super) fn unsupported_ipv6_route(case: &LinkCase<'_>) -> Verdict {
    match case.snapshot.overlay.unsupported_routes.iter().find(|(to, ..)| to.is_ipv6()) {
        Some((_, _, what)) => Err(Refusal::OddIpv6Route { what }),
        None => Ok(()),
    }
}

pub(super) fn device_forwards_no_ipv6(case: &LinkCase<'_>) -> Verdict {
    let forwarding = case.snapshot.forwarding.get(&case.index);
    if forwarding.is_some_and(|forwarding| forwarding.ipv6) {
        return Ok(());
    }
    Err(Refusal::ForwardingOff { device: case.link.name.clone(), family: Family::V6 })
}
