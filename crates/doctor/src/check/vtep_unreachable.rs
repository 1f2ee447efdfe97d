//! OV036: No route to a VTEP, or its neighbour does not answer.

use std::net::IpAddr;

use super::router_advertisements::deaf;
use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::host::{Filtered, PassageKind};
use netstate::interface::Vxlan;
use netstate::route_table::covers;
use settings::command::inside;

pub(super) const CHECK: Check = Check {
    code: "OV036",
    title: "A remote end of the tunnel cannot be reached",
    severity: Severity::Error,
    explanation: "The VXLAN device sends to a remote VTEP, but the underlay has no route to it, or \
        the next hop does not answer ARP or neighbour discovery. The forwarding entry is stale, \
        the remote host is gone, or the underlay is broken. Or the device sends from an address \
        that the host has lost, or is bound (dev) to a NIC behind which the remote is not. Or the \
        route to the remote leads by another NIC than that of the tunnel's address: a VPN client \
        or another default route took it. Or this \
        host answers no ARP request (arp_ignore 8), so the remote host cannot reach it.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    answers_nobody(view, outcome);
    for (tunnel, vxlan) in view.tunnels() {
        // Its routes were not read.
        let Some(ways) = view.ways(tunnel) else { continue };
        for (remote, way) in &ways.ways {
            // OV072 and OV051 report the cause.
            let explained = remote.is_ipv6() && deaf(view, tunnel).is_some()
                || view.tunnel_nic(tunnel).is_some_and(|nic| !nic.interface.up);
            if let (Err(reason), false) = (way.as_result(), explained) {
                // The kernel finds no route from an address that is not its own.
                let lost = vxlan.local.filter(|local| {
                    let underlay = view.namespace(ways.underlay);
                    view.with_address(*local).all(|device| Some(device.place.namespace) != underlay)
                });
                let (text, source) = match lost {
                    Some(local) => (
                        format!(
                            "{} sends from {local}, which no device of the underlay has",
                            tunnel.name()
                        ),
                        "RTM_GETADDR",
                    ),
                    None => (words(*remote, reason), "RTM_GETROUTE"),
                };
                outcome.add(
                    CHECK
                        .on(tunnel)
                        .evidence(text, source)
                        .cost(Cost::estimated(1.0, "all packets to this remote")),
                );
            }
        }
        wrong_device(view, outcome, tunnel, vxlan);
        wrong_route(view, outcome, tunnel, vxlan);
        for underlay in view.underlays(tunnel) {
            // Without a gateway the remote itself is the next hop.
            let next = underlay.way.via.unwrap_or(underlay.remote);
            let failed = underlay.nic.is_silent(next);
            // OV051 reports a NIC that is down, also if it is the remote's.
            let down = view.with_address(next).any(|spot| !spot.interface.up);
            // The other end's own setting is the cause, reported there.
            let deaf = view.with_address(next).any(|spot| ignored(spot).is_some());
            if !failed || down || deaf || is_translated(view, underlay.remote) {
                continue;
            }
            outcome.add(
                CHECK
                    .on(tunnel)
                    .evidence(
                        format!(
                            "{next}, next hop to {} through {} {}, does not answer",
                            underlay.remote,
                            underlay.nic.namespace.label,
                            underlay.nic.name()
                        ),
                        "RTM_GETNEIGH: NUD_FAILED, or NUD_INCOMPLETE twice",
                    )
                    .cost(Cost::estimated(1.0, "all packets to this remote")),
            );
        }
    }
}

/// A remote that the device seeks on the NIC that it is bound to, while the route leads elsewhere.
fn wrong_device<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    tunnel: DeviceRef<'a>,
    vxlan: &Vxlan,
) {
    let Some(bound) = view.tunnel_nic(tunnel).filter(|_| vxlan.device.is_some()) else { return };
    for underlay in view.underlays(tunnel) {
        let is_elsewhere = underlay.nic.place != bound.place
            && underlay.nic.place.namespace == bound.place.namespace;
        // Without a route through the NIC the kernel takes every remote for a neighbour.
        if !is_elsewhere || !bound.is_silent(underlay.remote) {
            continue;
        }
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(
                    format!(
                        "{} is bound to {} (dev), where {} does not answer; the route to it leads \
                         through {}",
                        tunnel.name(),
                        bound.name(),
                        underlay.remote,
                        underlay.nic.name()
                    ),
                    "IFLA_VXLAN_LINK, RTM_GETNEIGH, RTM_GETROUTE",
                )
                .cost(Cost::estimated(1.0, "all packets to this remote")),
        );
    }
}

