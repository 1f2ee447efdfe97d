//! OV049: A device counts transmit timeouts.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV049",
    title: "A transmit queue hung",
    severity: Severity::Error,
    explanation: "The kernel's watchdog found a transmit queue of the device that made no progress \
        for seconds, and had the driver reset it. Packets are lost during that time. The cause is \
        a driver, firmware or hypervisor defect. With some drivers it appears with tunnel offloads \
        only.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for spot in view.devices() {
        let timeouts = spot.device.and_then(|device| device.tx_timeouts).unwrap_or_default();
        // No timeout, or the driver has no such counter.
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
                .cost(Cost::estimated(0.3, "packets while a queue hangs"))
                .confidence(Confidence::Medium),
        );
    }
}
