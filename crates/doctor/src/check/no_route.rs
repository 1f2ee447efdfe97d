//! OV099: IPv4 packets have no route.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::host::Namespace;
use netstate::snmp::Counters;

/// The namespace answers no echo request.
const IGNORES_ECHO: &str = "net/ipv4/icmp_echo_ignore_all";

pub(super) const CHECK: Check = Check {
    code: "OV099",
    title: "Packets have no route",
    severity: Severity::Info,
    explanation: "A namespace dropped IPv4 packets between the two readings because no route leads \
        to their destination, or a policy rule (ip rule) calls it unreachable. OutNoRoutes counts \
        packets of the namespace's own programs and answers to TCP connections: a tenant without a \
        default route reaches its own network only. InNoRoutes counts packets that it should \
        forward. It is a remark, because tenants of an internal network have no default route on \
        purpose. Answers to echo requests without a route are in no counter. A namespace \
        without a default route that received more echo requests than it answered gets a warning: \
        another network sends to it, and it has no route for the replies.",
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
        unanswered(outcome, namespace, &moved);
    }
}

/// Echo requests whose answers have no route. The kernel counts neither the answer nor its loss.
fn unanswered(outcome: &mut CheckOutcome, namespace: &Namespace, moved: &Counters) {
    let (asked, answered) = (moved.icmp.in_echos, moved.icmp.out_echo_reps);
    // Requests to all hosts are not answered (net.ipv4.icmp_echo_ignore_broadcasts).
    let to_all = moved.ip_ext.in_bcast_pkts.saturating_add(moved.ip_ext.in_mcast_pkts);
    let is_silent = namespace.sysctls.get(IGNORES_ECHO).is_some_and(|value| value != "0");
    // One may be under way while the counters are read.
    let unanswered = asked.saturating_sub(answered).saturating_sub(to_all);
    if unanswered <= 1 || is_silent || has_default(namespace) {
        return;
    }
    outcome.add(
        CHECK
            .in_namespace(namespace, "routes")
            .severity(Severity::Warn)
            .evidence(format!("Icmp InEchos +{asked}, OutEchoReps +{answered}"), "/proc/net/snmp")
            .evidence("no default route", "RTM_GETROUTE")
            .cost(Cost::estimated(0.5, "answers to other networks"))
            .confidence(Confidence::Medium),
    );
}

/// Whether an IPv4 default route is known. Unread routes prove nothing.
fn has_default(namespace: &Namespace) -> bool {
    namespace.routes.get().is_none_or(|routes| {
        routes.iter().any(|route| route.prefix == 0 && route.to.is_ipv4() && route.link.is_some())
    })
}
