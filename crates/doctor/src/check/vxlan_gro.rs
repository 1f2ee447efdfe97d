//! OV005: Decapsulated packets are not merged.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV005",
    title: "GRO is off on a VXLAN device",
    severity: Severity::Warn,
    explanation: "Generic receive offload is off on the VXLAN device. Packets that the NIC could \
        not merge before decapsulation (no checksum, another port) are not merged after it either, \
        so bridge and tenant process every packet separately.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, _) in view.tunnels() {
        let Some(off) = outcome.off(tunnel, "rx-gro") else { continue };
        let finding = CHECK
            .on(tunnel)
            .evidence("rx-gro: off", "ETHTOOL_GFEATURES")
            .cost(Cost::estimated(0.3, "the receiver's throughput, if the NIC merges nothing"))
            .confidence(Confidence::Medium);
        outcome.add(match off.fixed {
            true => finding,
            false => finding.set(Change::feature(tunnel, "rx-gro", true), "none known"),
        });
    }
}
