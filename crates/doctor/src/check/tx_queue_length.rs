//! OV052: txqueuelen of a device with a queue is below 100.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::{Attribute, Change};

pub(super) const CHECK: Check = Check {
    code: "OV052",
    title: "A transmit queue is very short",
    severity: Severity::Warn,
    explanation: "The device's transmit queue (txqueuelen) holds fewer than 100 packets, and a TAP \
        device or a pfifo queue takes its length from it. Bursts that a CPU sends at once overflow \
        it, such as the segments of one GSO packet.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    /// Two GSO packets of 64 KiB, cut for an MTU of 1500.
    const LEAST: u32 = 100;
    /// `DEFAULT_TX_QUEUE_LEN` of include/linux/netdevice.h.
    const DEFAULT: u32 = 1000;
    for spot in view.devices() {
        let length = spot.interface.tx_queue_len;
        let queues = match spot.interface.qdisc.as_deref() {
            Some("pfifo_fast" | "pfifo" | "mq") => true,
            // Other disciplines have their own limits. A TAP's ring always has this length.
            _ => spot.kind() == "tun",
        };
        if !queues || length >= LEAST {
            continue;
        }
        outcome.add(
            CHECK
                .on(spot)
                .evidence(format!("txqueuelen {length}"), "IFLA_TXQLEN")
                .cost(Cost::estimated(0.2, "bursts of packets"))
                .confidence(Confidence::Medium)
                .set(
                    Change::link(spot, Attribute::Txqueuelen, length, DEFAULT),
                    "packets wait longer before they are dropped",
                ),
        );
    }
}
