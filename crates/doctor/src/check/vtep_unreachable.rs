//! OV036: No route to a VTEP, or its neighbour does not answer.

use std::net::IpAddr;

use super::{Check, Cost, Outcome, Severity, Spot, View};
use crate::finding::Finding;
use netstate::entry::Knowledge;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV036",
    title: "A remote end of the tunnel cannot be reached",
    severity: Severity::Error,
    explanation: "The VXLAN device sends to a remote VTEP, but the underlay has no route to it, or \
        the next hop does not answer ARP or neighbour discovery. The forwarding entry is stale, \
        the remote host is gone, or the underlay is broken. A device with accept_ra 1 ignores \
        router advertisements once IPv6 forwarding is on, and loses its default route when the \
        last advertisement expires.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for (tunnel, _) in view.tunnels() {
        // Its routes were not read.
        let Some(ways) = view.ways(tunnel) else { continue };
        for (remote, way) in &ways.ways {
            if let Err(reason) = way.as_result() {
                let text = match reason.contains("ENETUNREACH") {
                    true => format!("no route to {remote}"),
                    false => format!("route to {remote}: {reason}"),
                };
                let finding = CHECK
                    .on(tunnel)
                    .evidence(text, "RTM_GETROUTE")
                    .cost(Cost::estimated(1.0, "all packets to this remote"));
                let deaf = remote.is_ipv6().then(|| ignores_routers(view, ways.underlay)).flatten();
                outcome.add(match deaf {
                    Some(nic) => explained(finding, nic),
                    None => finding,
                });
            }
        }
        for underlay in view.underlays(tunnel) {
            // Without a gateway the remote itself is the next hop.
            let next = underlay.way.via.unwrap_or(underlay.remote);
            let known = underlay.nic.namespace.neighbours.get().into_iter().flatten();
            let failed = known
                .filter(|known| known.link == underlay.nic.interface.index)
                .any(|known| known.address == next && known.knowledge == Knowledge::Failed);
            if !failed {
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
                        "RTM_GETNEIGH: NUD_FAILED",
                    )
                    .cost(Cost::estimated(1.0, "all packets to this remote")),
            );
        }
    }
}

/// Returns a NIC with a routed IPv6 address that ignores router advertisements because the namespace
/// forwards.
fn ignores_routers<'a>(view: &View<'a>, underlay: u64) -> Option<Spot<'a>> {
    let at = view.namespace(underlay)?;
    let addressed = |spot: &Spot<'_>| {
        let addresses = spot.namespace.addresses.get().into_iter().flatten();
        addresses
            .filter(|known| known.link == spot.interface.index)
            .any(|known| matches!(known.address, IpAddr::V6(six) if !six.is_unicast_link_local()))
    };
    let is = |spot: &Spot<'_>, key: &str| {
        let path = format!("net/ipv6/conf/{}/{key}", spot.name());
        spot.namespace.sysctls.get(&path).is_some_and(|value| value == "1")
    };
    view.devices_of(at).find(|spot| {
        spot.is_nic() && addressed(spot) && is(spot, "accept_ra") && is(spot, "forwarding")
    })
}

/// Adds the device that ignores router advertisements, and the fix.
fn explained(finding: Finding, nic: Spot<'_>) -> Finding {
    let key = format!("net/ipv6/conf/{}/accept_ra", nic.name());
    let text = "ignores router advertisements (forwarding = 1, accept_ra = 1)";
    finding.evidence(format!("{} {} {text}", nic.namespace.label, nic.name()), "/proc/sys").set(
        Change::sysctl(nic.namespace, &key, "1", "2"),
        "the default route returns with the next router advertisement, not at once; any \
             router on the link may then set it",
    )
}
