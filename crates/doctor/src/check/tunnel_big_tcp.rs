//! OV093: a tunnel device accepts smaller GSO packets than the NIC below it.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV093",
    title: "A tunnel does not carry BIG TCP packets",
    severity: Severity::Info,
    explanation: "BIG TCP is on for the NIC: it takes GSO packets above 64 KiB. The kernel's VXLAN \
        device takes less (tso_max_size), so streams in the tunnel are cut earlier than those \
        beside it, and cost more CPU time per byte. Kernels with BIG TCP for UDP tunnels raise the \
        limit; no setting does.",
    run,
};

/// `GSO_LEGACY_MAX_SIZE` of include/linux/netdevice.h.
const LEGACY: u32 = 65_536;

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, _) in view.tunnels() {
        let Some(most) = tunnel.interface.tso_max_size else { continue };
        let used = |link: &netstate::interface::Interface| {
            link.gso_max_size.max(link.gso_ipv4_max_size).unwrap_or(0)
        };
        let nics = view.underlays(tunnel);
        let larger = nics.iter().map(|underlay| underlay.nic).find(|nic| {
            let size = used(nic.interface);
            size > LEGACY && size > most
        });
        let Some(nic) = larger else { continue };
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(format!("tso_max_size {most}"), "IFLA_TSO_MAX_SIZE")
                .evidence(
                    format!("{}: gso_max_size {}", nic.name(), used(nic.interface)),
                    "IFLA_GSO_MAX_SIZE",
                )
                .cost(Cost::estimated(0.1, "CPU time of TCP streams in the tunnel"))
                .confidence(Confidence::Medium),
        );
    }
}
