//! OV007: gso_max_size or gso_max_segs of a device on a path is below its default.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::{Attribute, Change};

pub(super) const CHECK: Check = Check {
    code: "OV007",
    title: "GSO packets are limited below 64 KiB",
    severity: Severity::Warn,
    explanation: "The kernel gives a device GSO packets of at most gso_max_size bytes and \
        gso_max_segs segments. If any device on a path limits them below 64 KiB, they are cut \
        earlier and more headers are built for the same data. Correct if the hardware accepts no \
        more (tso_max_size).",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    /// GSO_LEGACY_MAX_SIZE and GSO_MAX_SEGS of include/linux/netdevice.h.
    const USUAL_SIZE: u32 = 65_536;
    const USUAL_SEGS: u32 = 65_535;
    for spot in view.devices() {
        let link = spot.interface;
        // The kernel reports tso_max_size since 5.19, and a separate IPv4 size since 6.3.
        let most = link.tso_max_size.unwrap_or(USUAL_SIZE).min(USUAL_SIZE);
        let size = link.gso_ipv4_max_size.or(link.gso_max_size);
        // A VXLAN device inherits the limits of its lower device, a bridge those of its ports.
        let finding = match (size, link.gso_max_segs) {
            (Some(size), _) if size < most => CHECK
                .on(spot)
                .evidence(format!("gso_max_size {size}, possible {most}"), "IFLA_GSO_MAX_SIZE")
                .cost(Cost::estimated(
                    0.3 * (1.0 - f64::from(size) / f64::from(most)),
                    "CPU time of TCP streams",
                ))
                .set(Change::link(spot, Attribute::GsoMaxSize, size, most), "none known"),
            (_, Some(segs)) if segs < 44 && link.tso_max_size.is_some() => CHECK
                .on(spot)
                .evidence(format!("gso_max_segs {segs}"), "IFLA_GSO_MAX_SEGS")
                .cost(Cost::estimated(0.2, "CPU time of TCP streams"))
                .set(Change::link(spot, Attribute::GsoMaxSegs, segs, USUAL_SEGS), "none known"),
            _ => continue,
        };
        outcome.add(finding.confidence(Confidence::Medium));
    }
}
