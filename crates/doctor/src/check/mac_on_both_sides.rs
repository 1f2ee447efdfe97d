//! OV081: A tunnel has learned the address of a local tenant.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV081",
    title: "A tenant's address is on both sides of a tunnel",
    severity: Severity::Error,
    explanation: "A VXLAN device has learned from another host the hardware address of a tenant on \
        its own bridge, and the bridge sends packets for that address into the tunnel. Either two \
        tenants share the address (cloned machines, fixed addresses), or frames return through a \
        loop of bridges. The bridge learns the address again with each frame, so only some packets \
        reach the right tenant.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.fixed_tunnels() {
        let Some(bridge) = view.bridge(tunnel) else { continue };
        let fdb = tunnel.namespace.fdb.get().into_iter().flatten();
        for entry in fdb.filter(|entry| entry.link == tunnel.interface.index && !entry.fixed) {
            // Entries with a remote are the VXLAN device's own; the bridge's show the port.
            let (Some(mac), None) = (entry.mac.filter(|mac| mac.is_unicast()), entry.remote) else {
                continue;
            };
            // After a move of a machine the tunnel's own entry stays for minutes; the bridge's does
            // not.
            if entry.bridge != Some(bridge.interface.index) {
                continue;
            }
            let local = view.ports(bridge).filter(|port| port.vxlan().is_none()).find_map(|port| {
                let tenant = view.peer(port)?;
                let is_same = tenant.interface.up && tenant.interface.mac == Some(mac);
                is_same.then_some(tenant)
            });
            let Some(tenant) = local else { continue };
            let behind = tunnel.namespace.fdb.get().into_iter().flatten().find_map(|own| {
                let is_same = own.link == tunnel.interface.index && own.mac == Some(mac);
                own.remote.filter(|_| is_same)
            });
            let from = behind.map_or_else(String::new, |remote| format!(", from {remote}"));
            outcome.add(
                CHECK
                    .on(tunnel)
                    .evidence(
                        format!(
                            "{} has learned {mac} at {} (VNI {}){from}",
                            bridge.name(),
                            tunnel.name(),
                            vxlan.vni
                        ),
                        "RTM_GETNEIGH",
                    )
                    .evidence(
                        format!("{mac} is {} {}", tenant.namespace.label, tenant.name()),
                        "IFLA_ADDRESS",
                    )
                    .cost(Cost::estimated(0.7, "packets to this tenant"))
                    .confidence(Confidence::Medium),
            );
        }
    }
}
