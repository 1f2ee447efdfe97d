//! OV092: a VXLAN device sends no outer checksums to an endpoint in user space.

use std::net::IpAddr;

use netstate::interface::Vxlan;

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV092",
    title: "No outer checksums to a user-space tunnel",
    severity: Severity::Warn,
    explanation: "The remote of this VXLAN device is an endpoint in user space: there is no VXLAN \
        device, but a socket on the tunnel's port. The kernel merges datagrams for a socket \
        (UDP_GRO) only if they have a checksum, so the endpoint gets every packet alone. Over IPv6, \
        a socket drops packets without a checksum unless it has set UDP_NO_CHECK6_RX. Make the \
        device with udpcsum, or udp6zerocsumtx off.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.fixed_tunnels() {
        for underlay in view.underlays(tunnel) {
            let remote = underlay.remote;
            let sends = if remote.is_ipv4() { vxlan.checksum } else { vxlan.checksum6 };
            if sends {
                continue;
            }
            let Some(source) = in_user_space(view, remote, vxlan) else { continue };
            let setting = if remote.is_ipv4() { "noudpcsum" } else { "udp6zerocsumtx" };
            outcome.add(
                CHECK
                    .on(tunnel)
                    .evidence(setting, "RTM_GETLINK")
                    .evidence(format!("no VXLAN device of port {} at {remote}", vxlan.port), source)
                    .cost(Cost::estimated(0.3, "the endpoint's CPU time"))
                    .confidence(Confidence::Medium),
            );
            break;
        }
    }
}

/// Returns the source of the knowledge that the remote is an endpoint in user space.
pub(super) fn in_user_space(
    view: &View<'_>,
    remote: IpAddr,
    vxlan: &Vxlan,
) -> Option<&'static str> {
    if let Some(spot) = view.with_address(remote).next() {
        let devices = view.devices_of(spot.place.namespace);
        let has_device =
            devices.filter_map(|other| other.vxlan()).any(|other| other.port == vxlan.port);
        let sockets = spot.namespace.udp_sockets.get()?;
        // Kernel tunnels have a socket, too.
        let has_socket = sockets.iter().any(|socket| socket.port == vxlan.port);
        return (has_socket && !has_device).then_some("RTM_GETLINK, /proc/net/udp");
    }
    let far = view.host().far_ends.iter().find(|far| far.is_at(remote))?;
    let has_device = far.vxlans().any(|(_, other)| other.port == vxlan.port);
    // Another kind of device may have the port; a host without any VXLAN device has none.
    (!has_device).then_some("asked by --peer")
}
