//! OV016: fragmentation counters increase.

use super::{Check, CheckOutcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV016",
    title: "Packets are cut into fragments or dropped for size",
    severity: Severity::Warn,
    explanation: "Between the two readings packets were fragmented, or dropped because fragmenting \
        them was forbidden (FragFails). A sender uses packets larger than an MTU on the path. \
        Fragments are reassembled in software, defeat receive offloads and RSS, and are dropped by \
        many firewalls.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (namespace, moved) in outcome.moved(view) {
        let counts = [
            ("Ip FragOKs", moved.ip.frag_oks),
            ("Ip FragFails", moved.ip.frag_fails),
            ("Ip6 FragFails", moved.ip6.frag_fails),
            ("Ip6 InTooBigErrors", moved.ip6.in_too_big_errors),
        ];
        let sent = moved.ip.out_requests.saturating_add(moved.ip.forw_datagrams);
        outcome.findings.extend(CHECK.counted(
            (namespace, "sent packets"),
            &counts,
            "/proc/net/snmp, snmp6",
            (sent, "packets sent"),
        ));
    }
}
