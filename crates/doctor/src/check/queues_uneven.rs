//! OV057: one of several receive queues takes nearly all packets.

use super::{Busy, Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::view::QueueInterrupt;

pub(super) const CHECK: Check = Check {
    code: "OV057",
    title: "One of several receive queues takes nearly all",
    severity: Severity::Warn,
    explanation: "A NIC with several receive queues raises nearly all its interrupts on one of \
        them, and a CPU spends nearly all its time in softirqs while others idle. That is normal \
        for a single flow, which stays on one queue. With many flows, either the hash does not \
        distinguish them (OV056 for tunnels), or the indirection table (ethtool -x) names only \
        that queue.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    // Uneven queues cost nothing while no CPU is saturated.
    let Some(busy) = outcome.busy_with_softirqs(view) else { return };
    for spot in view.devices().filter(|spot| spot.is_physical()) {
        let Some((most, all)) = uneven(&view.receive_interrupts(spot)) else { continue };
        outcome.add(
            CHECK
                .on(spot)
                .evidence(format!("one queue has {most} of {all} interrupts"), "/proc/interrupts")
                .evidence(Busy::evidence(busy.cpu), "/proc/stat")
                .cost(Cost::estimated(0.4, "packets of several flows"))
                .confidence(Confidence::Medium),
        );
    }
}

/// Returns the interrupts of the queue that takes nearly all, and of all queues. `None` for a
/// single queue or too few interrupts to judge.
pub(super) fn uneven(queues: &[QueueInterrupt<'_>]) -> Option<(u64, u64)> {
    const ENOUGH: u64 = 100;
    let all: u64 = queues.iter().map(|queue| queue.moved).sum();
    let most = queues.iter().map(|queue| queue.moved).max()?;
    (queues.len() > 1 && all >= ENOUGH && most.saturating_mul(10) >= all.saturating_mul(9))
        .then_some((most, all))
}
