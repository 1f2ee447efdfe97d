//! OV013: Overlay MTU plus overhead is over the underlay MTU.

use super::overlay_extent::{extent, lowered, unread_ends};
use super::{Check, CheckOutcome, Cost, Severity, View};
use netstate::interface::vxlan_overhead;
use settings::Change;
use settings::apply::mtu_is_above;

pub(super) const CHECK: Check = Check {
    code: "OV013",
    title: "The overlay MTU does not fit the underlay",
    severity: Severity::Error,
    explanation: "A full-size packet of the overlay plus the VXLAN headers (50 bytes over IPv4, 70 \
        over IPv6) exceeds the underlay's MTU. Small packets and handshakes pass. Full-size \
        packets are dropped or fragmented, so connections stall as soon as they carry data. GSO \
        does not help: each segment exceeds the MTU.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, _) in view.fixed_tunnels() {
        // The underlay with the least room decides.
        let worst = view
            .underlays(tunnel)
            .into_iter()
            // Packets to a remote on this host leave by no wire.
            .filter(|underlay| !underlay.nic.interface.loopback)
            // OV036 reports a route that leads into the tunnel itself.
            .filter(|underlay| underlay.nic.place != tunnel.place)
            .map(|underlay| {
                // A smaller MTU of the route is a finding of its own: it may be a learned one that
                // expires, for which devices must not be changed.
                let mtu = underlay.nic.interface.mtu;
                (mtu.saturating_sub(vxlan_overhead(underlay.remote)), mtu, underlay)
            })
            .min_by_key(|(room, ..)| *room);
        // No remote is known, or all are on this host.
        let Some((room, underlay_mtu, underlay)) = worst else { continue };
        let mtu = tunnel.interface.mtu;
        // A full packet fits with its headers.
        if mtu <= room {
            continue;
        }
        let finding = CHECK
            .on(tunnel)
            .evidence(format!("MTU of {}: {mtu}", tunnel.name()), "IFLA_MTU")
            .evidence(
                format!(
                    "MTU to {} through {} {}: {underlay_mtu}; less {} for VXLAN: {room}",
                    underlay.remote,
                    underlay.nic.namespace.label,
                    underlay.nic.name(),
                    vxlan_overhead(underlay.remote),
                ),
                "RTM_GETROUTE, IFLA_MTU",
            )
            .cost(Cost::estimated(1.0, "all packets of full size"));
        let changes = lowered(view, tunnel, room);
        // The kernel would reject the earlier value, so there is no undo.
        let one_way = extent(view, tunnel).into_iter().find_map(|spot| {
            let links = spot.namespace.interfaces.get().map_or(&[][..], Vec::as_slice);
            let is_changed = spot.interface.mtu > room;
            let mtu = spot.interface.mtu.to_string();
            mtu_is_above(spot.interface, links, &mtu).filter(|_| is_changed)
        });
        let others = match unread_ends(view, tunnel) {
            Some(ends) => format!("it changes this end only: {ends} need the same MTU"),
            None => "devices of the overlay that doctor cannot see need the same MTU".to_owned(),
        };
        outcome.add(match one_way {
            Some(reason) => {
                let commands: Vec<String> = changes.iter().map(Change::command).collect();
                finding.by_hand(
                    commands.join(" && "),
                    &format!("{others}; cannot be undone while the underlay keeps its MTU"),
                    format!("not possible: {reason}"),
                )
            }
            None => finding.set_all(changes, &format!("{others}; open connections continue")),
        });
    }
}
