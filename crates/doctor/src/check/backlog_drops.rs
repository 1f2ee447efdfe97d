//! OV025: softnet_stat counts drops.

use super::{Check, CheckOutcome, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV025",
    title: "The backlog overflows",
    severity: Severity::Error,
    explanation: "Packets were dropped between the two readings because a CPU's backlog queue was \
        full. veth, tunnels and receive packet steering use that queue; \
        net.core.netdev_max_backlog is its length. A longer queue absorbs larger bursts. A CPU \
        that cannot keep up needs fewer packets (GRO, TSO) or help from other CPUs (RPS).",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let Some(pair) = outcome.need("machine", &view.host().machine.softnet) else { return };
    let moved = pair.after.since(&pair.before);
    if moved.dropped == 0 {
        return;
    }
    let whole = moved.processed.saturating_add(moved.dropped);
    outcome.add(
        CHECK
            .on_machine("softnet backlog")
            .evidence(format!("dropped +{}", moved.dropped), "/proc/net/softnet_stat")
            .cost(Cost::of_packets(moved.dropped, whole, "packets"))
            .raise(
                view,
                "net/core/netdev_max_backlog",
                |now| now.max(1000).saturating_mul(4),
                "packets wait longer before they are dropped",
            ),
    );
}
