//! OV021: Reassembly failures move.

use super::{Check, Outcome, Severity, View, reassembly_memory};

pub(super) const CHECK: Check = Check {
    code: "OV021",
    title: "Fragments cannot be put together",
    severity: Severity::Warn,
    explanation: "Between the two readings reassemblies were given up: fragments are lost, or \
        come faster than their memory (net.ipv4.ipfrag_high_thresh) allows. Each lost \
        fragment costs its whole packet. Somebody sends more than an MTU on the way: \
        see OV013, OV016. Where the memory is full, OV066 says so instead.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for (namespace, moved) in outcome.moved(view) {
        if reassembly_memory::is_nearly_full(namespace) {
            // They fail for that: OV066 says it, with the count.
            continue;
        }
        let failed =
            [("Ip ReasmFails", moved.ip.reasm_fails), ("Ip6 ReasmFails", moved.ip6.reasm_fails)];
        let whole = failed
            .iter()
            .fold(moved.ip.reasm_oks, |whole, (_, count)| whole.saturating_add(*count));
        outcome.findings.extend(CHECK.counted(
            (namespace, "received fragments"),
            &failed,
            "/proc/net/snmp, snmp6",
            (whole, "fragmented packets"),
        ));
    }
}
