//! OV105: A tunnel's packets expire at a router.

use super::{Check, CheckOutcome, Cost, Severity, View};
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV105",
    title: "A tunnel's packets expire at a router",
    severity: Severity::Error,
    explanation: "A VXLAN device sends outer packets with a time to live of one hop, and its remote \
        is behind a router. The router drops each packet and answers with an ICMP message that the \
        tunnel ignores. One hop is right for multicast groups of the local link, and was copied \
        from there.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.fixed_tunnels() {
        // Other values pass routers; a device that is down sends nothing.
        if vxlan.ttl != 1 || !tunnel.interface.up {
            continue;
        }
        let routed = view.underlays(tunnel).into_iter().find(|underlay| {
            underlay.way.via.is_some_and(|via| via != underlay.remote)
                && !underlay.remote.is_multicast()
        });
        let Some((remote, via)) = routed.and_then(|one| Some((one.remote, one.way.via?))) else {
            continue;
        };
        let set = |ttl: u8| {
            let command = format!("ip link set dev {} type vxlan ttl {ttl}", quote(tunnel.name()));
            inside(tunnel.namespace.path.as_deref(), &command)
        };
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence("ttl 1", "IFLA_VXLAN_TTL")
                .evidence(format!("the route to {remote} goes by router {via}"), "RTM_GETROUTE")
                .cost(Cost::estimated(1.0, format!("packets to {remote}")))
                .by_hand(set(64), "none: other tunnels use the system's default", set(1)),
        );
    }
}
