//! OV025: softnet_stat counts drops.

use super::{Check, Cost, Outcome, Severity, View};
use crate::change::Change;

pub(super) const CHECK: Check = Check {
    code: "OV025",
    title: "The backlog overflows",
    severity: Severity::Error,
    explanation: "Packets were dropped between the two readings because a CPU's backlog was \
        full. veth, tunnels and receive packet steering put packets there; it holds \
        net.core.netdev_max_backlog of them. A larger backlog takes larger bursts; a \
        CPU that cannot keep up needs fewer packets (GRO, TSO) or help (RPS).",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    let Some(pair) = outcome.need("machine", &view.host().machine.softnet) else { return };
    let moved = pair.after.since(&pair.before);
    if moved.dropped == 0 {
        return;
    }
    let key = "net/core/netdev_max_backlog";
    let now = view.host().machine.sysctls.get(key).and_then(|value| value.get()?.parse().ok());
    let finding = CHECK
        .on_machine("softnet backlog")
        .evidence(format!("dropped +{}", moved.dropped), "/proc/net/softnet_stat")
        .cost(Cost::of_packets(
            moved.dropped,
            moved.processed.saturating_add(moved.dropped),
            "packets",
        ));
    outcome.add(match now {
        Some(now) => {
            let more: u64 = u64::max(now, 1000).saturating_mul(4);
            finding
                .set(Change::machine(key, now, more), "packets wait longer before they are dropped")
        }
        None => finding,
    });
}
