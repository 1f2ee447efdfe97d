//! OV004: Received packets are not merged before they go up the stack.

use super::{Check, Cost, Outcome, Severity, Spot, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV004",
    title: "GRO is off on the NIC",
    severity: Severity::Warn,
    explanation: "Generic receive offload is off on a NIC that carries overlays: each received \
        packet goes through tunnel, bridge and tenant on its own instead of as one \
        GSO packet of up to 64 KiB. Right for a NIC that only forwards small \
        packets.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for nic in carrying(view) {
        let Some(off) = outcome.off(nic, "rx-gro") else { continue };
        let finding = CHECK
            .on(nic)
            .evidence("rx-gro: off", "ETHTOOL_GFEATURES")
            .cost(Cost::estimated(0.5, "the receiver's throughput of TCP streams"));
        outcome.add(match off.fixed {
            true => finding,
            false => finding.set(
                Change::feature(nic, "rx-gro", true),
                "adds microseconds of latency under load",
            ),
        });
    }
}

/// NICs under tunnels, and hardware that is a bridge's port.
fn carrying<'a>(view: &View<'a>) -> Vec<Spot<'a>> {
    let mut nics = view.underlay_nics();
    let ports = view.devices().filter(|spot| spot.is_physical() && view.bridge(*spot).is_some());
    nics.extend(ports);
    nics.sort_by_key(|nic| nic.place);
    nics.dedup_by_key(|nic| nic.place);
    nics
}
