//! OV036: No route to a VTEP, or its neighbour does not answer.

use std::net::IpAddr;

use super::router_advertisements::deaf;
use super::{Check, CheckOutcome, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV036",
    title: "A remote end of the tunnel cannot be reached",
    severity: Severity::Error,
    explanation: "The VXLAN device sends to a remote VTEP, but the underlay has no route to it, or \
        the next hop does not answer ARP or neighbour discovery. The forwarding entry is stale, \
        the remote host is gone, or the underlay is broken. Or the device sends from an address \
        that the host has lost.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
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
        for underlay in view.underlays(tunnel) {
            // Without a gateway the remote itself is the next hop.
            let next = underlay.way.via.unwrap_or(underlay.remote);
            let failed = underlay.nic.is_silent(next);
            // OV051 reports a NIC that is down, also if it is the remote's.
            let down = view.with_address(next).any(|spot| !spot.interface.up);
            if !failed || down {
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
