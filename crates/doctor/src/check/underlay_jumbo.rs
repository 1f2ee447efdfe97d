//! OV017: A jumbo underlay under an overlay with an ordinary MTU.

use super::leads_on::room;
use super::overlay_extent::raised;
use super::{Check, Confidence, Cost, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV017",
    title: "The overlay leaves room of the underlay unused",
    severity: Severity::Info,
    explanation: "The underlay carries larger packets than the overlay uses. With larger packets \
        fewer are needed for the same data, which matters most where GSO packets are \
        cut early (no TSO, no GRO). Every device of the overlay, and every host of it, \
        has to change together.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    /// Less than this is not worth the change.
    const WORTH: u32 = 500;
    for (tunnel, vxlan) in view.tunnels() {
        let Some(room) = room(view, tunnel) else { continue };
        let mtu = tunnel.interface.mtu;
        if vxlan.external || room < mtu.saturating_add(WORTH) {
            continue;
        }
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(format!("MTU of {}: {mtu}", tunnel.name()), "IFLA_MTU")
                .evidence(format!("the underlay has room for {room}"), "RTM_GETROUTE, IFLA_MTU")
                .cost(Cost::estimated(0.15, "CPU time of streams; more without offloads"))
                .confidence(Confidence::Low)
                .set_all(
                    raised(view, tunnel, room),
                    "packets are lost until every device and host of the overlay has it",
                ),
        );
    }
}
