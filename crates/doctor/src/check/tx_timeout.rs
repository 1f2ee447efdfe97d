//! OV049: A device counts transmit timeouts.

use super::{Check, Confidence, Cost, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV049",
    title: "A transmit queue stood still",
    severity: Severity::Error,
    explanation: "The kernel's watchdog found a transmit queue of the device that had not moved \
        for seconds, and had the driver reset it. Packets are lost meanwhile. A \
        driver, firmware or hypervisor error; some drivers have it with tunnel \
        offloads only.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for spot in view.devices() {
        let timeouts = spot.device.and_then(|device| device.tx_timeouts).unwrap_or_default();
        if timeouts == 0 {
            continue;
        }
        outcome.add(
            CHECK
                .on(spot)
                .evidence(
                    format!("{timeouts} timeouts since the driver was loaded"),
                    "/sys/class/net/…/tx_timeout",
                )
                .cost(Cost::estimated(0.3, "packets while a queue stands still"))
                .confidence(Confidence::Medium),
        );
    }
}
