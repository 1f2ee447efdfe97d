//! OV038: two devices of one layer-2 segment have the same IP address.

use super::{Check, CheckOutcome, Cost, DeviceRef, Severity, View, shared_between};
use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::view::DeviceKey;

pub(super) const CHECK: Check = Check {
    code: "OV038",
    title: "Two devices have the same IP address",
    severity: Severity::Error,
    explanation: "Two devices on one layer-2 segment, as far as doctor can see it, have the same \
        IP address. Neighbours send to the device that answered last. If the address belongs to \
        VTEPs, half of the overlay's packets reach the wrong host.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let mut owners: BTreeMap<(DeviceKey, IpAddr), Vec<DeviceRef<'_>>> = BTreeMap::new();
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        for known in namespace.addresses.get().into_iter().flatten() {
            let place = DeviceKey { namespace: at, index: known.link };
            // Every namespace has the loopback addresses.
            let Some(spot) = view.spot(place).filter(|spot| !spot.interface.loopback) else {
                continue;
            };
            // A device that is down does not answer ARP.
            if spot.interface.up {
                owners.entry((view.segment(spot), known.address)).or_default().push(spot);
            }
        }
    }
    for ((_, address), spots) in owners {
        // One owner, or several in one namespace.
        let Some((first, other)) = shared_between(&spots) else { continue };
        outcome.add(
            CHECK
                .on(*first)
                .evidence(
                    format!("{address} is also on {} {}", other.namespace.label, other.name()),
                    "RTM_GETADDR",
                )
                .cost(Cost::estimated(0.5, "packets to this address")),
        );
    }
}
