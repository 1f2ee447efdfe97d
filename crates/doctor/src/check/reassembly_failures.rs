//! OV021: reassembly failures increase.

use super::{Check, CheckOutcome, Severity, View, reassembly_memory};

pub(super) const CHECK: Check = Check {
    code: "OV021",
    title: "Fragments cannot be reassembled",
    severity: Severity::Warn,
    explanation: "Reassemblies failed between the two readings: fragments are lost, or arrive \
        faster than their memory (net.ipv4.ipfrag_high_thresh) allows. Each lost fragment costs \
        its whole packet. A sender uses packets larger than an MTU on the path: see OV013 and \
        OV016. If the memory is nearly full, OV066 reports it instead.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (namespace, moved) in outcome.moved(view) {
        if reassembly_memory::is_nearly_full(namespace) {
            // The memory is the cause, and OV066 reports it with the count.
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
