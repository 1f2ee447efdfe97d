//! OV042: IPReversePathFilter increases.

use super::{Check, CheckOutcome, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV042",
    title: "The reverse-path filter drops packets",
    severity: Severity::Warn,
    explanation: "The reverse-path filter dropped packets between the two readings: the route back \
        to their source does not use the device they arrived on (rp_filter 1), or there is no such \
        route (rp_filter 2). Several NICs, policy routing and tunnels with asymmetric paths need \
        the loose mode (2), or none (0).",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    const ALL: &str = "net/ipv4/conf/all/rp_filter";
    for namespace in &view.host().namespaces {
        let Some(pair) = outcome.moving(namespace, &namespace.snmp) else { continue };
        let moved = pair.after.since(&pair.before);
        let dropped = moved.tcp_ext.reverse_path_filter;
        // A strict filter that drops nothing is intended.
        if dropped == 0 {
            continue;
        }
        let received = moved.ip.in_receives;
        let mut finding = CHECK
            .in_namespace(namespace, "received packets")
            .evidence(format!("IPReversePathFilter +{dropped}"), "/proc/net/netstat")
            .cost(Cost::of_packets(dropped, received.max(dropped), "packets"));
        // The kernel applies the larger of `all` and the device's own value.
        for (key, value) in &namespace.sysctls {
            if key.ends_with("/rp_filter") && value != "0" {
                finding = finding.evidence(format!("{key} = {value}"), "/proc/sys");
            }
        }
        let before = namespace.sysctls.get(ALL).map_or("0", String::as_str);
        outcome.add(finding.set(
            Change::sysctl(namespace, ALL, before, "2"),
            "packets with forged sources are dropped only where they have no route at all",
        ));
    }
}
