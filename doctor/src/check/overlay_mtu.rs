//! OV013: Overlay MTU plus overhead is over the underlay MTU.

use super::{Check, Cost, Outcome, Severity, View};
use crate::apply::mtu_is_above;
use crate::change::Change;
use crate::view::vxlan_overhead;

pub(super) const CHECK: Check = Check {
    code: "OV013",
    title: "The overlay MTU does not fit the underlay",
    severity: Severity::Error,
    explanation: "A full-size packet of the overlay and the VXLAN headers (50 bytes over IPv4, \
        70 over IPv6) are more than the underlay's MTU. Small packets and handshakes \
        pass; full-size ones are dropped or fragmented, so that connections stall as \
        soon as they carry data. Super-packets hide nothing: each of their segments is \
        over the MTU.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for (tunnel, vxlan) in view.tunnels() {
        if vxlan.external {
            continue;
        }
        // The worst of its underlays.
        let worst = view
            .underlays(tunnel)
            .into_iter()
            .filter(|underlay| !underlay.nic.interface.loopback)
            .map(|underlay| {
                let link = underlay.nic.interface.mtu;
                let mtu = underlay.way.mtu.filter(|mtu| *mtu < link).unwrap_or(link);
                (mtu.saturating_sub(vxlan_overhead(underlay.remote)), mtu, underlay)
            })
            .min_by_key(|(room, ..)| *room);
        let Some((room, underlay_mtu, underlay)) = worst else { continue };
        let mtu = tunnel.interface.mtu;
        if mtu <= room {
            continue;
        }
        let finding = CHECK
            .on(tunnel)
            .evidence(format!("MTU of {}: {mtu}", tunnel.name()), "IFLA_MTU")
            .evidence(
                format!(
                    "MTU to {} by {} {}: {underlay_mtu}; less {} for VXLAN: {room}",
                    underlay.remote,
                    underlay.nic.namespace.label,
                    underlay.nic.name(),
                    vxlan_overhead(underlay.remote),
                ),
                "RTM_GETROUTE, IFLA_MTU",
            )
            .cost(Cost::estimated(1.0, "all packets of full size"));
        let change = Change::mtu(tunnel, room);
        let links = tunnel.namespace.interfaces.get().map_or(&[][..], Vec::as_slice);
        // The kernel would not put the earlier value back.
        outcome.add(match mtu_is_above(tunnel.interface, links, &change.from) {
            Some(reason) => finding.by_hand(
                change.command(),
                "bridge, veth and tenant devices above need the same MTU (OV014, OV015); cannot \
                 be undone while the underlay's MTU is what it is",
                format!("not possible: {reason}"),
            ),
            None => finding.set(
                change,
                "bridge, veth and tenant devices above need the same MTU (OV014, OV015); open \
                 connections go on",
            ),
        });
    }
}
