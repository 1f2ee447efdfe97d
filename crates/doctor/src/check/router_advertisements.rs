//! OV072: A host that forwards ignores router advertisements, and has no route to a VTEP.

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::host::{Namespace, TunnelPaths};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV072",
    title: "IPv6 route lost: advertisements are ignored",
    severity: Severity::Error,
    explanation: "There is no IPv6 route to a remote VTEP, and a NIC ignores router \
        advertisements: accept_ra is 1 while the host forwards. Container engines set \
        net.ipv6.conf.all.forwarding; the default route that came by an advertisement then \
        expires, mostly after half an hour. accept_ra = 2 accepts advertisements all the same.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, _) in view.tunnels() {
        let Some((ways, deaf)) = deaf(view, tunnel) else { continue };
        let lost: Vec<String> = ways
            .ways
            .iter()
            .filter(|(remote, way)| remote.is_ipv6() && way.get().is_none())
            .map(|(remote, _)| remote.to_string())
            .collect();
        let namespace = deaf.namespace;
        let key = setting(deaf.name());
        outcome.add(
            CHECK
                .on(deaf)
                .evidence(
                    format!("no IPv6 route to {}, remote of {}", lost.join(", "), tunnel.name()),
                    "RTM_GETROUTE",
                )
                .evidence(
                    format!(
                        "{} ignores router advertisements: accept_ra = 1 with forwarding = 1",
                        deaf.name()
                    ),
                    "/proc/sys",
                )
                .cost(Cost::estimated(1.0, "all packets to these remotes"))
                .confidence(Confidence::Medium)
                .set(
                    Change::sysctl(namespace, &key, "1", "2"),
                    "the route returns with the router's next advertisement",
                ),
        );
    }
}

fn setting(device: &str) -> String {
    format!("net/ipv6/conf/{device}/accept_ra")
}

/// Returns the routes of a tunnel that lacks an IPv6 route, and a NIC of its underlay that ignores
/// router advertisements.
pub(super) fn deaf<'a>(
    view: &View<'a>,
    tunnel: DeviceRef<'a>,
) -> Option<(&'a TunnelPaths, DeviceRef<'a>)> {
    let ways = view.ways(tunnel)?;
    ways.ways.iter().find(|(remote, way)| remote.is_ipv6() && way.get().is_none())?;
    let at = view.namespace(ways.underlay)?;
    let namespace: &Namespace = view.host().namespaces.get(at)?;
    // A default route exists, so another one is missing for another reason.
    let routes = namespace.routes.get()?;
    if routes.iter().any(|route| route.to.is_ipv6() && route.prefix == 0 && route.link.is_some()) {
        return None;
    }
    let is = |key: String, value: &str| namespace.sysctls.get(&key).is_some_and(|now| now == value);
    let deaf = view.devices_of(at).find(|spot| {
        let forwards = is(format!("net/ipv6/conf/{}/forwarding", spot.name()), "1");
        let addresses = namespace.addresses.get().into_iter().flatten();
        let mut own = addresses.filter(|known| known.link == spot.interface.index);
        let global = own.any(|known| match known.address {
            std::net::IpAddr::V6(address) => !address.is_unicast_link_local(),
            std::net::IpAddr::V4(_) => false,
        });
        spot.is_nic() && spot.interface.up && forwards && global && is(setting(spot.name()), "1")
    })?;
    Some((ways, deaf))
}
