//! OV104: A routing rule takes an overlay's packets to another device.

use std::net::IpAddr;

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use netstate::policy_rule::{MAIN, PolicyRule};
use netstate::route_table::{RouteEntry, RouteKind};
use settings::command::inside;

pub(super) const CHECK: Check = Check {
    code: "OV104",
    title: "A routing rule takes packets away from the tunnel",
    severity: Severity::Warn,
    explanation: "The main routing table sends packets for another node's tenants through a \
        tunnel, but a rule (ip rule) with a smaller priority looks up another table first, and \
        that table has a route for the same addresses through another device. VPN programs and \
        set-ups with several NICs add such rules and tables. Rules that ask for a mark, a user or \
        a port are not judged: addresses do not tell whether they apply.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let (Some(routes), Some(rules)) = (namespace.routes.get(), namespace.rules.get()) else {
            continue;
        };
        let tunnels: Vec<DeviceRef<'_>> = view
            .devices_of(at)
            .filter(|device| device.vxlan().is_some() && device.interface.up)
            .collect();
        for tunnel in tunnels {
            let through = routes.iter().filter(|route| {
                route.link == Some(tunnel.interface.index)
                    && route.table == u32::from(MAIN_TABLE)
                    && route.prefix > 0
                    // Link-local addresses and groups do not lead to another node.
                    && !is_of_link(route.to)
            });
            // One of them proves the rule; a control plane has hundreds.
            let found = through.into_iter().find_map(|route| {
                let rules = rules.iter().filter(|rule| applies(view, tunnel, rule, route));
                for rule in rules {
                    match taken(routes, rule, route, tunnel) {
                        Taken::Not => {}
                        Taken::ToTunnel => return None,
                        other => return Some((route, rule, other)),
                    }
                }
                None
            });
            let Some((route, rule, taken)) = found else { continue };
            outcome.add(described(tunnel, route, rule, &taken));
        }
    }
}

/// `RT_TABLE_MAIN`.
const MAIN_TABLE: u8 = 254;

fn is_of_link(address: IpAddr) -> bool {
    address.is_multicast() || matches!(address, IpAddr::V6(six) if six.is_unicast_link_local())
}

/// Whether a rule comes before that of the main table and selects tenants' packets for a route's
/// network.
fn applies(view: &View<'_>, tunnel: DeviceRef<'_>, rule: &PolicyRule, route: &RouteEntry) -> bool {
    if rule.marked || rule.priority >= MAIN {
        return false;
    }
    let inside_of = |network: (IpAddr, u8), address| covers(network, address);
    let to =
        rule.to.is_none_or(|to| inside_of(to, route.to) || covers((route.to, route.prefix), to.0));
    // Devices of the tunnel's namespace through which its tenants' packets come.
    let mut fronts = view.devices_of(tunnel.place.namespace).filter(|device| {
        let is_host_end =
            view.peer(*device).is_some_and(|peer| peer.place.namespace != device.place.namespace);
        device.vxlan().is_none() && (device.kind() == "bridge" || is_host_end)
    });
    let input = rule.input.as_ref().is_none_or(|name| fronts.any(|front| front.name() == name));
    let from = rule.from.is_none_or(|from| {
        view.devices_of(tunnel.place.namespace)
            .filter(|device| device.kind() == "bridge")
            .map(|bridge| (bridge.namespace, bridge.interface.index))
            .chain(tenants(view, tunnel))
            .any(|(namespace, index)| {
                let mut all = namespace.addresses.get().into_iter().flatten();
                all.any(|known| known.link == index && inside_of(from, known.address))
            })
    });
    to && input && from
}

/// Tenants' ends of the veth pairs of a tunnel's namespace.
fn tenants<'v, 'a>(
    view: &'v View<'a>,
    tunnel: DeviceRef<'a>,
) -> impl Iterator<Item = (&'a crate::host::Namespace, u32)> + use<'v, 'a> {
    let own = view.devices_of(tunnel.place.namespace);
    let peers = own.filter_map(|device| view.peer(device));
    peers
        .filter(move |peer| peer.place.namespace != tunnel.place.namespace)
        .filter(|peer| peer.interface.master.is_none())
        .map(|peer| (peer.namespace, peer.interface.index))
}

