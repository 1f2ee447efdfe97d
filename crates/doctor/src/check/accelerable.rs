//! OV086: The fast path would carry an overlay's packets.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::view::DeviceKey;
use settings::command::quote;

pub(super) const CHECK: Check = Check {
    code: "OV086",
    title: "An overlay could use the fast path",
    severity: Severity::Info,
    explanation: "Nothing is wrong. A dry run of overlane accel accepts this VXLAN device, at \
        least one port of a tenant and one remote VTEP, and accel does not run. Its eBPF programs \
        carry packets past the bridge, the routes and the VXLAN device of this host if the kernel \
        would send exactly the same packets; all others take the kernel's path. The gain depends \
        on the traffic: small packets and short connections gain most. Conditions: Linux 6.6, and \
        a process that stays; counters of rules and devices do not advance for packets on the fast \
        path. overlane accel check --seconds 10 shows the share of your traffic, and overlane lab \
        run --modes host,vxlan,vxlan+accel measures the gain on this machine.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for eligible in &view.host().eligible {
        let place = view
            .namespace(eligible.namespace)
            .map(|namespace| DeviceKey { namespace, index: eligible.link });
        // The device or its namespace was removed meanwhile.
        let Some(spot) = place.and_then(|place| view.spot(place)) else { continue };
        let slow = match eligible.slow {
            0 => String::new(),
            slow => format!("; {slow} others take the kernel's path (overlane accel check)"),
        };
        let (ports, remotes) = (eligible.ports, eligible.remotes);
        let within = match &spot.namespace.path {
            Some(path) => format!(" --netns {}", quote(path)),
            None => String::new(),
        };
        let command = |verb: &str| format!("overlane accel {verb} {}{within}", quote(spot.name()));
        outcome.add(
            CHECK
                .on(spot)
                .evidence(
                    format!("eligible: ports of tenants: {ports}, remote VTEPs: {remotes}{slow}"),
                    "overlane accel check, dry run",
                )
                .cost(Cost::estimated(0.0, "unknown: it depends on the traffic"))
                .confidence(Confidence::Medium)
                .by_hand(
                    command("on"),
                    "a process stays; counters of rules and devices do not advance for packets on \
                     the fast path; measure before and after: overlane measure run",
                    command("off"),
                ),
        );
    }
}
