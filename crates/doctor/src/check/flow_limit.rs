//! OV062: The flow limit drops packets.

use super::{Check, CheckOutcome, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV062",
    title: "The flow limit drops packets",
    severity: Severity::Warn,
    explanation: "Packets were dropped at the flow limit between the two readings: a CPU's backlog \
        queue was half full and one flow had most of it. If a tunnel's source port does not depend \
        on the inner flow, the outer device sees the tunnel as one flow, and the limit affects \
        every tenant. The limit is active on the CPUs of net.core.flow_limit_cpu_bitmap only.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
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
        // An undo needs the present value, and it could not be read.
        None => finding,
    });
}
