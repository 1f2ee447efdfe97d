//! Rules about bridges and their ports.

use netstate::interface::{Interface, PortState};

use super::{LinkCase, Verdict, VxlanCase};
use crate::model::Refusal;

/// Returns the bridge that a VXLAN device is a port of.
pub(super) fn of<'a>(case: &VxlanCase<'a>) -> Option<LinkCase<'a>> {
    let snapshot = case.view.snapshot;
    let index = case.device.master?;
    let link = snapshot.overlay.links.get(&index)?;
    link.bridge.is_some().then_some(LinkCase { snapshot, index, link })
}

pub(super) fn no_bridge(case: &VxlanCase<'_>) -> Verdict {
    match of(case) {
        Some(_) => Ok(()),
        // Bonds, teams and VRFs forward in ways that the programs do not implement.
        None => Err(Refusal::NoBridge { device: case.device.name.clone() }),
    }
}

pub(super) fn vlan_filtering(case: &LinkCase<'_>) -> Verdict {
    // The programs ignore VLAN tags, so a filtering bridge may decide differently.
    if case.link.bridge.as_ref().is_some_and(|bridge| bridge.vlan_filtering) {
        return Err(Refusal::VlanFiltering { bridge: case.link.name.clone() });
    }
    Ok(())
}

/// Refuses a bridge in a VRF if IP rules may see packets of its ports: rules that match routes or
/// types of addresses look these up in the VRF's table (`l3mdev_fib_table`), which this program does
/// not read.
pub(super) fn routed_in_vrf(case: &LinkCase<'_>) -> Verdict {
    let Some(master) = case.link.master else { return Ok(()) };
    let links = &case.snapshot.overlay.links;
    let why = if case.snapshot.filters_bridged(case.index) {
        "br_netfilter passes its packets to IP rules"
    } else if links.values().any(|link| link.vxlan.is_some() && link.master.is_none()) {
        // A route of the main table may lead from the device to the bridge.
        "a VXLAN device outside of bridges routes packets"
    } else {
        return Ok(());
    };
    let master = links.get(&master).map_or_else(|| master.to_string(), |link| link.name.clone());
    Err(Refusal::BridgeInVrf { bridge: case.link.name.clone(), master, why })
}

pub(super) fn option(case: &LinkCase<'_>) -> Verdict {
    match case.link.bridge.as_ref().and_then(|bridge| bridge.detail.option) {
        Some(option) => Err(Refusal::BridgeOption { bridge: case.link.name.clone(), option }),
        None => Ok(()),
    }
}

/// Refuses bridge attributes of kernels newer than this program.
pub(super) fn unknown_attribute(case: &LinkCase<'_>) -> Verdict {
    let unknown = case.link.bridge.as_ref().and_then(|bridge| bridge.detail.unknown);
    refuse_unknown(case, "bridge", unknown)
}

/// Refuses bridge port attributes of kernels newer than this program.
pub(super) fn unknown_port_attribute(case: &LinkCase<'_>) -> Verdict {
    let unknown = case.link.port.as_ref().and_then(|port| port.detail.unknown);
    refuse_unknown(case, "bridge port", unknown)
}

fn refuse_unknown(case: &LinkCase<'_>, of: &'static str, unknown: Option<u16>) -> Verdict {
    let device = || case.link.name.clone();
    match unknown {
        Some(number) => {
            // An unknown attribute may change forwarding.
            Err(Refusal::UnknownBridgeAttribute { device: device(), of, number })
        }
        None => Ok(()),
    }
}

pub(super) fn no_bridge_port(case: &LinkCase<'_>) -> Verdict {
    // Without port attributes, neither state nor options are known.
    if case.link.port.is_none() {
        return Err(Refusal::NoBridgePort { device: case.link.name.clone() });
    }
    Ok(())
}

pub(super) fn not_forwarding(case: &LinkCase<'_>) -> Verdict {
    // The kernel drops frames at a port in any other state.
    if case.link.port.as_ref().is_some_and(|port| port.state != PortState::Forwarding) {
        return Err(Refusal::NotForwarding { device: case.link.name.clone() });
    }
    Ok(())
}

pub(super) fn port_option(case: &LinkCase<'_>) -> Verdict {
    match case.link.port.as_ref().and_then(|port| port.detail.option) {
        Some(option) => Err(Refusal::BridgePortOption { device: case.link.name.clone(), option }),
        None => Ok(()),
    }
}

/// Refuses `neigh_suppress` on another VXLAN port of the bridge if this device's port lacks it. The
/// bridge then answers solicitations that arrive from this device for addresses behind the other
/// one (net/bridge/br_arp_nd_proxy.c, `br_do_suppress_nd`). It answers none that arrive on a port
/// with `neigh_suppress`.
pub(super) fn neighbours_suppressed_beside(case: &VxlanCase<'_>) -> Verdict {
    let suppressed = |link: &Interface| link.port.as_ref().is_some_and(|port| port.neigh_suppress);
    // Not in a bridge, or the bridge answers no solicitations from this port.
    if case.device.master.is_none() || suppressed(case.device) {
        return Ok(());
    }
    let beside = |link: &&Interface| link.master == case.device.master && link.vxlan.is_some();
    let mut links = case.view.snapshot.overlay.links.values().filter(beside);
    match links.find(|link| suppressed(link)) {
        Some(link) => {
            let option = "neigh_suppress";
            Err(Refusal::BridgePortOption { device: link.name.clone(), option })
        }
        None => Ok(()),
    }
}

/// Refuses `neigh_suppress` on a tenant's port. On the VXLAN device it is a property of the path to
/// the remote VTEPs ([`UnderlayRoute::proxy`](crate::model::UnderlayRoute)).
pub(super) fn tenant_neighbours_suppressed(case: &LinkCase<'_>) -> Verdict {
    // The bridge would answer the tenant's requests itself.
    if case.link.port.as_ref().is_some_and(|port| port.neigh_suppress) {
        let option = "neigh_suppress";
        return Err(Refusal::BridgePortOption { device: case.link.name.clone(), option });
    }
    Ok(())
}
