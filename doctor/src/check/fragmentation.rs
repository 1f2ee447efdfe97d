//! OV016: Fragmentation counters move.

use super::{Check, Cost, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV016",
    title: "Packets are cut into fragments or dropped for size",
    severity: Severity::Warn,
    explanation: "Between the two readings packets were fragmented, or dropped because they must \
        not be (FragFails): something sends more than the MTU of the way on. Fragments \
        are reassembled in software, defeat receive offloads and RSS, and are dropped \
        by many firewalls.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for namespace in &view.host().namespaces {
        let Some(pair) = outcome.moving(namespace, &namespace.snmp) else { continue };
        let moved = pair.after.since(&pair.before);
        let counts = [
            ("Ip FragOKs", moved.ip.frag_oks),
            ("Ip FragFails", moved.ip.frag_fails),
            ("Ip6 FragFails", moved.ip6.frag_fails),
            ("Ip6 InTooBigErrors", moved.ip6.in_too_big_errors),
        ];
        let all: u64 = counts.iter().map(|(_, count)| count).sum();
        if all == 0 {
            continue;
        }
        let sent = moved.ip.out_requests.saturating_add(moved.ip.forw_datagrams);
        let mut finding = CHECK.in_namespace(namespace, "sent packets").cost(Cost::of_packets(
            all,
            sent.max(all),
            "packets sent",
        ));
        for (name, count) in counts.iter().filter(|(_, count)| *count > 0) {
            finding = finding.evidence(format!("{name} +{count}"), "/proc/net/snmp, snmp6");
        }
        outcome.add(finding);
    }
}
