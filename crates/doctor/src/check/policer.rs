//! OV101: A policer drops packets.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::view::DeviceKey;
use netstate::policer::Policer;
use settings::command::inside;

pub(super) const CHECK: Check = Check {
    code: "OV101",
    title: "A policer drops packets",
    severity: Severity::Warn,
    explanation: "A traffic control filter drops received packets above a rate, without a queue. \
        Its burst must hold the largest packet, and the packets that arrive before TCP slows down. \
        GRO and virtual devices give it packets of up to 64 KiB: if the burst is smaller, it drops \
        each of them, and TCP reaches a fraction of the rate. With a sufficient burst, drops are \
        the normal effect of the limit, and are reported as a remark.",
    run,
};

/// The largest packet that GRO builds, bytes.
const GSO: u64 = 65_536;
/// A sensible burst lasts 40 ms: TCP's round trips are shorter.
const SENSIBLE: u64 = 25;
/// `TC_ACT_SHOT` of `linux/pkt_cls.h`.
const DROP: i32 = 2;

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        // A host saved by an earlier version has no list, and mostly no policers.
        let Some(pair) = namespace.policers.get() else { continue };
        for after in &pair.after {
            let place = DeviceKey { namespace: at, index: after.link };
            let Some(device) = view.spot(place) else { continue };
            let same = |one: &&Policer| (one.link, one.index) == (after.link, after.index);
            let before = pair.before.iter().find(same);
            let dropped = before.map_or(0, |before| after.drops.wrapping_sub(before.drops));
            let is_small = after.burst < GSO;
            // A policer with another verdict marks packets or counts them.
            if after.exceed != DROP || (!is_small && dropped == 0) {
                continue;
            }
            let (burst, rate) = (after.burst, after.rate);
            let fits = if is_small { "less than a GSO packet" } else { "more than a GSO packet" };
            let finding = CHECK
                .on(device)
                .evidence(
                    format!(
                        "police: burst {burst} bytes, {fits}; rate {} Mbit/s",
                        rate.saturating_mul(8) / 1_000_000
                    ),
                    "TCA_POLICE_TBF",
                )
                .evidence(format!("police dropped +{dropped}"), "TCA_ACT_STATS")
                .cost(Cost::estimated(
                    if is_small { 0.9 } else { 0.1 },
                    "the rate that the policer allows",
                ))
                // An idle policer costs nothing now, and a fitting one does its work.
                .severity(if is_small && dropped > 0 { Severity::Warn } else { Severity::Info })
                .confidence(if dropped > 0 { Confidence::High } else { Confidence::Medium });
            let verdicts = (verdict(after.exceed), verdict(after.conform));
            // Verdicts of extensions cannot be written by tc, so no command is proposed.
            let (true, (Some(exceed), Some(conform))) = (is_small, verdicts) else {
                outcome.add(finding);
                continue;
            };
            let set = |burst: u64| {
                let command = format!(
                    "tc actions change action police rate {}bit burst {burst} mtu {} \
                     conform-exceed {exceed}/{conform} index {}",
                    rate.saturating_mul(8),
                    after.mtu,
                    after.index
                );
                inside(namespace.path.as_deref(), &command)
            };
            outcome.add(finding.by_hand(
                set((rate / SENSIBLE).max(4 * GSO)),
                "larger bursts pass at once; the program that set the policer may set it again",
                set(burst),
            ));
        }
    }
}

/// Word of `tc` for a verdict (`TC_ACT_*`).
fn verdict(number: i32) -> Option<&'static str> {
    Some(match number {
        -1 => "continue",
        0 => "ok",
        1 => "reclassify",
        2 => "drop",
        3 => "pipe",
        // Other verdicts have no word in tc.
        _ => return None,
    })
}
