//! OV084: All packets of a tunnel have one UDP source port.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV084",
    title: "All flows of a tunnel share one source port",
    severity: Severity::Warn,
    explanation: "The VXLAN device has a range of source ports (srcport) with a single port. VXLAN \
        carries a hash of the inner flow in the outer source port (RFC 7348, section 5), so that \
        NICs, steering (rps_cpus) and routers spread flows. With one port, all flows between two \
        hosts take one queue, one CPU and one path. The range cannot be changed later: make the \
        device again without srcport.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.tunnels() {
        let Some((low, high)) = vxlan.source_ports else { continue };
        // The kernel takes ports from `low` up to, not including, `high`; other ports if that is
        // none (udp_flow_src_port).
        if high.checked_sub(low) != Some(1) {
            continue;
        }
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(format!("srcport {low} {high}: always {low}"), "IFLA_VXLAN_PORT_RANGE")
                .cost(Cost::estimated(0.4, "packets of several flows between two hosts"))
                .confidence(Confidence::Medium),
        );
    }
}
