//! OV020: ip_no_pmtu_disc is not 0.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV020",
    title: "Path MTU discovery is switched off",
    severity: Severity::Warn,
    explanation: "With net.ipv4.ip_no_pmtu_disc set, the kernel sends without the don't-fragment \
        flag. Routers on the path fragment packets that are too large instead of reporting them. \
        Connections over an overlay with a smaller MTU then consist of fragments.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    const KEY: &str = "net/ipv4/ip_no_pmtu_disc";
    for namespace in &view.host().namespaces {
        let Some(value) = namespace.sysctls.get(KEY).filter(|value| *value != "0") else {
            continue;
        };
        outcome.add(
            CHECK
                .in_namespace(namespace, "net.ipv4.ip_no_pmtu_disc")
                .evidence(format!("{KEY} = {value}"), "/proc/sys")
                .cost(Cost::estimated(0.2, "packets on paths with a smaller MTU"))
                .confidence(Confidence::Medium)
                .set(
                    Change::sysctl(namespace, KEY, value, "0"),
                    "connections over paths that block ICMP stall instead of being slow",
                ),
        );
    }
}
