//! OV104: A routing rule takes an overlay's packets to another device.

use std::net::IpAddr;

use super::{
    Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View, ip_command, is_link_local,
};
use crate::host::{Namespace, PassageKind};
use crate::view::DeviceKey;
use netstate::policy_rule::{MAIN, PolicyRule};
use netstate::route::Routed;
use netstate::route_table::{RouteEntry, RouteKind, covers};
use settings::command::inside;

pub(super) const CHECK: Check = Check {
    code: "OV104",
    title: "A routing rule takes packets away from the tunnel",
    severity: Severity::Warn,
    explanation: "The main routing table sends packets for another node's tenants through a \
        tunnel, but a rule (ip rule) with a smaller priority looks up another table first, and \
        that table has a route for the same addresses through another device. VPN programs and \
        set-ups with several NICs add such rules and tables. A rule that matches a mark is \
        evaluated with the mark that the packet filter sets: a proxy that was removed leaves rules \
        that deliver pods' packets to the host. Rules that match a user or a port are not \
        evaluated, because addresses alone do not decide whether they apply.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        marked(view, outcome, at, namespace);
        let (Some(routes), Some(rules)) = (namespace.routes.get(), namespace.rules.get()) else {
            continue;
        };
        let tunnels: Vec<DeviceRef<'_>> = view
            .devices_of(at)
            .filter(|device| device.vxlan().is_some() && device.interface.up)
            .collect();
        // Without routes into a tunnel no rule can take packets from it.
        if tunnels.is_empty() {
            continue;
        }
        // Networks that a rule is compared with are many; its own table is read once.
        let tenants = Tenants::of(view, at);
        let rules: Vec<(&PolicyRule, Vec<&RouteEntry>)> = rules
            .iter()
            .filter(|rule| tenants.are_selected(rule))
            .map(|rule| {
                let of_family = |route: &&RouteEntry| {
                    route.table == rule.table && route.to.is_ipv6() == rule.ipv6
                };
                (rule, routes.iter().filter(of_family).collect())
            })
            .collect();
        for tunnel in tunnels {
            let mut through = routes.iter().filter(|route| {
                route.link == Some(tunnel.interface.index)
                    && route.table == u32::from(MAIN_TABLE)
                    && route.prefix > 0
                    // Link-local addresses and groups do not lead to another node.
                    && !is_of_link(route.to)
            });
            // One of them proves the rule; a control plane has hundreds.
            let found = through.find_map(|route| {
                for (rule, table) in rules.iter().filter(|(rule, _)| selects(rule, route)) {
                    match taken(table, rule, route, tunnel) {
                        // The rule's table has no route for these addresses, so the next rule
                        // decides.
                        Taken::Not => {}
                        Taken::ToTunnel => return None,
                        other => return Some((route, *rule, other)),
                    }
                }
                None
            });
            let Some((route, rule, taken)) = found else { continue };
            outcome.add(described(tunnel, route, rule, &taken));
        }
    }
}

/// Packets between tenants and a tunnel that get a mark, and that a rule for the mark takes elsewhere.
fn marked(view: &View<'_>, outcome: &mut CheckOutcome, at: usize, namespace: &Namespace) {
    let passages = namespace.passages.get().into_iter().flatten();
    let forwarded = passages.filter(|one| one.kind == PassageKind::Forward && one.mark != 0);
    let mut reported = std::collections::BTreeSet::new();
    for passage in forwarded {
        let place = |index| DeviceKey { namespace: at, index };
        let name = |index| view.spot(place(index)).map(|device| device.name());
        let (Some(input), Some(output)) = (name(passage.input), name(passage.output)) else {
            continue;
        };
        let ends = match passage.routed.as_ref().map(crate::host::Reading::as_result) {
            Some(Ok(Routed::Here)) => "go to this host itself".to_owned(),
            Some(Ok(Routed::Out(link))) if *link != passage.output => match name(*link) {
                Some(other) => format!("leave by {other}"),
                None => continue,
            },
            // EINVAL is also the answer for a source that the device may not have.
            Some(Err(reason)) if reason.contains("UNREACH") || reason.contains("EACCES") => {
                "have no route".to_owned()
            }
            _ => continue,
        };
        // One rule takes the packets of many tenants.
        if !reported.insert((passage.input, passage.mark)) {
            continue;
        }
        let rules = namespace.rules.get().into_iter().flatten();
        let is_of_mark = |rule: &&PolicyRule| {
            rule.ipv6 == passage.to.is_ipv6()
                && rule.mark.is_some_and(|(mark, mask)| passage.mark & mask == mark)
        };
        // Another rule or table may be the cause.
        let Some(rule) = rules.into_iter().find(is_of_mark) else { continue };
        let (mark, mask) = rule.mark.unwrap_or_default();
        let lookup = match rule.drops {
            Some(kind) => kind.name().to_owned(),
            None => format!("lookup {}", rule.table),
        };
        let words = format!("fwmark {mark:#x}/{mask:#x} {lookup}");
        let family = ip_command(passage.to);
        let change = |verb: &str| {
            let command = format!("{family} rule {verb} {words} pref {}", rule.priority);
            inside(namespace.path.as_deref(), &command)
        };
        let Some(object) = view.spot(place(passage.input)) else { continue };
        outcome.add(
            CHECK
                .on(object)
                .evidence(
                    format!(
                        "the packet filter marks packets from {input} with {:#x}, for example {} \
                         to {}",
                        passage.mark, passage.from, passage.to
                    ),
                    "nftables, evaluated",
                )
                .evidence(
                    format!("rule {}: {words}; they {ends}, not by {output}", rule.priority),
                    "RTM_GETRULE, RTM_GETROUTE with the mark",
                )
                .cost(Cost::estimated(1.0, format!("packets from {input} to {output}")))
                .confidence(Confidence::Medium)
                .by_hand(change("del"), "a proxy that needs the rule stops working", change("add")),
        );
    }
}

