//! OV018: the VXLAN devices of both ends have different MTUs, where doctor sees both.

use super::leads_on::far_ends;
use super::overlay_extent::lowered;
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV018",
    title: "Both ends of a tunnel differ in MTU",
    severity: Severity::Warn,
    explanation: "The VXLAN device here and the one at the remote VTEP have different MTUs. \
        Packets that fit here may exceed the MTU of devices behind the remote end, where they are \
        dropped without an error.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.tunnels() {
        for other in far_ends(view, tunnel, vxlan) {
            let (mtu, theirs) = (tunnel.interface.mtu, other.interface.mtu);
            // The smaller end loses nothing: the finding is at the other one.
            if mtu <= theirs {
                continue;
            }
            outcome.add(
                CHECK
                    .on(tunnel)
                    .evidence(format!("MTU of {}: {mtu}", tunnel.name()), "IFLA_MTU")
                    .evidence(
                        format!(
                            "MTU of {} {} at the other end: {theirs}",
                            other.namespace.label,
                            other.name()
                        ),
                        "IFLA_MTU",
                    )
                    .cost(Cost::estimated(0.5, "packets over the smaller MTU"))
                    .confidence(Confidence::Medium)
                    .set_all(
                        lowered(view, tunnel, theirs),
                        "devices of the overlay that doctor cannot see need the same MTU",
                    ),
            );
        }
    }
}
