//! OV041: A neighbour entry has failed.

use super::{Check, Confidence, Cost, Outcome, Severity, View};
use netstate::entry::Knowledge;

use crate::view::Place;

pub(super) const CHECK: Check = Check {
    code: "OV041",
    title: "A neighbour does not answer",
    severity: Severity::Info,
    explanation: "Somebody in the namespace sends to an address that does not answer ARP or \
        neighbour discovery. The host may be gone or never have been; on an overlay it \
        can also be a forwarding entry that sends its packets to the wrong VTEP.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        for known in namespace.neighbours.get().into_iter().flatten() {
            let place = Place { namespace: at, index: known.link };
            let Some(spot) = view.spot(place) else { continue };
            if known.knowledge != Knowledge::Failed {
                continue;
            }
            outcome.add(
                CHECK
                    .on(spot)
                    .evidence(format!("{}: failed", known.address), "RTM_GETNEIGH")
                    .cost(Cost::estimated(0.01, "packets to this address"))
                    .confidence(Confidence::Low),
            );
        }
    }
}
