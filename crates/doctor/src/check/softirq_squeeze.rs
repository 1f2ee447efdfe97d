//! OV026: softnet_stat counts time squeezes.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV026",
    title: "Softirqs stop with work left",
    severity: Severity::Info,
    explanation: "The network softirq used up its budget (net.core.netdev_budget packets or \
        netdev_budget_usecs) with packets left, more than ten times a second. That is a sign of \
        load, not of loss: the remaining packets are processed shortly after. A larger budget \
        improves throughput at the expense of other work.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    /// Lower rates are normal on a busy machine.
    const OFTEN_PER_S: f64 = 10.0;
    let Some(pair) = outcome.need("machine", &view.host().machine.softnet) else { return };
    let moved = pair.after.since(&pair.before);
    let rate = moved.time_squeeze as f64 / view.host().interval_s.max(0.001);
    // A busy host stops early now and then.
    if rate < OFTEN_PER_S {
        return;
    }
    outcome.add(
        CHECK
            .on_machine("network softirq")
            .evidence(
                format!("time_squeeze +{} ({rate:.0}/s)", moved.time_squeeze),
                "/proc/net/softnet_stat",
            )
            .cost(Cost::estimated(0.05, "latency under load"))
            .confidence(Confidence::Low)
            .raise(
                view,
                "net/core/netdev_budget",
                |now| now.saturating_mul(2),
                "other work of the CPU waits longer",
            ),
    );
}
