//! OV095: A link goes down and comes back.

use super::{Check, CheckOutcome, Cost, DeviceRef, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV095",
    title: "A link goes down and comes back",
    severity: Severity::Error,
    explanation: "The NIC under a tunnel, or a port of a bridge, lost its carrier or got it back \
        between the two readings. Packets are lost each time, routes through the device vanish and \
        return, and connections stall. Suspect cable and switch port, a driver that resets its \
        device, or a program that sets the device down and up. A container that starts or stops \
        changes the carrier of its port once, which is not reported.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let nics = view.tunnel_nics();
    for spot in view.devices() {
        let is_nic = nics.iter().any(|nic| nic.place == spot.place);
        // Devices of containers that start and stop change their carrier, too.
        if !is_nic && view.bridge(spot).is_none() || !is_flapping(spot, is_nic) {
            continue;
        }
        let changes = spot.moved().map_or(0, |moved| moved.carrier_changes);
        outcome.add(
            CHECK
                .on(spot)
                .evidence(
                    format!("carrier_changes +{changes}, {} in all", after(spot)),
                    "IFLA_CARRIER_CHANGES",
                )
                .cost(Cost::estimated(1.0, "all packets of this device while it is down")),
        );
    }
}

/// Changes of the carrier since the device was made.
fn after(spot: DeviceRef<'_>) -> u64 {
    let later = spot.namespace.later.get().and_then(|all| all.get(&spot.interface.index));
    later.map_or(0, |counters| counters.carrier_changes)
}

/// Whether the carrier of a device changed between the readings without being new or removed.
pub(super) fn is_flapping(spot: DeviceRef<'_>, is_nic: bool) -> bool {
    match spot.moved().map_or(0, |moved| moved.carrier_changes) {
        0 => false,
        // A container's port comes up, or its peer has gone.
        1 => is_nic && spot.interface.up && spot.interface.carrier,
        _ => true,
    }
}
