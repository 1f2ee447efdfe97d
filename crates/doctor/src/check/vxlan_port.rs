//! OV053: a VXLAN device does not use IANA's port.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV053",
    title: "The tunnel uses a port that NICs do not know",
    severity: Severity::Info,
    explanation: "The VXLAN device uses another UDP port than 4789 (8472 is Linux's old default, \
        and flannel's). NICs and their drivers parse tunnels only on ports they know. The kernel \
        configures them in most cases, but some hypervisors know 4789 only, and offload nothing on \
        other ports.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    /// RFC 7348, section 8.
    const IANA: u16 = 4789;
    for (tunnel, vxlan) in view.tunnels() {
        // Only hardware recognizes tunnels by their port.
        if vxlan.port == IANA || view.underlays(tunnel).iter().all(|u| !u.nic.is_physical()) {
            continue;
        }
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(format!("UDP port {}", vxlan.port), "IFLA_VXLAN_PORT")
                .cost(Cost::estimated(0.05, "offloads of some hypervisors' NICs"))
                .confidence(Confidence::Low),
        );
    }
}
