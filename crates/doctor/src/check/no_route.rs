//! OV099: IPv4 packets have no route.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::host::Namespace;

pub(super) const CHECK: Check = Check {
    code: "OV099",
    title: "Packets have no route",
    severity: Severity::Info,
    explanation: "A namespace dropped IPv4 packets between the two readings because no route leads \
        to their destination, or a policy rule (ip rule) calls it unreachable. OutNoRoutes counts \
        packets of the namespace's own programs: a tenant without a default route reaches its own \
        network only. InNoRoutes counts packets that it should forward. It is a remark, because \
        tenants of an internal network have no default route on purpose.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (namespace, moved) in outcome.moved(view) {
        let counts = [
            ("IpExt InNoRoutes", moved.ip_ext.in_no_routes),
            ("Ip OutNoRoutes", moved.ip.out_no_routes),
        ];
        for (name, count) in counts.iter().filter(|(_, count)| *count > 0) {
            let finding = CHECK
                .in_namespace(namespace, "routes")
                .evidence(format!("{name} +{count}"), "/proc/net/snmp, netstat")
                .cost(Cost::estimated(0.3, "packets to these destinations"))
                .confidence(Confidence::Medium);
            outcome.add(match has_default(namespace) {
                false => finding.evidence("no default route", "RTM_GETROUTE"),
                true => finding,
            });
        }
    }
}

/// Whether an IPv4 default route is known. Unread routes prove nothing.
fn has_default(namespace: &Namespace) -> bool {
    namespace.routes.get().is_none_or(|routes| {
        routes.iter().any(|route| route.prefix == 0 && route.to.is_ipv4() && route.link.is_some())
    })
}
