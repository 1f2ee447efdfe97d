//! OV004: Received packets are not merged before they go up the stack.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV004",
    title: "GRO is off on the NIC",
    severity: Severity::Warn,
    explanation: "Generic receive offload is off on a NIC that carries overlays. Each received \
        packet crosses tunnel, bridge and tenant separately instead of as part of a GSO packet of \
        up to 64 KiB. Correct for a NIC that only forwards small packets.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for nic in view.carrying_nics() {
        let Some(off) = outcome.off(nic, "rx-gro") else { continue };
        let finding = CHECK
            .on(nic)
            .evidence("rx-gro: off", "ETHTOOL_GFEATURES")
            .cost(Cost::estimated(0.5, "the receiver's throughput of TCP streams"));
        // A veth receives packets that were never cut, unless they come from a wire.
        let finding = match nic.kind() {
            "veth" => finding
                .severity(Severity::Info)
                .confidence(Confidence::Low)
                .cost(Cost::estimated(0.02, "the receiver's throughput of cut TCP streams")),
            _ => finding,
        };
        outcome.add(match off.fixed {
            true => finding,
            false => finding.set(
                Change::feature(nic, "rx-gro", true),
                "adds microseconds of latency under load",
            ),
        });
    }
}
