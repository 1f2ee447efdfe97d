//! OV079: A queueing discipline holds packets for a long time.

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::view::DeviceKey;
use netstate::qdisc::Qdisc;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV079",
    title: "A queue holds packets for a long time",
    severity: Severity::Warn,
    explanation: "A queueing discipline had packets waiting in both readings, and at the rate at \
        which it sends, the last of them waits a tenth of a second or more. Packets may not be \
        lost, but each is delayed, also packets of connections that do not fill the queue. The \
        limit of a shaper (tbf, htb) is too large for its rate. netem delays and loses packets on \
        purpose, and is left over from a test.",
    run,
};

/// Shortest delay that is reported, s.
const LONG: f64 = 0.1;
/// Delay that a proposed limit allows, as a share of a second: 25 ms.
const SENSIBLE: u64 = 40;
/// The least sensible limit: two GSO packets.
const LEAST: u64 = 131_072;

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let interval = view.host().interval_s;
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let Some(pair) = outcome.moving(namespace, &namespace.qdiscs) else { continue };
        let mut reported = Vec::new();
        for after in &pair.after {
            let same = |before: &&Qdisc| {
                (before.link, before.handle, &before.kind)
                    == (after.link, after.handle, &after.kind)
            };
            // A discipline set between the readings has no first reading.
            let Some(before) = pair.before.iter().find(same) else { continue };
            let place = DeviceKey { namespace: at, index: after.link };
            let Some(spot) = view.spot(place) else { continue };
            // OV049 reports it: the driver sends nothing.
            if is_stuck(spot) {
                continue;
            }
            // A discipline and its children count the same packets.
            if reported.contains(&after.link) {
                continue;
            }
            let waiting = before.backlog.min(after.backlog);
            let rate = rate(spot, after, interval);
            let delay = f64::from(waiting) / rate.max(1.0);
            let is_long = waiting > 0 && delay >= LONG;
            // A short delay is what a queue is for; netem is reported in any case.
            if !is_long && after.kind != "netem" {
                continue;
            }
            reported.push(after.link);
            outcome.add(described(spot, before, after, is_long.then_some(delay)));
        }
    }
}

/// Whether a device with transmit timeouts sent nothing between the readings.
fn is_stuck(spot: DeviceRef<'_>) -> bool {
    let timeouts = spot.device.and_then(|device| device.tx_timeouts).unwrap_or_default();
    timeouts > 0 && spot.moved().is_none_or(|moved| moved.tx_bytes == 0)
}

/// Bytes per second that leave the discipline.
fn rate(spot: DeviceRef<'_>, qdisc: &Qdisc, interval: f64) -> f64 {
    let sent = spot.moved().map_or(0, |moved| moved.tx_bytes) as f64 / interval.max(0.001);
    let limit = qdisc.shaper.map_or(0.0, |shaper| shaper.rate as f64);
    sent.max(limit)
}

fn described(
    spot: DeviceRef<'_>,
    before: &Qdisc,
    after: &Qdisc,
    delay: Option<f64>,
) -> crate::finding::Finding {
    let overlimits = after.overlimits.wrapping_sub(before.overlimits);
    let dropped = after.drops.wrapping_sub(before.drops);
    let kind = &after.kind;
    let mut finding = CHECK.on(spot).confidence(Confidence::High);
    if kind == "netem" {
        finding = finding
            .evidence("netem: delays, loses or reorders packets on purpose", "RTM_GETQDISC")
            .cost(Cost::estimated(0.5, "packets of this device"))
            .confidence(Confidence::Medium);
        // Without losses or a queue its settings are unknown here.
        if delay.is_none() && dropped == 0 {
            return finding.severity(Severity::Info);
        }
    }
    if dropped > 0 {
        finding = finding.evidence(format!("{kind} dropped +{dropped}"), "TCA_STATS2");
    }
    // Without a rate the delay is unknown.
    let Some(delay) = delay else { return finding };
    finding = finding
        .evidence(
            format!(
                "{kind}: {} and {} bytes wait, {:.0} ms at its rate; overlimits +{overlimits}",
                before.backlog,
                after.backlog,
                delay * 1000.0
            ),
            "TCA_STATS2",
        )
        .cost(Cost::estimated((0.5 + delay / 2.0).min(0.95), "the time of each packet"));
    // Only tbf has a limit that can be computed from its rate.
    let Some(shaper) = after.shaper else { return finding };
    let set = |limit: u64| {
        let command = format!(
            "tc qdisc change dev {} root tbf rate {}bit burst {} limit {limit}",
            quote(spot.name()),
            shaper.rate.saturating_mul(8),
            shaper.burst
        );
        inside(spot.namespace.path.as_deref(), &command)
    };
    let less = (shaper.rate / SENSIBLE).max(LEAST).max(shaper.burst);
    // The limit is not the cause if it is small already.
    if less >= shaper.limit {
        return finding;
    }
    finding.by_hand(
        set(less),
        "more packets are dropped while TCP finds the rate; datagrams sent faster are lost",
        set(shaper.limit),
    )
}
