//! OV078: A node has no route to the pods behind a tunnel, or drops packets to them.

use std::net::IpAddr;

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View, ip_command};
use crate::view::DeviceKey;
use netstate::entry::Knowledge;
use netstate::route_table::{RouteEntry, RouteKind};
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV078",
    title: "Packets to pods of another node have no route",
    severity: Severity::Error,
    explanation: "A control plane has set a fixed neighbour on a VXLAN device, but no route leads \
        to it through the device, or a route of type blackhole, unreachable or prohibit lies \
        inside a network that the device leads to, or inside the network of a host's or tenant's \
        own device. Such packets leave by another route, mostly the default route, or are dropped. \
        A network plug-in missed a node, the routes were flushed, or a blackhole of an earlier pod \
        network was left behind. Or one of several next hops of a route does not answer. Or a \
        route through the device gives the host's own packets a source address (src) that other \
        hosts have no route to. A blackhole for the node's own pods is correct, and is not \
        reported.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let tunnels: Vec<DeviceRef<'_>> = view
            .devices_of(at)
            .filter(|spot| spot.vxlan().is_some_and(|vxlan| !vxlan.external))
            .filter(|spot| spot.interface.up && spot.interface.master.is_none())
            .collect();
        if let Some(routes) = namespace.routes.get() {
            beside(view, outcome, at, routes);
        }
        // Without fixed neighbours no control plane has routes here.
        if tunnels.is_empty() {
            continue;
        }
        let Some(routes) = outcome.need(&namespace.label, &namespace.routes) else { continue };
        for tunnel in tunnels {
            missing(outcome, tunnel, routes);
            dropped(outcome, tunnel, routes);
            foreign_source(view, outcome, tunnel, routes);
            dead_hop(view, outcome, tunnel, routes);
        }
    }
}

fn is_through(route: &RouteEntry, tunnel: DeviceRef<'_>) -> bool {
    route.kind == RouteKind::Unicast && route.link == Some(tunnel.interface.index)
}

/// Neighbours on the tunnel that no route uses.
fn missing(outcome: &mut CheckOutcome, tunnel: DeviceRef<'_>, routes: &[RouteEntry]) {
    let known = tunnel.namespace.neighbours.get().into_iter().flatten();
    let fixed = known.filter(|known| {
        known.link == tunnel.interface.index
            && known.knowledge == Knowledge::Permanent
            && known.mac.is_some_and(|mac| mac.is_unicast())
    });
    for known in fixed {
        let address = known.address;
        // Every IPv6 device has a route for these.
        if matches!(address, IpAddr::V6(six) if six.is_unicast_link_local())
            || address.is_multicast()
        {
            continue;
        }
        let mut through = routes.iter().filter(|route| is_through(route, tunnel));
        // A route leads to the neighbour.
        if through.any(|route| route.via == Some(address) || route.covers(address)) {
            continue;
        }
        let covering = routes.iter().filter(|route| route.covers(address));
        let other = covering.max_by_key(|route| route.prefix);
        let text = match other {
            None => format!("no route to {address}"),
            Some(route) if route.kind != RouteKind::Unicast => {
                format!("route to {address}: {} {}/{}", route.kind.name(), route.to, route.prefix)
            }
            Some(route) => format!("the route to {address} is {}, not through it", text(route)),
        };
        let finding = CHECK
            .on(tunnel)
            .evidence(format!("fixed neighbour {address}"), "RTM_GETNEIGH")
            .evidence(text, "RTM_GETROUTE")
            .cost(Cost::estimated(1.0, "all packets to the pods behind this neighbour"));
        // Without a route of that kind, the length of the pods' network is unknown.
        let drops = other.filter(|route| route.kind != RouteKind::Unicast && route.prefix > 0);
        outcome.add(match drops {
            Some(route) => {
                let network = format!("{}/{}", route.to, route.prefix);
                let add = format!(
                    "ip route replace {network} via {address} dev {} onlink",
                    quote(tunnel.name())
                );
                let undo = format!("ip route replace {} {network}", route.kind.name());
                let path = tunnel.namespace.path.as_deref();
                finding.by_hand(
                    inside(path, &add),
                    "this node only; the program that set the route may set it again",
                    inside(path, &undo),
                )
            }
            None => finding,
        });
    }
}

/// A next hop that does not answer, beside the tunnel in a route of several next hops.
fn dead_hop<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    tunnel: DeviceRef<'a>,
    routes: &[RouteEntry],
) {
    let mut through = routes.iter().filter(|route| is_through(route, tunnel) && route.prefix > 0);
    let found = through.find_map(|route| {
        let same = |other: &&RouteEntry| {
            (other.to, other.prefix, other.metric, other.table, other.kind)
                == (route.to, route.prefix, route.metric, route.table, route.kind)
        };
        let hops: Vec<&RouteEntry> = routes.iter().filter(same).collect();
        let dead = hops.iter().find_map(|hop| {
            let place = DeviceKey { namespace: tunnel.place.namespace, index: hop.link? };
            let device = view.spot(place)?;
            let via = hop.via?;
            device.is_silent(via).then_some((device, via))
        })?;
        Some((route, hops.len(), dead))
    });
    let Some((route, hops, (device, via))) = found.filter(|(_, hops, _)| *hops > 1) else { return };
    outcome.add(
        CHECK
            .on(device)
            .evidence(
                format!(
                    "{}: {hops} next hops, of which {via} by {} does not answer",
                    text(route),
                    device.name()
                ),
                "RTM_GETROUTE, RTM_GETNEIGH: NUD_FAILED, or NUD_INCOMPLETE twice",
            )
            .cost(Cost::estimated(
                1.0 / hops as f64,
                "connections to these pods: the kernel chooses a next hop for each",
            )),
    );
}

