//! OV038: An address twice on one layer-2 segment.

use super::{Check, Cost, Outcome, Severity, Spot, View, shared_between};
use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::view::Place;

pub(super) const CHECK: Check = Check {
    code: "OV038",
    title: "Two devices have one IP address",
    severity: Severity::Error,
    explanation: "Two devices that are on one layer-2 segment, as far as it is seen from here, \
        have the same IP address. Neighbours send to whichever answered last; for \
        VTEPs half of the overlay's packets go to the wrong host.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    let mut owners: BTreeMap<(Place, IpAddr), Vec<Spot<'_>>> = BTreeMap::new();
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        for known in namespace.addresses.get().into_iter().flatten() {
            let place = Place { namespace: at, index: known.link };
            // Loopback's addresses are in every namespace.
            let Some(spot) = view.spot(place).filter(|spot| !spot.interface.loopback) else {
                continue;
            };
            // A device that is down answers nobody.
            if spot.interface.up {
                owners.entry((view.segment(spot), known.address)).or_default().push(spot);
            }
        }
    }
    for ((_, address), spots) in owners {
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
