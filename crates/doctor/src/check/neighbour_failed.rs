//! OV041: A neighbour entry has failed.

use netstate::MacAddr;
use netstate::entry::Knowledge;

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::view::{DeviceKey, DeviceRef};

pub(super) const CHECK: Check = Check {
    code: "OV041",
    title: "A neighbour does not answer",
    severity: Severity::Info,
    explanation: "A program in the namespace sends to an address that does not answer ARP or \
        neighbour discovery. The host may be gone, or may never have existed. On an overlay, a \
        forwarding entry may send its packets to the wrong VTEP. A VXLAN device without a default \
        remote cannot send requests: the control plane did not set the neighbour entry, or it was \
        removed, and packets to the address are lost.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        for known in namespace.neighbours.get().into_iter().flatten() {
            let place = DeviceKey { namespace: at, index: known.link };
            // The device was not read.
            let Some(spot) = view.spot(place) else { continue };
            // Entries that are stale or being resolved are usual.
            if known.knowledge != Knowledge::Failed {
                continue;
            }
            let finding =
                CHECK.on(spot).evidence(format!("{}: failed", known.address), "RTM_GETNEIGH");
            outcome.add(if can_ask_nobody(spot) {
                finding
                    .evidence("the device has no default remote for requests", "RTM_GETNEIGH")
                    .severity(Severity::Error)
                    .cost(Cost::estimated(0.9, "packets to or through this address"))
            } else {
                finding
                    .cost(Cost::estimated(0.01, "packets to this address"))
                    .confidence(Confidence::Low)
            });
        }
    }
}

/// Whether a device is a VXLAN device that has no remote to send an ARP request to.
fn can_ask_nobody(spot: DeviceRef<'_>) -> bool {
    let Some(vxlan) = spot.vxlan().filter(|vxlan| !vxlan.external) else { return false };
    // Unread forwarding entries prove nothing: keep the milder finding.
    let Some(fdb) = spot.namespace.fdb.get() else { return false };
    let has_default = fdb.iter().any(|entry| {
        entry.link == spot.interface.index
            && entry.remote.is_some()
            && entry.mac == Some(MacAddr::default())
    });
    vxlan.remote.is_none() && !has_default
}