/// What a rule does with packets instead of sending them through the tunnel.
enum Taken<'r> {
    /// A route of its table leads elsewhere.
    Elsewhere(&'r RouteEntry),
    /// It drops them.
    Dropped(RouteKind),
    /// Its route leads to the tunnel, and no later rule applies.
    ToTunnel,
    /// It has no route for them: the next rule applies.
    Not,
}

/// What a rule does with a network's packets.
fn taken<'r>(
    routes: &'r [RouteEntry],
    rule: &PolicyRule,
    route: &RouteEntry,
    tunnel: DeviceRef<'_>,
) -> Taken<'r> {
    if let Some(kind) = rule.drops {
        return Taken::Dropped(kind);
    }
    let table = routes.iter().filter(|other| other.table == rule.table && other.covers(route.to));
    let best = table.min_by_key(|other| (std::cmp::Reverse(other.prefix), other.metric));
    let is_taken = |best: &&RouteEntry| rule.suppress.is_none_or(|longest| best.prefix > longest);
    match best.filter(is_taken) {
        None => Taken::Not,
        Some(best) if best.link == Some(tunnel.interface.index) => Taken::ToTunnel,
        Some(best) => Taken::Elsewhere(best),
    }
}

fn covers((network, prefix): (IpAddr, u8), address: IpAddr) -> bool {
    let route = RouteEntry {
        to: network,
        prefix,
        kind: RouteKind::Unicast,
        via: None,
        link: None,
        table: 0,
        protocol: 0,
        metric: 0,
    };
    route.covers(address)
}

fn described(
    tunnel: DeviceRef<'_>,
    route: &RouteEntry,
    rule: &PolicyRule,
    taken: &Taken<'_>,
) -> crate::finding::Finding {
    let network = |to: IpAddr, prefix| match prefix {
        0 => "default".to_owned(),
        prefix => format!("{to}/{prefix}"),
    };
    let mut selector = match rule.from {
        Some((from, prefix)) => format!("from {from}/{prefix}"),
        None => "from all".to_owned(),
    };
    if let Some((to, prefix)) = rule.to {
        selector.push_str(&format!(" to {to}/{prefix}"));
    }
    if let Some(input) = &rule.input {
        selector.push_str(&format!(" iif {}", settings::command::quote(input)));
    }
    let family = if route.to.is_ipv4() { "ip" } else { "ip -6" };
    let action = match taken {
        Taken::Dropped(kind) => kind.name().to_owned(),
        _ => format!("lookup {}", rule.table),
    };
    let whole = |word: &str| {
        let command = format!("{family} rule {word} {selector} {action} pref {}", rule.priority);
        inside(tunnel.namespace.path.as_deref(), &command)
    };
    // A rule for the main table in front of it, for the tunnel's network only.
    let to = network(route.to, route.prefix);
    let before = rule.priority.saturating_sub(1);
    let own = |word: &str| {
        let command = format!("{family} rule {word} to {to} lookup main pref {before}");
        inside(tunnel.namespace.path.as_deref(), &command)
    };
    let main = format!("table main: {to} dev {}", tunnel.name());
    let routes = match taken {
        Taken::Elsewhere(other) => {
            let mut links = tunnel.namespace.interfaces.get().into_iter().flatten();
            let device = links
                .find(|link| Some(link.index) == other.link)
                .map_or_else(|| other.kind.name().to_owned(), |link| format!("dev {}", link.name));
            format!("table {}: {} {device}; {main}", rule.table, network(other.to, other.prefix))
        }
        _ => main,
    };
    let finding = CHECK
        .on(tunnel)
        .evidence(format!("rule {}: {selector} {action}", rule.priority), "RTM_GETRULE")
        .evidence(routes, "RTM_GETROUTE")
        .cost(Cost::estimated(1.0, format!("packets to {to}")))
        .confidence(Confidence::Medium);
    match rule.priority {
        // No rule comes before the first.
        0 => finding.by_hand(whole("del"), "what the rule is for stops", whole("add")),
        _ => finding.by_hand(own("add"), "one rule for each network of another node", own("del")),
    }
}
