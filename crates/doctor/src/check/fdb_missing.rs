//! OV035: a VXLAN device has a neighbour's MAC address but no remote for it.

use super::{Check, CheckOutcome, Cost, Severity, View};
use netstate::MacAddr;
use netstate::entry::Knowledge;

pub(super) const CHECK: Check = Check {
    code: "OV035",
    title: "A forwarding entry is missing",
    severity: Severity::Error,
    explanation: "The namespace has a permanent neighbour entry on the VXLAN device, but the \
        device has no forwarding entry for that hardware address and no default remote. It drops \
        packets to that address and counts them in tx_dropped. A control plane set the neighbour \
        entry without the forwarding entry.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.fixed_tunnels() {
        let namespace = tunnel.namespace;
        let Some(fdb) = outcome.need(&namespace.label, &namespace.fdb) else { continue };
        let own: Vec<_> = fdb
            .iter()
            .filter(|entry| entry.link == tunnel.interface.index && entry.remote.is_some())
            .collect();
        let has_default = own.iter().any(|entry| entry.mac == Some(MacAddr::default()));
        // Packets without an entry go to the default remote.
        if has_default || vxlan.remote.is_some() {
            continue;
        }
        let neighbours = namespace.neighbours.get().into_iter().flatten();
        let fixed = neighbours.filter(|known| {
            known.link == tunnel.interface.index && known.knowledge == Knowledge::Permanent
        });
        for known in fixed {
            // The device handles multicast without an entry per address.
            let Some(mac) = known.mac.filter(|mac| mac.is_unicast()) else { continue };
            if own.iter().any(|entry| entry.mac == Some(mac)) {
                continue;
            }
            outcome.add(
                CHECK
                    .on(tunnel)
                    .evidence(format!("neighbour {} is at {mac}", known.address), "RTM_GETNEIGH")
                    .evidence(
                        format!("no forwarding entry for {mac}, no default remote"),
                        "RTM_GETNEIGH",
                    )
                    .cost(Cost::estimated(1.0, "all packets to this neighbour")),
            );
        }
    }
}
