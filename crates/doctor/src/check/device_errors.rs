//! OV050: Receive or transmit errors of a device move.

use super::{Check, Cost, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV050",
    title: "A device counts errors",
    severity: Severity::Warn,
    explanation: "A device counted errors between the two readings. On hardware: cable, optics, \
        duplex. On a VXLAN device rx_errors are packets with reserved bits or options \
        that it does not take, tx_errors those it could not route.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for spot in view.devices() {
        let Some(moved) = spot.moved() else { continue };
        let errors = moved.rx_errors.saturating_add(moved.tx_errors);
        // What a full ring costs is OV022's.
        let missed = moved.rx_missed.saturating_add(moved.rx_fifo);
        if errors.saturating_sub(missed) == 0 {
            continue;
        }
        let all = moved.rx_packets.saturating_add(moved.tx_packets).saturating_add(errors);
        outcome.add(
            CHECK
                .on(spot)
                .evidence(
                    format!(
                        "rx_errors +{} (crc +{}), tx_errors +{} (carrier +{})",
                        moved.rx_errors, moved.rx_crc, moved.tx_errors, moved.tx_carrier
                    ),
                    "IFLA_STATS64",
                )
                .cost(Cost::of_packets(errors, all, "packets")),
        );
    }
}
