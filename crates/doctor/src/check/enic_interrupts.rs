//! OV061: An enic has too few interrupts for its queues.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV061",
    title: "An enic has too few interrupts for its queues",
    severity: Severity::Warn,
    explanation: "Cisco's VIC (driver enic) needs one interrupt for each receive and transmit \
        queue, two more interrupts, and one completion queue for each queue. With fewer, the \
        driver uses fewer queues than the adapter policy allows. Set them in the adapter policy of \
        UCS Manager or CIMC: interrupts RX + TX + 2, completion queues RX + TX.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for spot in view.devices() {
        let Some(device) = spot.device.filter(|device| device.driver.as_deref() == Some("enic"))
        else {
            continue;
        };
        // Without both numbers there is nothing to compare.
        let (Some(channels), Some(interrupts)) = (device.channels, &device.interrupts) else {
            continue;
        };
        let (rx, tx) = (channels.rx.most, channels.tx.most);
        let wanted = rx.saturating_add(tx).saturating_add(2);
        let have = u32::try_from(interrupts.len()).unwrap_or(u32::MAX);
        if have >= wanted {
            continue;
        }
        outcome.add(
            CHECK
                .on(spot)
                .evidence(format!("{rx} receive and {tx} transmit queues"), "ETHTOOL_GCHANNELS")
                .evidence(
                    format!("{have} interrupts, {wanted} needed"),
                    "/sys/class/net/…/device/msi_irqs",
                )
                .cost(Cost::estimated(0.3, "packets of several flows"))
                .confidence(Confidence::Medium),
        );
    }
}
