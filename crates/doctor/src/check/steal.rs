//! OV024: Steal time is over 5%.

use super::{Check, CheckOutcome, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV024",
    title: "The hypervisor takes CPU time",
    severity: Severity::Warn,
    explanation: "The hypervisor ran something else for more than 5% of the CPUs' time while this \
        machine had work. Softirqs then run late and queues overflow, whatever the settings. Only \
        the hypervisor's administrator can change it.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    /// Below this it is noise on any shared machine.
    const LIMIT: f64 = 0.05;
    /// Fewest ticks of all CPUs between the two readings: one or two of 40 are at most 5%. One CPU
    /// has 100 a second.
    const LEAST: u64 = 40;
    let Some(pair) = outcome.need("machine", &view.host().machine.cpu) else { return };
    let moved = pair.after.total.since(&pair.before.total);
    // Among few ticks, one is already a large share.
    if moved.total() < LEAST {
        return;
    }
    let share = moved.steal as f64 / moved.total() as f64;
    // A few percent are usual on a shared machine.
    if share <= LIMIT {
        return;
    }
    outcome.add(
        CHECK
            .on_machine("CPUs")
            .evidence(format!("steal {} of {} ticks", moved.steal, moved.total()), "/proc/stat")
            .cost(Cost::measured(share, "CPU time")),
    );
}
