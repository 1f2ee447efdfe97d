//! OV037: A VXLAN device's remote is an address of its own underlay namespace.

use super::{Check, CheckOutcome, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV037",
    title: "A forwarding entry points back to this host",
    severity: Severity::Warn,
    explanation: "A forwarding entry of the VXLAN device sends to an address of this host. Frames \
        come back, or reach the wrong device. Either a control plane took this host for a remote \
        one, or a host was cloned.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.tunnels() {
        let Some(ways) = view.ways(tunnel) else { continue };
        // The underlay's namespace was not read.
        let Some(at) = view.namespace(ways.underlay) else { continue };
        let Some(namespace) = view.host().namespaces.get(at) else { continue };
        let Some(own) = outcome.need(&namespace.label, &namespace.addresses) else { continue };
        for (remote, _) in &ways.ways {
            let is_own = own.iter().any(|known| known.address == *remote);
            if !is_own && vxlan.local != Some(*remote) {
                continue;
            }
            outcome.add(
                CHECK
                    .on(tunnel)
                    .evidence(format!("remote {remote}"), "RTM_GETNEIGH (PF_BRIDGE)")
                    .evidence(
                        format!("{remote} is an address of {}", namespace.label),
                        "RTM_GETADDR",
                    )
                    .cost(Cost::estimated(0.5, "packets to this remote")),
            );
        }
    }
}
