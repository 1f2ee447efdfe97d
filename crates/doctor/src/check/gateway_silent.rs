//! OV102: A tenant's gateway does not answer.

use std::net::IpAddr;

use super::bridge_port::is_uplink;
use super::{Check, CheckOutcome, Cost, DeviceRef, Finding, Severity, View, ip_command};
use netstate::entry::Address;
use netstate::route_table::{RouteEntry, covers};
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV102",
    title: "A tenant's gateway does not answer",
    severity: Severity::Error,
    explanation: "A tenant has a route through a gateway that does not answer ARP or neighbour \
        discovery, and the host's end shows why: the bridge has no such address, or the device \
        that must answer for the gateway has proxy ARP switched off, or no route to it. Packets to \
        all other networks are lost. A network plug-in was stopped halfway, the node's pod network \
        changed, or the address was removed.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for tenant in view.devices() {
        let Some(host) = view.peer(tenant) else { continue };
        // Two ends of one namespace are no tenant and host.
        if host.place.namespace == tenant.place.namespace || !host.interface.up {
            continue;
        }
        let routes = tenant.namespace.routes.get().map_or(&[][..], Vec::as_slice);
        let own = routes.iter().filter(|route| route.link == Some(tenant.interface.index));
        let mut judged: Vec<IpAddr> = Vec::new();
        for (route, gateway) in own.filter_map(|route| Some((route, route.via?))) {
            // Another check knows why a host that has the address does not answer.
            if judged.contains(&gateway) || !view.neighbour_with(tenant, gateway).is_empty() {
                continue;
            }
            judged.push(gateway);
            let failed = tenant.is_silent(gateway);
            // A tenant that asks nobody proves nothing where a router may not have been read.
            if !failed && !view.bridge(host).is_some_and(|bridge| is_closed(view, bridge)) {
                continue;
            }
            let finding = match view.bridge(host) {
                Some(bridge) => at_bridge(view, tenant, bridge, route, gateway),
                None => by_proxy(tenant, host, gateway),
            };
            let Some(finding) = finding else { continue };
            outcome.add(
                finding
                    .evidence(
                        format!(
                            "gateway {gateway} of {} {}{}",
                            tenant.namespace.label,
                            tenant.name(),
                            if failed { " does not answer" } else { " is on no device" }
                        ),
                        "RTM_GETROUTE, RTM_GETNEIGH",
                    )
                    .cost(Cost::estimated(
                        if route.prefix == 0 { 1.0 } else { 0.5 },
                        "packets of the tenant to other networks",
                    )),
            );
        }
    }
}

/// Whether all ports of a bridge lead to tenants that were read.
fn is_closed(view: &View<'_>, bridge: DeviceRef<'_>) -> bool {
    view.ports(bridge).all(|port| {
        view.peer(port).is_some_and(|peer| {
            peer.interface.master.is_none() && peer.place.namespace != port.place.namespace
        })
    })
}

/// A bridge that should have the gateway's address.
fn at_bridge<'a>(
    view: &View<'a>,
    tenant: DeviceRef<'a>,
    bridge: DeviceRef<'a>,
    route: &RouteEntry,
    gateway: IpAddr,
) -> Option<Finding> {
    // Through an uplink the gateway may be a router elsewhere.
    let has_uplink = view.ports(bridge).any(|port| {
        let other = view.peer(port).is_some_and(|peer| peer.interface.master.is_some());
        is_uplink(port) || other
    });
    // The gateway may be behind the uplink, on a host that was not read.
    if has_uplink {
        return None;
    }
    let own: Vec<&Address> =
        bridge.addresses().filter(|known| known.address.is_ipv4() == gateway.is_ipv4()).collect();
    let shown = match own.is_empty() {
        true => "no address".to_owned(),
        false => {
            let all: Vec<String> =
                own.iter().map(|known| format!("{}/{}", known.address, known.prefix)).collect();
            all.join(", ")
        }
    };
    let finding = CHECK
        .on(bridge)
        .evidence(format!("{} has {shown}, not {gateway}", bridge.name()), "RTM_GETADDR");
    let covers = |known: &Address, address| covers((known.address, known.prefix), address);
    let network = tenant.addresses().find(|known| covers(known, gateway))?;
    // With an address in the tenant's network, the bridge is right and the tenant is wrong.
    let right = own.iter().find(|known| covers(network, known.address));
    Some(match right {
        Some(right) => {
            let family = ip_command(gateway);
            let to = match route.prefix {
                0 => "default".to_owned(),
                prefix => format!("{}/{prefix}", route.to),
            };
            let set = |via| {
                let device = quote(tenant.name());
                let command = format!("{family} route replace {to} via {via} dev {device}");
                inside(tenant.namespace.path.as_deref(), &command)
            };
            finding.by_hand(
                set(right.address),
                "this tenant only: the program that set the route may set it again",
                set(gateway),
            )
        }
        None => {
            let address = |word: &str| {
                let device = quote(bridge.name());
                let command = format!("ip addr {word} {gateway}/{} dev {device}", network.prefix);
                inside(bridge.namespace.path.as_deref(), &command)
            };
            finding.by_hand(
                address("add"),
                "the program that manages the bridge may have another network for it now",
                address("del"),
            )
        }
    })
}

/// A routed device that should answer for the gateway.
fn by_proxy(tenant: DeviceRef<'_>, host: DeviceRef<'_>, gateway: IpAddr) -> Option<Finding> {
    // Neighbour discovery has entries for each address instead.
    if !gateway.is_ipv4() || tenant.addresses().next().is_none() {
        return None;
    }
    let key = format!("net/ipv4/conf/{}/proxy_arp", host.name());
    let all = host.namespace.sysctls.get("net/ipv4/conf/all/proxy_arp");
    let own = host.namespace.sysctls.get(&key)?;
    let is_on = |value: Option<&String>| value.is_some_and(|value| value != "0");
    if !is_on(Some(own)) && !is_on(all) {
        let set = |value| {
            // Names of devices may contain dots, but no slashes.
            let command = format!("sysctl -w {}={value}", quote(&key));
            inside(host.namespace.path.as_deref(), &command)
        };
        return Some(
            CHECK
                .on(host)
                .evidence(
                    format!("{}: proxy_arp = 0, so no host answers for {gateway}", host.name()),
                    key.clone(),
                )
                .by_hand(set(1), "the host answers for every address it has a route to", set(0)),
        );
    }
    let routes = host.namespace.routes.get()?;
    let leads = |route: &&RouteEntry| {
        route.covers(gateway) && route.link.is_some_and(|link| link != host.interface.index)
    };
    // The kernel answers for addresses that it would forward to another device.
    if routes.iter().any(|route| leads(&route)) {
        return None;
    }
    Some(CHECK.on(host).evidence(
        format!(
            "{}: proxy_arp = 1, but {} has no route to {gateway}, mostly the default route, and \
             so does not answer",
            host.name(),
            host.namespace.label
        ),
        "RTM_GETROUTE",
    ))
}
