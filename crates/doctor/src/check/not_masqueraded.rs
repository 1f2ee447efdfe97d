//! OV113: Tenants' packets to the outside keep their own source address.

use std::net::IpAddr;

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::host::{Filtered, Namespace, OUTSIDE, PassageKind};
use crate::view::{DeviceKey, sent_packets};
use netstate::route_table::{RouteKind, best_route};
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV113",
    title: "Tenants' packets leave with their own source",
    severity: Severity::Info,
    explanation: "Tenants with private addresses send packets that leave the host by its uplink, no \
        rule translates their source, and nothing comes back. Hosts outside mostly have no route to \
        the tenants' network. The rule for masquerading was flushed, or was never made \
        (flannel: --ip-masq, Docker: --ip-masq=true). It is a remark: where the \
        routers know the tenants' network, as with BGP or in a cloud, their own source is \
        right, and then the answers are missing for another reason.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let forwards = namespace.sysctls.get("net/ipv4/ip_forward").is_some_and(|on| on == "1");
        let routes = namespace.routes.get().map_or(&[][..], Vec::as_slice);
        let uplink = best_route(routes, OUTSIDE)
            .filter(|route| route.kind == RouteKind::Unicast && forwards)
            .and_then(|route| view.spot(DeviceKey { namespace: at, index: route.link? }));
        let Some(uplink) = uplink else { continue };
        // Only a sent packet shows that a route is in use, and other packets may take the tunnel.
        let sent = |device: DeviceRef<'_>| device.moved().map_or(0, |moved| moved.tx_packets);
        let by_tunnel =
            view.devices_of(at).any(|device| device.vxlan().is_some() && sent(device) > 0);
        if sent(uplink) == 0 || by_tunnel {
            continue;
        }
        for bridge in view.devices_of(at).filter(|device| device.kind() == "bridge") {
            if bridge.place == uplink.place || is_translated(namespace, bridge) {
                continue;
            }
            unanswered(view, outcome, bridge, uplink);
        }
    }
}

/// Whether a rule gives the tenants' packets another source, or may do so.
fn is_translated(namespace: &Namespace, bridge: DeviceRef<'_>) -> bool {
    // Without chains there are no rules.
    if namespace.chains.get().is_some_and(Vec::is_empty) {
        return false;
    }
    // Rules that were not read may translate.
    let Some(passages) = namespace.passages.get() else { return true };
    let mut asked = passages.iter().filter(|one| {
        one.kind == PassageKind::OutsideSource && one.input == bridge.interface.index
    });
    !asked.any(|one| one.verdict == Filtered::Passed)
}

/// Tenants of a bridge whose default route leads to it, that send and get nothing.
fn unanswered<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    bridge: DeviceRef<'a>,
    uplink: DeviceRef<'a>,
) {
    let own: Vec<IpAddr> = bridge.addresses().map(|known| known.address).collect();
    for port in view.ports(bridge) {
        let Some(tenant) =
            view.peer(port).filter(|peer| peer.place.namespace != port.place.namespace)
        else {
            continue;
        };
        let routes = tenant.namespace.routes.get().map_or(&[][..], Vec::as_slice);
        let leads_here = best_route(routes, OUTSIDE).is_some_and(|route| {
            route.link == Some(tenant.interface.index)
                && route.via.is_some_and(|via| own.contains(&via))
        });
        let Some(moved) = port.moved().filter(|_| leads_here) else { continue };
        // Without sent packets there is nothing to translate.
        if sent_packets(tenant.namespace) != Some(true) {
            continue;
        }
        // This device receives the packets that the tenant sends.
        if moved.rx_packets == 0 || moved.tx_packets > 0 {
            continue;
        }
        let private = tenant.addresses().map(|known| known.address).find(|address| match address {
            IpAddr::V4(four) => four.is_private(),
            IpAddr::V6(_) => false,
        });
        let Some(address) = private else { continue };
        let network = bridge.addresses().find(|known| known.address.is_ipv4());
        let Some(network) = network else { continue };
        let path = bridge.namespace.path.as_deref();
        let rule = |verb: &str| {
            let command = format!(
                "iptables -t nat -{verb} POSTROUTING -s {}/{} -o {} -j MASQUERADE",
                network.address,
                network.prefix,
                quote(uplink.name())
            );
            inside(path, &command)
        };
        outcome.add(
            CHECK
                .on(bridge)
                .evidence(
                    format!(
                        "{} {} ({address}) sent {} packets and got none; {} sent, no tunnel did",
                        tenant.namespace.label,
                        tenant.name(),
                        moved.rx_packets,
                        uplink.name()
                    ),
                    "IFLA_STATS64",
                )
                .evidence(
                    format!(
                        "no rule gives packets from {address} by {} another source",
                        uplink.name()
                    ),
                    "nftables, evaluated",
                )
                .cost(Cost::estimated(0.28, "packets of tenants to the outside"))
                .confidence(Confidence::Low)
                .by_hand(
                    rule("A"),
                    "hosts outside see the host's address in place of the tenant's",
                    rule("D"),
                ),
        );
        // One tenant stands for all of its bridge.
        return;
    }
}
