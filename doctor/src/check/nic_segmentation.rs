//! OV010: TSO or GSO off on the NIC under a tunnel or bridge.

use super::{Check, Cost, Outcome, Severity, View};
use crate::change::Change;

pub(super) const CHECK: Check = Check {
    code: "OV010",
    title: "The NIC takes no super-packets",
    severity: Severity::Warn,
    explanation: "TCP segmentation offload, generic segmentation offload or scatter-gather is \
        off on a NIC that carries overlays: everything is cut in software, in the \
        worst place: before the tunnel.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    let nics = view.underlay_nics().into_iter();
    let ports = view.devices().filter(|spot| spot.is_physical());
    let mut seen = std::collections::BTreeSet::new();
    for nic in nics.chain(ports) {
        if !seen.insert(nic.place) {
            continue;
        }
        for feature in ["tx-generic-segmentation", "tx-scatter-gather", "tx-tcp-segmentation"] {
            let Some(off) = outcome.off(nic, feature) else { continue };
            let finding = CHECK
                .on(nic)
                .evidence(format!("{feature}: off"), "ETHTOOL_GFEATURES")
                .cost(Cost::estimated(0.4, "CPU time of TCP streams"));
            outcome.add(match off.fixed {
                true => finding.severity(Severity::Info),
                false => finding.set(
                    Change::feature(nic, feature, true),
                    "where a driver's error made somebody switch it off, it comes back",
                ),
            });
            break;
        }
    }
}
