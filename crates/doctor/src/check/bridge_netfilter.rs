//! OV043: bridge-nf-call-iptables is on where there are no rules for it.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV043",
    title: "Bridged frames pass iptables without need",
    severity: Severity::Warn,
    explanation: "The kernel passes frames that cross a bridge of this namespace to the IP packet \
        filter, including connection tracking, but the namespace has no rules there. Container \
        engines enable this for their own rules. In a namespace that only bridges, it costs CPU \
        time for every frame. It is the kernel's default for a new namespace. A container engine \
        creates a namespace without processes for an overlay network; a fix there lasts only until \
        the engine creates the namespace again, so it is reported as a remark.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    const KEY: &str = "net/bridge/bridge-nf-call-iptables";
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let Some(chains) = outcome.need(&namespace.label, &namespace.chains) else { continue };
        let ip = |family: &str| ["ip", "ip6", "inet", "iptables-legacy"].contains(&family);
        let filters = chains.iter().any(|chain| ip(&chain.family));
        let on = namespace.sysctls.get(KEY).is_some_and(|value| value == "1");
        let bridges: Vec<_> = view
            .devices_of(at)
            .filter(|spot| spot.kind() == "bridge")
            // A single port has nothing to bridge to.
            .filter(|spot| view.ports(*spot).count() > 1)
            .collect();
        let Some(bridge) = bridges.first().filter(|_| on && !filters) else { continue };
        // Docker's sandboxes have the kernel's default and are created anew, so a fix does not
        // last.
        let default = namespace.member_count == 0;
        let severity = if default { Severity::Info } else { CHECK.severity };
        outcome.add(
            CHECK
                .in_namespace(namespace, "bridge-nf-call-iptables")
                .severity(severity)
                .evidence(format!("{KEY} = 1"), "/proc/sys")
                .evidence(
                    format!("no chain or table of IP filters; bridge {}", bridge.name()),
                    "nftables, /proc/net/ip_tables_names",
                )
                .cost(Cost::estimated(0.1, "CPU time of bridged packets"))
                .confidence(Confidence::Medium)
                .set(
                    Change::sysctl(namespace, KEY, "1", "0"),
                    "rules that are added later do not see bridged frames",
                ),
        );
    }
}
