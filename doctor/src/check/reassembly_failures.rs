//! OV021: Reassembly failures move.

use super::{Check, Cost, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV021",
    title: "Fragments cannot be put together",
    severity: Severity::Warn,
    explanation: "Between the two readings reassemblies were given up: fragments are lost, or \
        come faster than their memory (net.ipv4.ipfrag_high_thresh) allows. Each lost \
        fragment costs its whole packet. Somebody sends more than an MTU on the way: \
        see OV013, OV016.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for namespace in &view.host().namespaces {
        let Some(pair) = outcome.moving(namespace, &namespace.snmp) else { continue };
        let moved = pair.after.since(&pair.before);
        let failed = moved.ip.reasm_fails.saturating_add(moved.ip6.reasm_fails);
        if failed == 0 {
            continue;
        }
        let done = moved.ip.reasm_oks.saturating_add(failed);
        outcome.add(
            CHECK
                .in_namespace(namespace, "received fragments")
                .evidence(format!("Ip, Ip6 ReasmFails +{failed}"), "/proc/net/snmp, snmp6")
                .cost(Cost::of_packets(failed, done, "fragmented packets")),
        );
    }
}
