//! OV053: A VXLAN device uses another port than IANA's.

use super::{Check, Confidence, Cost, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV053",
    title: "The tunnel uses a port that NICs do not know",
    severity: Severity::Info,
    explanation: "The VXLAN device uses another UDP port than 4789 (8472 is Linux's old default, \
        and flannel's). NICs and their drivers look into tunnels only on ports they \
        were told of; most are told by the kernel, but some hypervisors know 4789 \
        only, and then offload nothing.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    /// RFC 7348, section 8.
    const IANA: u16 = 4789;
    for (tunnel, vxlan) in view.tunnels() {
        // Only hardware looks into tunnels by their port.
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
