//! OV015: Ends of a veth pair differ in MTU.

use super::{Check, Cost, Outcome, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV015",
    title: "Both ends of a veth pair differ in MTU",
    severity: Severity::Warn,
    explanation: "A veth device drops what is over the MTU of its other end. The end with the \
        larger MTU sends packets that never arrive, without an error; TCP only works \
        where its MSS is agreed on by the end with the smaller MTU.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for spot in view.devices() {
        let Some(peer) = view.peer(spot) else { continue };
        let (mtu, other) = (spot.interface.mtu, peer.interface.mtu);
        // Said once, of the end that sends too large packets.
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
