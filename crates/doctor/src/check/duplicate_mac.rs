//! OV039: two devices of one layer-2 segment have the same MAC address.

use super::{Check, CheckOutcome, Cost, DeviceRef, Severity, View, shared_between};
use std::collections::BTreeMap;

use netstate::MacAddr;

use crate::view::DeviceKey;

pub(super) const CHECK: Check = Check {
    code: "OV039",
    title: "Two devices have one hardware address",
    severity: Severity::Error,
    explanation: "Two devices on one layer-2 segment, as far as doctor can see it, have the same \
        hardware address. Bridges learn it at one port, then at the other, so packets reach the \
        wrong device. The usual causes are cloned machines and containers with fixed addresses.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let mut owners: BTreeMap<(DeviceKey, MacAddr), Vec<DeviceRef<'_>>> = BTreeMap::new();
    for spot in view.devices() {
        // A bridge takes over the address of a port, and ports do not send with their own address.
        let sends = spot.interface.up && spot.interface.master.is_none();
        if let Some(mac) = spot.interface.mac.filter(|mac| sends && mac.is_unicast()) {
            owners.entry((view.segment(spot), mac)).or_default().push(spot);
        }
    }
    for ((_, mac), spots) in owners {
        // One owner, or several in one namespace.
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
