//! OV027: netdev_max_backlog below 1000.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV027",
    title: "The backlog is smaller than by default",
    severity: Severity::Warn,
    explanation: "net.core.netdev_max_backlog is below the kernel's default of 1000 packets. Every \
        packet through a veth, a tunnel or receive packet steering waits in that queue, and a \
        burst of small packets overflows it.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    /// net/core/hotdata.c, `max_backlog`.
    const DEFAULT: u32 = 1000;
    const KEY: &str = "net/core/netdev_max_backlog";
    // A host saved by an older version may lack the setting.
    let Some(setting) = view.host().machine.sysctls.get(KEY) else { return };
    let Some(value) = outcome.need("machine", setting) else { return };
    let Some(now) = value.parse::<u32>().ok().filter(|now| *now < DEFAULT) else { return };
    outcome.add(
        CHECK
            .on_machine("net.core.netdev_max_backlog")
            .evidence(format!("{KEY} = {now}"), "/proc/sys")
            .cost(Cost::estimated(0.1, "bursts of small packets"))
            .confidence(Confidence::Medium)
            .set(Change::machine(KEY, now, DEFAULT), "none known"),
    );
}
