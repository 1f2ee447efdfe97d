//! OV048: drops of a queueing discipline increase.

use super::shaper_burst::is_too_small;
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::view::DeviceKey;

pub(super) const CHECK: Check = Check {
    code: "OV048",
    title: "A queueing discipline drops packets",
    severity: Severity::Warn,
    explanation: "A queueing discipline dropped packets between the two readings. Either the \
        device sends more slowly than packets arrive, or the discipline shapes traffic on purpose. \
        TCP learns its rate from drops; UDP loses the packets. Drops of ingress and clsact are those \
        of filters attached there, mostly BPF programs.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let Some(pair) = outcome.moving(namespace, &namespace.qdiscs) else { continue };
        for after in &pair.after {
            let before = pair.before.iter().find(|before| {
                (before.link, before.handle, &before.kind)
                    == (after.link, after.handle, &after.kind)
            });
            // A discipline set between the readings has no first reading.
            let Some(before) = before else { continue };
            // The kernel's counter has 32 bits, and wraps (`struct gnet_stats_queue`).
            let dropped = after.drops.wrapping_sub(before.drops);
            let place = DeviceKey { namespace: at, index: after.link };
            let Some(spot) = view.spot(place).filter(|_| dropped > 0) else { continue };
            // OV077 reports it with its cause.
            if after.shaper.is_some_and(|shaper| is_too_small(shaper, spot.interface.mtu)) {
                continue;
            }
            let is_filter = ["ingress", "clsact"].contains(&after.kind.as_str());
            let policers = namespace.policers.get().map_or(&[][..], |pair| pair.after.as_slice());
            // OV101 reports it with its cause.
            if is_filter && policers.iter().any(|policer| policer.link == after.link) {
                continue;
            }
            let sent = spot.moved().map_or(0, |moved| moved.tx_packets);
            let dropped = u64::from(dropped);
            outcome.add(
                CHECK
                    .on(spot)
                    .evidence(
                        match is_filter {
                            true => format!(
                                "filters of {} (tc filter show dev {} ingress, egress) dropped \
                                 +{dropped}",
                                after.kind,
                                spot.name()
                            ),
                            false => format!("{} dropped +{dropped}", after.kind),
                        },
                        "TCA_STATS2",
                    )
                    .cost(Cost::of_packets(dropped, sent.saturating_add(dropped), "packets"))
                    .confidence(Confidence::Medium),
            );
        }
    }
}
