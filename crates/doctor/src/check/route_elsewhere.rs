//! OV103: A route to a tenant leads to another device.

use std::net::IpAddr;

use super::{
    Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View, ip_command, is_link_local,
};
use crate::host::OUTSIDE;
use crate::view::DeviceKey;
use netstate::route_table::best_route;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV103",
    title: "A route to a tenant leads to another device",
    severity: Severity::Error,
    explanation: "The host's route to the address of one of its tenants leads to a device that \
        does not lead to the tenant. Packets to the tenant are lost, or reach another tenant. The \
        route is left over from an earlier tenant, another network contains part of the tenant's \
        network, or the tenant moved. Or a tenant with two networks receives packets through one \
        and answers through the other, to which its default route leads: give it routes to the \
        networks of pods and services through the first.",
    run,
};

/// A tenant with two networks that gets packets by one and answers by the other, where nothing comes
/// back.
fn answers_elsewhere<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    tenant: DeviceRef<'a>,
    host: DeviceRef<'a>,
) {
    let routes = tenant.namespace.routes.get().map_or(&[][..], Vec::as_slice);
    let Some(default) = best_route(routes, OUTSIDE).filter(|route| route.prefix == 0) else {
        return;
    };
    let other = default.link.filter(|link| *link != tenant.interface.index);
    let other =
        other.and_then(|index| view.spot(DeviceKey { namespace: tenant.place.namespace, index }));
    let (Some(other), Some(here)) = (other, tenant.moved()) else { return };
    let Some(there) = other.moved() else { return };
    let has_tunnel = !host.namespace.tunnels.is_empty();
    let is_lost = here.rx_packets > 0
        && here.tx_packets == 0
        && there.tx_packets > 0
        && there.rx_packets == 0;
    if !has_tunnel || !is_lost {
        return;
    }
    let finding = CHECK
        .on(tenant)
        .severity(Severity::Warn)
        .evidence(
            format!(
                "the default route leads by {}; {} received +{} and sent nothing, {} sent +{} \
                 and received nothing",
                other.name(),
                tenant.name(),
                here.rx_packets,
                other.name(),
                there.tx_packets
            ),
            "RTM_GETROUTE, IFLA_STATS64",
        )
        .cost(Cost::estimated(0.9, "the tenant's answers to other networks"))
        .confidence(Confidence::Medium);
    let networks = behind_tunnels(view, host);
    let gateway = view.bridge(host).unwrap_or(host);
    let gateway = gateway.addresses().find(|known| known.address.is_ipv4());
    let (Some(gateway), false) = (gateway, networks.is_empty()) else {
        outcome.add(finding);
        return;
    };
    let routes = |verb: &str| {
        let commands = networks.iter().map(|network| {
            let (via, name) = (gateway.address, quote(tenant.name()));
            let command = format!("ip route {verb} {network} via {via} dev {name}");
            inside(tenant.namespace.path.as_deref(), &command)
        });
        commands.collect::<Vec<_>>().join(" && ")
    };
    outcome.add(finding.by_hand(
        routes("add"),
        "until the tenant restarts: set the routes where its second network is defined. Networks of \
         services need routes, too",
        routes("del"),
    ));
}

/// The first networks to which a host's routes lead through its tunnels.
fn behind_tunnels<'a>(view: &View<'a>, host: DeviceRef<'a>) -> Vec<String> {
    /// Networks that are named.
    const SHOWN: usize = 8;
    let is_tunnel = |link: u32| {
        let place = DeviceKey { namespace: host.place.namespace, index: link };
        view.spot(place).is_some_and(|device| device.vxlan().is_some())
    };
    let routes = host.namespace.routes.get().into_iter().flatten();
    let networks = routes
        .filter(|route| route.to.is_ipv4() && route.prefix > 0 && route.link.is_some_and(is_tunnel))
        .map(|route| format!("{}/{}", route.to, route.prefix));
    networks.take(SHOWN).collect()
}

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for tenant in view.devices() {
        let Some(host) = view.peer(tenant) else { continue };
        let is_tenant = host.place.namespace != tenant.place.namespace
            && tenant.interface.up
            && host.interface.up
            // A port of a bridge has no address of its own.
            && tenant.interface.master.is_none();
        let Some(routes) = host.namespace.routes.get().filter(|_| is_tenant) else { continue };
        answers_elsewhere(view, outcome, tenant, host);
        let right = view.bridge(host).unwrap_or(host);
        // A bridge without an address only switches the tenant's frames: the host's own routes do not
        // concern the tenant.
        if right.kind() == "bridge" && right.addresses().next().is_none() {
            continue;
        }
        for known in tenant.addresses() {
            let address = known.address;
            // Link-local addresses need no route.
            if is_link_local(address) {
                continue;
            }
            let Some(route) = best_route(routes, address) else { continue };
            // The route leads to the tenant's device, or to none.
            let Some(link) = route.link.filter(|link| *link != right.interface.index) else {
                continue;
            };
            // A default route is no statement about the tenant: the host need not reach it.
            if route.prefix == 0 || route.via.is_some() {
                continue;
            }
            let place = DeviceKey { namespace: host.place.namespace, index: link };
            let Some(device) = view.spot(place) else { continue };
            // The tenant is behind that device, for example behind its bridge.
            if is_behind(view, device, tenant, address) {
                continue;
            }
            let network = format!("{}/{}", route.to, route.prefix);
            let mut finding = CHECK
                .on(device)
                .evidence(
                    format!(
                        "{network} leads to {}; {address} is {} {}, behind {}",
                        device.name(),
                        tenant.namespace.label,
                        tenant.name(),
                        right.name()
                    ),
                    "RTM_GETROUTE, RTM_GETADDR",
                )
                .cost(Cost::estimated(1.0, "packets to this tenant"));
            if device.is_silent(address) {
                finding = finding
                    .evidence(format!("{address}: failed on {}", device.name()), "RTM_GETNEIGH");
            } else {
                // The tenant may be reached by other means, and nobody asked for it.
                finding = finding.severity(Severity::Warn).confidence(Confidence::Medium);
            }
            let host_route = if address.is_ipv4() { 32 } else { 128 };
            let run = |words: String| inside(host.namespace.path.as_deref(), &words);
            let family = ip_command(address);
            let replace = |device: DeviceRef<'_>| {
                format!(
                    "{family} route replace {address}/{host_route} dev {}",
                    quote(device.name())
                )
            };
            let undo = match route.prefix == host_route {
                true => replace(device),
                false => {
                    format!("{family} route del {address}/{host_route} dev {}", quote(right.name()))
                }
            };
            outcome.add(finding.by_hand(
                run(replace(right)),
                "this host only: the program that set the route may set it again",
                run(undo),
            ));
        }
    }
}

/// Whether a device leads to the tenant, or to another host with the address.
fn is_behind<'a>(
    view: &View<'a>,
    device: DeviceRef<'a>,
    tenant: DeviceRef<'a>,
    address: IpAddr,
) -> bool {
    let of_tenant = view.segment(tenant);
    let below = view.link(device).is_some_and(|below| view.segment(below) == of_tenant);
    // The tenant's other device has another address, and takes packets to this one.
    let other =
        view.peer(device).is_some_and(|peer| peer.place.namespace == tenant.place.namespace);
    view.segment(device) == of_tenant
        || below
        || other
        || !view.neighbour_with(device, address).is_empty()
}
