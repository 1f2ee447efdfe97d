//! OV077: A rate limit's burst is too small for its rate.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::view::DeviceKey;
use netstate::qdisc::{Qdisc, Shaper};
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV077",
    title: "A rate limit's burst is too small",
    severity: Severity::Warn,
    explanation: "A token bucket (tbf) may send only its burst at once. If the burst is less than \
        the rate gives in a quarter of a millisecond, or less than a packet, it fits neither the \
        GSO packets that TCP sends nor the kernel's timers: packets are dropped, TCP backs off, \
        and the limit lets a fraction of its rate through. A burst of a few milliseconds and a \
        limit of several bursts fit.",
    run,
};

/// Time that a burst has to last, as a share of a second: 250 µs.
const BURSTS: u64 = 4000;
/// A sensible burst lasts 4 ms.
const SENSIBLE: u64 = 250;
/// The least sensible burst: a GSO packet.
const GSO: u64 = 65536;

/// Whether a shaper's burst is too small for its rate.
pub(super) fn is_too_small(shaper: Shaper, mtu: u32) -> bool {
    shaper.burst < (shaper.rate / BURSTS).max(u64::from(mtu) + 14)
}

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let Some(pair) = outcome.moving(namespace, &namespace.qdiscs) else { continue };
        for after in &pair.after {
            let Some(spot) = view.spot(DeviceKey { namespace: at, index: after.link }) else {
                continue;
            };
            let Some(shaper) = after.shaper else { continue };
            // The burst suffices for the rate and for one packet.
            if !is_too_small(shaper, spot.interface.mtu) {
                continue;
            }
            let same = |before: &&Qdisc| (before.link, before.handle) == (after.link, after.handle);
            let before = pair.before.iter().find(same);
            // The kernel's counter has 32 bits, and wraps (`struct gnet_stats_queue`).
            let dropped = before.map_or(0, |before| after.drops.wrapping_sub(before.drops));
            let (burst, rate) = (shaper.burst, shaper.rate);
            let finding = CHECK
                .on(spot)
                .evidence(
                    format!(
                        "tbf: burst {burst} bytes for {} Mbit/s is less than {} bytes; limit {}",
                        rate.saturating_mul(8) / 1_000_000,
                        (rate / BURSTS).max(u64::from(spot.interface.mtu) + 14),
                        shaper.limit
                    ),
                    "TCA_OPTIONS",
                )
                .evidence(format!("tbf dropped +{dropped}"), "TCA_STATS2")
                .cost(Cost::estimated(0.9, "the rate that the limit allows"))
                // An idle limit costs nothing now.
                .severity(if dropped > 0 { Severity::Warn } else { Severity::Info })
                .confidence(if dropped > 0 { Confidence::High } else { Confidence::Medium });
            let more = (rate / SENSIBLE).max(GSO);
            let set = |burst: u64, limit: u64| {
                let command = format!(
                    "tc qdisc change dev {} root tbf rate {}bit burst {burst} limit {limit}",
                    quote(spot.name()),
                    rate.saturating_mul(8)
                );
                inside(namespace.path.as_deref(), &command)
            };
            outcome.add(finding.by_hand(
                set(more, shaper.limit.max(more.saturating_mul(4))),
                "larger bursts leave at once",
                set(burst, shaper.limit),
            ));
        }
    }
}
