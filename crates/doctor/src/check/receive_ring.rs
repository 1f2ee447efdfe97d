//! OV022: Packets are missed while the receive ring is below its maximum.

use super::{Check, CheckOutcome, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV022",
    title: "The receive ring overflows and could be larger",
    severity: Severity::Warn,
    explanation: "The NIC dropped packets between the two readings because it had no receive \
        buffer (rx_missed, rx_fifo), and its ring is smaller than the driver allows. A larger ring \
        absorbs larger bursts, but costs memory, and latency when it is full.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for spot in view.devices() {
        let Some(rings) = spot.device.and_then(|device| device.rings) else { continue };
        let Some(moved) = spot.moved() else { continue };
        let missed = moved.rx_missed.saturating_add(moved.rx_fifo);
        // A ring at its maximum cannot be raised.
        if missed == 0 || rings.rx.now >= rings.rx.most {
            continue;
        }
        outcome.add(
            CHECK
                .on(spot)
                .evidence(format!("rx_missed and rx_fifo +{missed}"), "IFLA_STATS64")
                .evidence(
                    format!("rx ring {}, at most {}", rings.rx.now, rings.rx.most),
                    "ETHTOOL_GRINGPARAM",
                )
                .cost(Cost::of_packets(missed, moved.rx_packets.saturating_add(missed), "packets"))
                .set(
                    Change::receive_ring(spot, rings.rx.now, rings.rx.most),
                    "some drivers briefly take the link down",
                ),
        );
    }
}
