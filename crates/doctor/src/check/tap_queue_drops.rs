//! OV046: A TAP device counts transmit drops.

use super::tap_vnet_header::taps;
use super::{Check, CheckOutcome, Cost, Severity, View};
use settings::{Attribute, Change};

pub(super) const CHECK: Check = Check {
    code: "OV046",
    title: "A TAP drops packets its program does not read",
    severity: Severity::Warn,
    explanation: "Packets were dropped between the two readings because the TAP's ring (txqueuelen \
        packets) was full: the program behind it does not read fast enough, or no program has the \
        device open. A longer queue absorbs larger bursts.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for tap in taps(view) {
        // Without a second reading, current drops are unknown.
        let Some(moved) = tap.moved() else { continue };
        if moved.tx_dropped == 0 {
            continue;
        }
        let now = tap.interface.tx_queue_len;
        let more = now.max(500).saturating_mul(4);
        outcome.add(
            CHECK
                .on(tap)
                .evidence(
                    format!("tx_dropped +{}, txqueuelen {now}", moved.tx_dropped),
                    "IFLA_STATS64",
                )
                .cost(Cost::of_packets(
                    moved.tx_dropped,
                    moved.tx_packets.saturating_add(moved.tx_dropped),
                    "packets",
                ))
                .set(
                    Change::link(tap, Attribute::Txqueuelen, now, more),
                    "packets wait longer before they are dropped",
                ),
        );
    }
}
