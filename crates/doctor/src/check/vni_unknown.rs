//! OV034: a remote VTEP that doctor sees has no device with the same VNI.

use super::{Check, CheckOutcome, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV034",
    title: "The remote end does not know the VNI",
    severity: Severity::Error,
    explanation: "The remote VTEP, which doctor can see, listens on the tunnel's port but has no \
        VXLAN device with this VNI, so it drops every packet silently. Both ends of an overlay \
        need the same VNI.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.fixed_tunnels() {
        for underlay in view.underlays(tunnel) {
            for remote in view.neighbour_with(underlay.nic, underlay.remote) {
                let there: Vec<_> = view
                    .tunnels()
                    .filter(|(spot, other)| {
                        let under = view.ways(*spot).map(|ways| ways.underlay);
                        under == Some(remote.namespace.inode) && other.port == vxlan.port
                    })
                    .collect();
                let known = there.iter().any(|(_, other)| other.external || other.vni == vxlan.vni);
                // Without a kernel device, it is an endpoint in user space, or OV033 reports it.
                if there.is_empty() || known {
                    continue;
                }
                let vnis: Vec<String> =
                    there.iter().map(|(_, other)| other.vni.to_string()).collect();
                outcome.add(
                    CHECK
                        .on(tunnel)
                        .evidence(format!("VNI {}", vxlan.vni), "IFLA_VXLAN_ID")
                        .evidence(
                            format!(
                                "{} ({}) has VNI {}",
                                remote.namespace.label,
                                underlay.remote,
                                vnis.join(", ")
                            ),
                            "IFLA_VXLAN_ID",
                        )
                        .cost(Cost::estimated(1.0, "all packets to this remote")),
                );
            }
        }
    }
}
