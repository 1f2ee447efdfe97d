//! OV074: Packets are compared with thousands of rules.

use super::packet_filter::source;
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV074",
    title: "Each packet is compared with many rules",
    severity: Severity::Warn,
    explanation: "A packet of an overlay that crosses the packet filter is compared with a \
        thousand rules or more of one chain, one after the other. Nothing is lost, but each packet \
        costs microseconds of softirq time (ksoftirqd is busy). Repeated rules come from a program \
        that adds its rules again at each synchronisation; sets and maps replace many rules by \
        one look-up.",
    run,
};

/// Rules from which a finding is reported.
const MANY: u64 = 1000;

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for namespace in &view.host().namespaces {
        let Some(passages) = outcome.need(&namespace.label, &namespace.passages) else { continue };
        let long = passages.iter().filter_map(|passage| passage.longest.as_ref());
        let Some(longest) = long.max_by_key(|long| long.rules).filter(|long| long.rules >= MANY)
        else {
            continue;
        };
        let object = format!("{} {} {}", longest.family, longest.table, longest.chain);
        // A rule takes some ten nanoseconds; a thousand of them double the cost of a packet.
        let share = longest.rules as f64 / (longest.rules as f64 + MANY as f64);
        outcome.add(
            CHECK
                .in_namespace(namespace, object)
                .evidence(
                    format!(
                        "packets are compared with {} rules of the chain; {} of its rules repeat \
                         another",
                        longest.rules, longest.repeated
                    ),
                    source(&longest.family),
                )
                .cost(Cost::estimated(share, "softirq time of the overlay's packets"))
                .confidence(Confidence::Medium),
        );
    }
}
