//! OV082: A bridge of tenants has the network of another device.

use std::net::{IpAddr, Ipv4Addr};

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::view::DeviceKey;
use netstate::entry::Address;
use netstate::route_table::RouteEntry;

pub(super) const CHECK: Check = Check {
    code: "OV082",
    title: "A bridge's network overlaps another network",
    severity: Severity::Error,
    explanation: "A bridge of containers and another device of the namespace, mostly the NIC, have \
        IPv4 networks that overlap, and they are not one link. Packets to the common addresses go \
        to one of them: hosts of the LAN that have an address of the bridge's network cannot be \
        reached, or containers cannot. Docker chooses networks that are unused when it starts; \
        another network, such as a VPN, may have come later. Give the bridge another network \
        (Docker: bip, default-address-pools).",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let addresses = namespace.addresses.get().map_or(&[][..], Vec::as_slice);
        // Without a route of its own, an address attracts no packets (noprefixroute, a table of its
        // own).
        let routes = namespace.routes.get().map_or(&[][..], Vec::as_slice);
        let is_routed = |spot: DeviceRef<'_>, address: Ipv4Addr| {
            let index = Some(spot.interface.index);
            routes.iter().any(|route| {
                route.link == index && route.via.is_none() && route.covers(address.into())
            })
        };
        let networks: Vec<(DeviceRef<'_>, Ipv4Addr, u8)> = view
            .devices_of(at)
            .filter(|spot| spot.interface.up && spot.interface.master.is_none())
            .flat_map(|spot| {
                let own = addresses.iter().filter(move |known| known.link == spot.interface.index);
                own.filter_map(move |known| Some((spot, v4(known)?, known.prefix)))
            })
            // A single address is no network.
            .filter(|(spot, address, prefix)| {
                (1..31).contains(prefix) && is_routed(*spot, *address)
            })
            .collect();
        for (bridge, address, prefix) in &networks {
            // Only bridges of containers choose their networks automatically.
            if bridge.kind() != "bridge" {
                continue;
            }
            let has_tenants = view.ports(*bridge).any(|port| !port.is_physical());
            let other = networks.iter().find(|(spot, other, length)| {
                let is_pair = spot.place != bridge.place
                    && (spot.kind() != "bridge" || spot.place > bridge.place);
                is_pair
                    && !is_one_link(view, *spot, *bridge)
                    && overlap((*address, *prefix), (*other, *length))
            });
            if let Some(route) = behind_tunnel(view, *bridge, routes, (*address, *prefix)) {
                outcome.add(
                    CHECK
                        .on(*bridge)
                        .evidence(
                            format!(
                                "{} has {address}/{prefix}; {route} is behind a tunnel",
                                bridge.name()
                            ),
                            "RTM_GETADDR, RTM_GETROUTE",
                        )
                        .cost(Cost::estimated(0.95, "packets to the addresses of both networks")),
                );
                continue;
            }
            let Some((spot, other, length)) = other.filter(|_| has_tenants) else { continue };
            outcome.add(
                CHECK
                    .on(*bridge)
                    .evidence(
                        format!(
                            "{} has {address}/{prefix}, {} has {other}/{length}",
                            bridge.name(),
                            spot.name()
                        ),
                        "RTM_GETADDR, RTM_GETROUTE",
                    )
                    .cost(Cost::estimated(0.95, "packets to the addresses of both networks"))
                    .confidence(Confidence::Medium),
            );
        }
    }
}

/// A network of another node's tenants that a bridge's own network has a part of, and wins.
fn behind_tunnel(
    view: &View<'_>,
    bridge: DeviceRef<'_>,
    routes: &[RouteEntry],
    (address, prefix): (Ipv4Addr, u8),
) -> Option<String> {
    // A much larger network belongs to all nodes, and the bridge has this node's part.
    let lengths = prefix.saturating_sub(2).max(1)..=prefix;
    let found = routes.iter().find(|route| {
        let place = |index| DeviceKey { namespace: bridge.place.namespace, index };
        let device = route.link.and_then(|index| view.spot(place(index)));
        let IpAddr::V4(to) = route.to else { return false };
        lengths.contains(&route.prefix)
            && route.via.is_some()
            && device.is_some_and(|device| device.vxlan().is_some())
            && overlap((to, route.prefix), (address, prefix))
    })?;
    Some(format!("{}/{}", found.to, found.prefix))
}

fn v4(known: &Address) -> Option<Ipv4Addr> {
    match known.address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

/// Whether two devices are on one segment, or one is above the other.
fn is_one_link<'a>(view: &View<'a>, one: DeviceRef<'a>, other: DeviceRef<'a>) -> bool {
    let below = |spot| view.link(spot).map(|below| view.segment(below));
    let (a, b) = (view.segment(one), view.segment(other));
    a == b || below(one) == Some(b) || below(other) == Some(a)
}

fn overlap((one, length): (Ipv4Addr, u8), (other, other_length): (Ipv4Addr, u8)) -> bool {
    let shorter = u32::from(length.min(other_length));
    let mask = u32::MAX.checked_shl(32_u32.saturating_sub(shorter)).unwrap_or(0);
    u32::from(one) & mask == u32::from(other) & mask
}
