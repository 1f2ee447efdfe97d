//! OV015: Ends of a veth pair differ in MTU.

use super::{Check, CheckOutcome, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV015",
    title: "The ends of a veth pair have different MTUs",
    severity: Severity::Warn,
    explanation: "A veth device drops packets larger than the MTU of its peer. The end with the \
        larger MTU sends packets that never arrive, without an error. TCP works only if the end \
        with the smaller MTU announces its MSS.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for spot in view.devices() {
        // The peer is in a namespace that was not read.
        let Some(peer) = view.peer(spot) else { continue };
        let (mtu, other) = (spot.interface.mtu, peer.interface.mtu);
        // Reported once, for the end that sends packets that are too large.
        if mtu <= other {
            continue;
        }
        outcome.add(
            CHECK
                .on(spot)
                .evidence(format!("MTU of {}: {mtu}", spot.name()), "IFLA_MTU")
                .evidence(
                    format!("MTU of its peer {} {}: {other}", peer.namespace.label, peer.name()),
                    "IFLA_MTU, IFLA_LINK",
                )
                .cost(Cost::estimated(0.8, "packets over the smaller MTU"))
                .set(Change::mtu(spot, other), "none for open connections"),
        );
    }
}
