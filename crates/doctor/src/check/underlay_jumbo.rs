//! OV017: A jumbo underlay under an overlay with an ordinary MTU.

use super::leads_on::room;
use super::overlay_extent::{raised, unread_ends};
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV017",
    title: "The overlay MTU could be larger",
    severity: Severity::Info,
    explanation: "The underlay carries larger packets than the overlay uses. Larger packets need \
        fewer headers for the same data, which matters most if GSO packets are cut early (no TSO, \
        no GRO). All devices and hosts of the overlay must be changed together.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    /// A smaller gain in bytes is not worth the change.
    const WORTH: u32 = 500;
    for (tunnel, _) in view.fixed_tunnels() {
        // The underlay's MTU is unknown.
        let Some(room) = room(view, tunnel) else { continue };
        let mtu = tunnel.interface.mtu;
        if room < mtu.saturating_add(WORTH) {
            continue;
        }
        let risk = match unread_ends(view, tunnel) {
            Some(ends) => {
                format!(
                    "it changes this end only: packets are lost until {ends} have this MTU, too"
                )
            }
            None => "packets are lost until every device and host of the overlay has this MTU"
                .to_owned(),
        };
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(format!("MTU of {}: {mtu}", tunnel.name()), "IFLA_MTU")
                .evidence(format!("the underlay has room for {room}"), "RTM_GETROUTE, IFLA_MTU")
                .cost(Cost::estimated(0.15, "CPU time of streams; more without offloads"))
                .confidence(Confidence::Low)
                .set_all(raised(view, tunnel, room), &risk),
        );
    }
}