/// A remote whose route leaves by another device than the one with the tunnel's local address.
fn wrong_route<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    tunnel: DeviceRef<'a>,
    vxlan: &Vxlan,
) {
    let Some(local) = vxlan.local else { return };
    for underlay in view.underlays(tunnel) {
        let mut owners = view.with_address(local);
        let home = owners
            .find(|home| home.place.namespace == underlay.nic.place.namespace && home.interface.up);
        // An address of the loopback device is meant for all NICs.
        let Some(home) = home.filter(|home| home.is_nic() && home.place != underlay.nic.place)
        else {
            continue;
        };
        // OV037 reports a remote that is this host itself.
        let mut remotes = view.with_address(underlay.remote);
        if remotes.any(|own| own.place.namespace == underlay.nic.place.namespace) {
            continue;
        }
        // A bridge or a VLAN above the NIC is one way with it.
        if view.segment(home) == view.segment(underlay.nic) {
            continue;
        }
        let is_beside = home.addresses().any(|known| {
            known.address == local && covers((known.address, known.prefix), underlay.remote)
        });
        let silent =
            tunnel.moved().is_some_and(|moved| moved.tx_packets > 0 && moved.rx_packets == 0);
        let text = format!(
            "{} sends from {local} of {}; the route to {} leads by {}",
            tunnel.name(),
            home.name(),
            underlay.remote,
            underlay.nic.name()
        );
        let finding = CHECK.on(tunnel).evidence(text, "RTM_GETROUTE, RTM_GETADDR");
        if is_beside {
            outcome.add(
                finding
                    .evidence(
                        format!("{} is in the network of {}", underlay.remote, home.name()),
                        "RTM_GETADDR",
                    )
                    .cost(Cost::estimated(1.0, "all packets to this remote")),
            );
        } else if silent {
            outcome.add(
                finding
                    .severity(Severity::Warn)
                    .evidence("it sent packets and received none", "IFLA_STATS64")
                    .cost(Cost::estimated(0.95, "all packets to this remote"))
                    .confidence(Confidence::Medium),
            );
        }
    }
}

/// Whether a host gives its tunnel's packets this source, which is nobody's: OV109 reports it.
fn is_translated(view: &View<'_>, remote: IpAddr) -> bool {
    let all = view.host().namespaces.iter().filter_map(|namespace| namespace.passages.get());
    all.flatten().any(|passage| {
        passage.kind == PassageKind::TunnelOut
            && matches!(passage.verdict, Filtered::Translated { to: Some(to), .. } if to == remote)
    })
}

/// The setting that keeps a device from answering any ARP request.
fn ignored(nic: DeviceRef<'_>) -> Option<String> {
    // The kernel takes the larger one. Smaller values leave requests for the NIC's own address.
    ["all", nic.name()].into_iter().find_map(|name| {
        let path = format!("net/ipv4/conf/{name}/arp_ignore");
        let value = nic.namespace.sysctls.get(&path)?.parse::<u32>().ok()?;
        (value >= 8).then_some(path)
    })
}

/// NICs of tunnels that answer no ARP request at all.
fn answers_nobody(view: &View<'_>, outcome: &mut CheckOutcome) {
    let mut nics = view.tunnel_nics();
    nics.sort_by_key(|nic| nic.place);
    nics.dedup_by_key(|nic| nic.place);
    for nic in nics {
        let Some(path) = ignored(nic) else { continue };
        outcome.add(
            CHECK
                .on(nic)
                .evidence(
                    format!(
                        "{} = 8: {} answers no ARP request, so other hosts cannot reach it",
                        path.replace('/', "."),
                        nic.name()
                    ),
                    format!("/proc/sys/{path}"),
                )
                .cost(Cost::estimated(1.0, "packets from other hosts"))
                .by_hand(
                    inside(
                        nic.namespace.path.as_deref(),
                        &format!("sysctl -w {}=0", path.replace('/', ".")),
                    ),
                    "the host answers for all its addresses on this NIC",
                    inside(
                        nic.namespace.path.as_deref(),
                        &format!("sysctl -w {}=8", path.replace('/', ".")),
                    ),
                ),
        );
    }
}

/// Describes why the kernel has no route to a remote.
fn words(remote: IpAddr, reason: &str) -> String {
    /// Answers of the kernel (`fib_props` in `net/ipv4/fib_semantics.c`).
    const KINDS: [(&str, &str); 3] =
        [("EHOSTUNREACH", "unreachable"), ("EACCES", "prohibit"), ("EINVAL", "blackhole")];
    if reason.contains("ENETUNREACH") {
        return format!("no route to {remote}");
    }
    match KINDS.iter().find(|(errno, _)| reason.contains(errno)) {
        Some((_, kind)) => format!("the route to {remote} is of type {kind}: packets are dropped"),
        None => format!("route to {remote}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_in_words() {
        let of = |reason: &str| words([10, 0, 0, 2].into(), reason);
        let kernel = "find route 10.0.0.2: Network is unreachable (ENETUNREACH)";
        assert_eq!(of(kernel), "no route to 10.0.0.2");
        let blackhole = of("find route 10.0.0.2: Invalid argument (EINVAL)");
        assert_eq!(blackhole, "the route to 10.0.0.2 is of type blackhole: packets are dropped");
        assert_eq!(of("namespace not found"), "route to 10.0.0.2: namespace not found");
    }
}
