//! OV080: A VXLAN device is not a port of the bridge that it should be in.

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Finding, Severity, View};
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV080",
    title: "A tunnel is not connected to its bridge",
    severity: Severity::Error,
    explanation: "A VXLAN device is up, but it is no port of a bridge, has no address and no \
        route, and no other device is on top of it, so nothing uses it. The same namespace has a \
        bridge of tenants without a tunnel. The device was removed from the bridge, or the program \
        that made it stopped halfway. A device that programs use by tc or BPF alone may be \
        correct.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, _) in view.fixed_tunnels() {
        let at = tunnel.place.namespace;
        if !tunnel.interface.up || tunnel.interface.master.is_some() {
            continue;
        }
        if is_used(view, tunnel) {
            continue;
        }
        let bridges: Vec<DeviceRef<'_>> = view
            .devices_of(at)
            .filter(|spot| spot.kind() == "bridge" && spot.interface.up)
            .filter(|spot| view.ports(*spot).next().is_some())
            .filter(|spot| view.ports(*spot).all(|port| port.vxlan().is_none()))
            .collect();
        // Without a bridge of tenants it is unknown where the tunnel belongs.
        if bridges.is_empty() {
            continue;
        }
        let names: Vec<&str> = bridges.iter().map(|bridge| bridge.name()).collect();
        let finding = CHECK
            .on(tunnel)
            .evidence("no bridge, no address, no route, no device on top", "RTM_GETLINK")
            .evidence(format!("bridges without a tunnel: {}", names.join(", ")), "RTM_GETLINK")
            .cost(Cost::estimated(1.0, "all packets between the tenants and other hosts"))
            .confidence(Confidence::Medium);
        let risk = "joins the bridge's network with the tunnel's: make sure that they are one";
        outcome.add(with_join(finding, tunnel, &bridges, risk));
    }
}

/// Adds the command that makes the device a port of the bridge. With several bridges, the right one
/// is unknown.
pub(super) fn with_join(
    finding: Finding,
    device: DeviceRef<'_>,
    bridges: &[DeviceRef<'_>],
    risk: &str,
) -> Finding {
    // With several bridges it is unknown which one is right.
    let [bridge] = bridges else { return finding };
    let (name, path) = (quote(device.name()), device.namespace.path.as_deref());
    finding.by_hand(
        inside(path, &format!("ip link set {name} master {}", quote(bridge.name()))),
        risk,
        inside(path, &format!("ip link set {name} nomaster")),
    )
}

/// Whether something sends through a device that is no port of a bridge.
pub(super) fn is_used(view: &View<'_>, device: DeviceRef<'_>) -> bool {
    let (index, namespace) = (device.interface.index, device.namespace);
    let addresses = namespace.addresses.get().into_iter().flatten();
    let has_address =
        addresses.filter(|known| known.link == index).any(|known| match known.address {
            std::net::IpAddr::V4(_) => true,
            std::net::IpAddr::V6(six) => !six.is_unicast_link_local(),
        });
    let routes = namespace.routes.get();
    // Unread routes prove nothing.
    let has_route = routes.is_none_or(|routes| {
        routes.iter().any(|route| {
            let is_own = match route.to {
                std::net::IpAddr::V6(to) => to.is_unicast_link_local() || to.is_multicast(),
                std::net::IpAddr::V4(_) => false,
            };
            route.link == Some(index) && !is_own
        })
    });
    // The other end of a veth pair names this device as its link, too, but is not on top of it.
    let carries = view
        .devices()
        .filter(|other| view.peer(*other).is_none())
        .any(|other| view.link(other).is_some_and(|below| below.place == device.place));
    // An ingress discipline has filters that may redirect packets.
    let qdiscs = namespace.qdiscs.get().map_or(&[][..], |pair| pair.after.as_slice());
    let has_filters = qdiscs
        .iter()
        .any(|qdisc| qdisc.link == index && ["clsact", "ingress"].contains(&qdisc.kind.as_str()));
    has_address || has_route || carries || has_filters
}
