//! OV039: A hardware address twice on one layer-2 segment.

use super::{Check, Cost, Outcome, Severity, Spot, View, shared_between};
use std::collections::BTreeMap;

use netstate::MacAddr;

use crate::view::Place;

pub(super) const CHECK: Check = Check {
    code: "OV039",
    title: "Two devices have one hardware address",
    severity: Severity::Error,
    explanation: "Two devices that are on one layer-2 segment, as far as it is seen from here, \
        have the same hardware address: bridges learn it now at one port, now at the \
        other, and packets go astray. Cloned machines and containers with fixed \
        addresses do that.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    let mut owners: BTreeMap<(Place, MacAddr), Vec<Spot<'_>>> = BTreeMap::new();
    for spot in view.devices() {
        // A bridge takes the address of a port; ports do not send by their own.
        let sends = spot.interface.up && spot.interface.master.is_none();
        if let Some(mac) = spot.interface.mac.filter(|mac| sends && mac.is_unicast()) {
            owners.entry((view.segment(spot), mac)).or_default().push(spot);
        }
    }
    for ((_, mac), spots) in owners {
        let Some((first, other)) = shared_between(&spots) else { continue };
        outcome.add(
            CHECK
                .on(*first)
                .evidence(
                    format!("{mac} is also on {} {}", other.namespace.label, other.name()),
                    "IFLA_ADDRESS",
                )
                .cost(Cost::estimated(0.5, "packets to this address")),
        );
    }
}
