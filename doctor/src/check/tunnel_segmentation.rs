//! OV001: UDP tunnel segmentation off on the NIC under a VXLAN device.

use super::{Check, Confidence, Cost, Outcome, Severity, View};
use crate::change::Change;

pub(super) const CHECK: Check = Check {
    code: "OV001",
    title: "Tunnelled super-packets are cut by the CPU",
    severity: Severity::Warn,
    explanation: "The NIC under a VXLAN device has tx-udp_tnl-segmentation off, so the kernel \
        cuts every tunnelled super-packet into wire-size packets before the driver \
        sees it (software GSO), and pays for each of them. Right where the NIC's own \
        cutting is broken, or where it is fixed off because the hardware cannot.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    const FEATURE: &str = "tx-udp_tnl-segmentation";
    for nic in view.underlay_nics() {
        let Some(off) = outcome.off(nic, FEATURE) else { continue };
        let fixed = if off.fixed { " [fixed]" } else { "" };
        let finding = CHECK
            .on(nic)
            .evidence(format!("{FEATURE}: off{fixed}"), "ETHTOOL_GFEATURES")
            .cost(Cost::estimated(
                0.25,
                "CPU time of large transfers through the tunnel; lab run --modes vxlan \
                 --offload full,no-tunnel measures it here",
            ));
        outcome.add(match off.fixed {
            // Nothing can be done but know it.
            true => finding.severity(Severity::Info),
            false => finding.confidence(Confidence::Medium).set(
                Change::feature(nic, FEATURE, true),
                "some drivers send broken packets with it: watch for checksum errors (OV009)",
            ),
        });
    }
}