/// Routes that give the host's own packets a source address that no other host has a way back to.
fn foreign_source<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    tunnel: DeviceRef<'a>,
    routes: &[RouteEntry],
) {
    for route in routes.iter().filter(|route| is_through(route, tunnel)) {
        let Some(source) = route.source else { continue };
        let mut owners = view.with_address(source);
        let owner = owners.find(|owner| owner.place.namespace == tunnel.place.namespace);
        // A bridge without ports serves nobody, so no other host has a route to its network. Other
        // addresses of the host may be known to them.
        let idle =
            owner.filter(|owner| owner.kind() == "bridge" && view.ports(*owner).next().is_none());
        let Some(idle) = idle else { continue };
        let family = ip_command(route.to);
        let set = |words: String| {
            let via = route.via.map_or_else(String::new, |via| format!(" via {via}"));
            let onlink = if route.via.is_some() { " onlink" } else { "" };
            let command = format!(
                "{family} route replace {}/{}{via} dev {}{onlink}{words}",
                route.to,
                route.prefix,
                quote(tunnel.name())
            );
            inside(tunnel.namespace.path.as_deref(), &command)
        };
        outcome.add(
            CHECK
                .on(tunnel)
                .severity(Severity::Warn)
                .evidence(
                    format!(
                        "{} has src {source}, the address of {}, which has no ports: other hosts \
                         have no route back through the tunnel",
                        text(route),
                        idle.name()
                    ),
                    "RTA_PREFSRC, RTM_GETADDR",
                )
                .cost(Cost::estimated(0.9, "this host's own packets to these pods"))
                .confidence(Confidence::Medium)
                .by_hand(
                    set(String::new()),
                    "this node only; the program that set the route may set it again",
                    set(format!(" src {source}")),
                ),
        );
    }
}

/// Routes that drop packets inside a network behind the tunnel.
fn dropped(outcome: &mut CheckOutcome, tunnel: DeviceRef<'_>, routes: &[RouteEntry]) {
    let drops = routes.iter().filter(|route| route.kind != RouteKind::Unicast);
    for drop in drops {
        let inside_of = |route: &&RouteEntry| {
            is_through(route, tunnel)
                && route.table == drop.table
                && route.prefix > 0
                && route.prefix < drop.prefix
                && route.covers(drop.to)
        };
        let Some(route) = routes.iter().find(inside_of) else { continue };
        // A more specific route to the host itself wins over the blackhole.
        if has_hosts_inside(routes, drop, route) {
            continue;
        }
        let risk = "packets to unused addresses leave through the tunnel";
        report(outcome, tunnel, drop, route, risk);
    }
}

/// Whether another device leads to hosts inside a route that drops packets: the node's own pods
/// have a more specific route, or an address inside it.
fn has_hosts_inside(routes: &[RouteEntry], drop: &RouteEntry, route: &RouteEntry) -> bool {
    routes.iter().any(|other| {
        other.kind == RouteKind::Unicast
            && other.link != route.link
            && other.prefix >= drop.prefix
            && drop.covers(other.to)
    })
}

fn report(
    outcome: &mut CheckOutcome,
    spot: DeviceRef<'_>,
    drop: &RouteEntry,
    route: &RouteEntry,
    risk: &'static str,
) {
    let network = format!("{}/{}", drop.to, drop.prefix);
    let family = ip_command(drop.to);
    let path = spot.namespace.path.as_deref();
    let kind = drop.kind.name();
    outcome.add(
        CHECK
            .on(spot)
            .evidence(
                format!("{kind} {network} drops packets inside {}", text(route)),
                "RTM_GETROUTE",
            )
            .cost(Cost::estimated(0.9, format!("all packets to {network}")))
            .by_hand(
                inside(path, &format!("{family} route del {kind} {network}")),
                risk,
                inside(path, &format!("{family} route add {kind} {network}")),
            ),
    );
}

/// Routes that drop packets to hosts of the network that a device other than a tunnel is in.
fn beside(view: &View<'_>, outcome: &mut CheckOutcome, at: usize, routes: &[RouteEntry]) {
    let drops = routes.iter().filter(|route| route.kind != RouteKind::Unicast && route.prefix > 0);
    for drop in drops {
        let covering = routes.iter().find(|route| {
            route.kind == RouteKind::Unicast
                && route.via.is_none()
                && route.table == drop.table
                && route.prefix > 0
                && route.prefix < drop.prefix
                && route.covers(drop.to)
        });
        // Nothing leads to these addresses, so the route drops nothing that would arrive.
        let Some((route, index)) = covering.and_then(|route| Some((route, route.link?))) else {
            continue;
        };
        let Some(spot) = view.spot(DeviceKey { namespace: at, index }) else { continue };
        // Routes inside a tunnel's network are judged above.
        if spot.interface.loopback
            || spot.vxlan().is_some()
            || has_hosts_inside(routes, drop, route)
        {
            continue;
        }
        report(outcome, spot, drop, route, "an administrator may block these hosts by the route");
    }
}

fn text(route: &RouteEntry) -> String {
    let network = match route.prefix {
        0 => "default".to_owned(),
        prefix => format!("{}/{prefix}", route.to),
    };
    route.via.map_or_else(|| network.clone(), |via| format!("{network} via {via}"))
}
