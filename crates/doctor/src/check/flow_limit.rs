//! OV062: The flow limit drops packets.

use super::{Check, Cost, Outcome, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV062",
    title: "The flow limit drops packets",
    severity: Severity::Warn,
    explanation: "Between the two readings packets were dropped at the flow limit: a CPU's backlog \
        queue was half full, and one flow had most of it. A tunnel is one flow to the \
        outer device when its source port does not change (no hash of the inner flow), \
        so that the limit hits every tenant. It is on only where \
        net.core.flow_limit_cpu_bitmap says so.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    const KEY: &str = "net/core/flow_limit_cpu_bitmap";
    let machine = &view.host().machine;
    let Some(pair) = outcome.need("machine", &machine.softnet) else { return };
    let moved = pair.after.since(&pair.before);
    if moved.flow_limit == 0 {
        return;
    }
    let whole = moved.processed.saturating_add(moved.dropped);
    let finding = CHECK
        .on_machine("softnet backlog")
        .evidence(format!("flow_limit_count +{}", moved.flow_limit), "/proc/net/softnet_stat")
        .cost(Cost::of_packets(moved.flow_limit, whole, "packets"));
    outcome.add(match machine.sysctls.get(KEY).and_then(|value| value.get()) {
        Some(now) => finding
            .set(Change::machine(KEY, now, "0"), "one flow may then fill the whole backlog queue"),
        // Without the present value there is none to go back to.
        None => finding,
    });
}
