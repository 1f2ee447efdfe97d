//! OV010: TSO or GSO off on the NIC under a tunnel or bridge.

use super::{Check, CheckOutcome, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV010",
    title: "The NIC does not accept GSO packets",
    severity: Severity::Warn,
    explanation: "TCP segmentation offload or scatter-gather is off on a NIC that carries \
        overlays, so the kernel cuts every GSO packet in software before the driver. Generic \
        segmentation alone affects only the host's own connections: for tenants' packets the other \
        features decide.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for nic in view.carrying_nics() {
        // The kernel enables the later features only if the first is on.
        for feature in ["tx-scatter-gather", "tx-tcp-segmentation", GENERIC] {
            let Some(off) = outcome.off(nic, feature) else { continue };
            let finding = CHECK
                .on(nic)
                .evidence(format!("{feature}: off"), "ETHTOOL_GFEATURES")
                .cost(Cost::estimated(0.4, "CPU time of TCP streams"));
            let finding = match off.fixed {
                true => finding.severity(Severity::Info),
                false => finding.set(
                    Change::feature(nic, feature, true),
                    "a driver defect may reappear, if it was the reason for switching it off",
                ),
            };
            outcome.add(match feature {
                GENERIC => finding
                    .severity(Severity::Info)
                    .cost(Cost::estimated(0.1, "CPU time of the host's own TCP streams")),
                _ => finding,
            });
        }
    }
}

const GENERIC: &str = "tx-generic-segmentation";
