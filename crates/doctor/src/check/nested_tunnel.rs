//! OV094: a tunnel in a tunnel, whose outer device does not cut by tx-gso-partial.

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV094",
    title: "GSO packets of a nested tunnel are cut early",
    severity: Severity::Warn,
    explanation: "This tunnel device carries another VXLAN tunnel. Without tx-gso-partial it \
        cannot pass on GSO packets that are encapsulated already: the kernel cuts them into \
        wire-size packets before the outer encapsulation, and pays for each. The feature exists \
        since Linux 7.x and is off by default. Correct if the NIC cannot cut such packets.",
    run,
};

const FEATURE: &str = "tx-gso-partial";

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for outer in view.underlay_nics() {
        if !is_tunnel(outer) {
            continue;
        }
        let Some(off) = outcome.off(outer, FEATURE) else { continue };
        let inner = view.tunnels().find(|(tunnel, _)| {
            view.underlays(*tunnel).iter().any(|underlay| underlay.nic.place == outer.place)
        });
        let inner = inner.map_or("a tunnel", |(tunnel, _)| tunnel.name());
        let fixed = if off.fixed { " [fixed]" } else { "" };
        let finding = CHECK
            .on(outer)
            .evidence(format!("{FEATURE}: off{fixed}"), "ETHTOOL_GFEATURES")
            .evidence(format!("{inner} sends through it"), "RTM_GETROUTE")
            .cost(Cost::estimated(0.25, "CPU time of large transfers through both tunnels"));
        outcome.add(match off.fixed {
            // The kernel does not let it be switched on: for information only.
            true => finding.severity(Severity::Info),
            false => finding.confidence(Confidence::Medium).set(
                Change::feature(outer, FEATURE, true),
                "prove with overlane probe that the packets arrive unchanged",
            ),
        });
    }
}

fn is_tunnel(spot: DeviceRef<'_>) -> bool {
    ["vxlan", "geneve"].contains(&spot.kind())
}