/// `RT_TABLE_MAIN`.
const MAIN_TABLE: u8 = 254;

fn is_of_link(address: IpAddr) -> bool {
    address.is_multicast() || is_link_local(address)
}

/// Tenants of a namespace, as rules select their packets.
struct Tenants<'a> {
    /// Devices through which their packets come.
    fronts: Vec<&'a str>,
    /// Their addresses, and those of their bridges.
    addresses: Vec<IpAddr>,
}

impl<'a> Tenants<'a> {
    fn of(view: &View<'a>, namespace: usize) -> Tenants<'a> {
        let mut all = Tenants { fronts: Vec::new(), addresses: Vec::new() };
        for device in view.devices_of(namespace).filter(|device| device.vxlan().is_none()) {
            let peer = view.peer(device).filter(|peer| peer.place.namespace != namespace);
            // Other devices lead to no tenant.
            if device.kind() != "bridge" && peer.is_none() {
                continue;
            }
            all.fronts.push(device.name());
            // The other end of a NIC that is a veth device may be a switch's port.
            let tenant = peer.filter(|peer| peer.interface.master.is_none());
            let bridge = Some(device).filter(|device| device.kind() == "bridge");
            for owner in tenant.into_iter().chain(bridge) {
                all.addresses.extend(owner.addresses().map(|known| known.address));
            }
        }
        all
    }

    /// Whether a rule comes before that of the main table and may select their packets.
    fn are_selected(&self, rule: &PolicyRule) -> bool {
        let input = rule.input.as_ref().is_none_or(|name| self.fronts.contains(&name.as_str()));
        let from = rule
            .from
            .is_none_or(|from| self.addresses.iter().any(|address| covers(from, *address)));
        !rule.marked && rule.priority < MAIN && input && from
    }
}

/// Whether a rule selects packets to a route's network.
fn selects(rule: &PolicyRule, route: &RouteEntry) -> bool {
    let of_route = (route.to, route.prefix);
    rule.ipv6 == route.to.is_ipv6()
        && rule.to.is_none_or(|to| covers(to, route.to) || covers(of_route, to.0))
}

/// Effect of a rule on packets that the main table sends through a tunnel.
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

/// Effect of a rule, with the routes of its table, on packets of a route.
fn taken<'r>(
    table: &[&'r RouteEntry],
    rule: &PolicyRule,
    route: &RouteEntry,
    tunnel: DeviceRef<'_>,
) -> Taken<'r> {
    if let Some(kind) = rule.drops {
        return Taken::Dropped(kind);
    }
    let covering = table.iter().copied().filter(|other| other.covers(route.to));
    let best = covering.min_by_key(|other| (std::cmp::Reverse(other.prefix), other.metric));
    let is_taken = |best: &&RouteEntry| rule.suppress.is_none_or(|longest| best.prefix > longest);
    match best.filter(is_taken) {
        None => Taken::Not,
        Some(best) if best.link == Some(tunnel.interface.index) => Taken::ToTunnel,
        Some(best) => Taken::Elsewhere(best),
    }
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
    let family = ip_command(route.to);
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
        0 => finding.by_hand(whole("del"), "traffic that needs this rule stops", whole("add")),
        _ => finding.by_hand(own("add"), "one rule for each network of another node", own("del")),
    }
}
