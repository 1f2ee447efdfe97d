//! OV068: A host of pods and tunnels does not forward.

use std::net::IpAddr;

use super::nat_mtu::{routed, translates};
use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::finding::Finding;
use crate::host::Namespace;
use netstate::route_table::RouteKind;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV068",
    title: "The host does not forward between its networks",
    severity: Severity::Error,
    explanation: "The namespace has a network of containers and a way out for them (a tunnel, or \
        address translation), but it drops every packet from one to the other: \
        net.ipv4.ip_forward, its IPv6 counterpart, or forwarding of one of the devices is 0. The \
        kernel counts such IPv4 packets in InAddrErrors. A restart of the network service, a \
        hardening script or a file in /etc/sysctl.d often sets it back to 0. Without a tunnel or \
        translation, it is reported if InAddrErrors increases. Correct for a host that must not \
        connect its networks.",
    run,
};

const KEY: &str = "net/ipv4/ip_forward";
const KEY_IPV6: &str = "net/ipv6/conf/all/forwarding";

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        for ipv6 in [false, true] {
            let key = if ipv6 { KEY_IPV6 } else { KEY };
            let bridge = bridges(view, at, ipv6).into_iter().next();
            let way = bridge.and_then(|bridge| way_out(view, at, bridge, ipv6));
            match (way, is_off(namespace, key)) {
                (Some(way), true) => {
                    let finding = off(namespace, key, &way.text);
                    // The counter is IPv4's.
                    let finding =
                        if ipv6 { finding } else { counted(outcome, namespace, finding).0 };
                    outcome.add(finding);
                }
                (Some(way), false) => of_devices(view, outcome, at, ipv6, &way),
                (None, true) if !ipv6 => unproven(view, outcome, at),
                // There is nothing to forward.
                (None, _) => {}
            }
        }
    }
}

/// Pods and their way to other hosts.
struct WayOut<'a> {
    text: String,
    tunnel: Option<DeviceRef<'a>>,
}

/// Returns bridges with an address, and with ports that are no tunnels.
fn bridges<'a>(view: &View<'a>, at: usize, ipv6: bool) -> Vec<DeviceRef<'a>> {
    view.devices_of(at)
        .filter(|spot| spot.kind() == "bridge" && spot.interface.up)
        .filter(|spot| view.ports(*spot).any(|port| port.vxlan().is_none()))
        .filter(|spot| has_address(*spot, ipv6))
        .collect()
}

/// A tunnel with routes, or address translation. A bridge that only joins its ports needs no
/// forwarding.
fn way_out<'a>(
    view: &View<'a>,
    at: usize,
    bridge: DeviceRef<'a>,
    ipv6: bool,
) -> Option<WayOut<'a>> {
    let mut tunnels = view
        .devices_of(at)
        .filter(|spot| spot.vxlan().is_some() && spot.interface.up)
        .filter(|spot| view.bridge(*spot).is_none() && has_route(*spot, ipv6));
    let tunnel = tunnels.next();
    let chains = bridge.namespace.chains.get();
    let text = match tunnel {
        Some(tunnel) => format!("bridge {}, tunnel {}", bridge.name(), tunnel.name()),
        None if !ipv6 && chains.is_some_and(|all| translates(all)) => {
            format!("bridge {}, address translation", bridge.name())
        }
        None => return None,
    };
    Some(WayOut { text, tunnel })
}

/// Devices of the way whose own setting is 0.
fn of_devices<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    at: usize,
    ipv6: bool,
    way: &WayOut<'a>,
) {
    let family = if ipv6 { "ipv6" } else { "ipv4" };
    for spot in bridges(view, at, ipv6).into_iter().chain(way.tunnel) {
        let key = format!("net/{family}/conf/{}/forwarding", spot.name());
        if is_off(spot.namespace, &key) {
            outcome.add(off(spot.namespace, &key, &way.text));
        }
    }
}

/// Networks that may be separate on purpose: the counters decide.
fn unproven(view: &View<'_>, outcome: &mut CheckOutcome, at: usize) {
    let Some(namespace) = view.host().namespaces.get(at) else { return };
    let routed = routed(view, at);
    // A namespace without a network of pods is no router.
    let Some(pods) = view.devices_of(at).find(|spot| is_pods(view, *spot, &routed)) else {
        return;
    };
    let others = routed.iter().filter(|spot| spot.place != pods.place);
    let others = others.filter(|spot| spot.interface.master.is_none());
    // The tunnel is the stronger proof.
    let Some(other) = others.max_by_key(|spot| is_tunnel(**spot)) else { return };
    let needs =
        format!("{} has end hosts behind it, {} leads to others", pods.name(), other.name());
    let (finding, is_counted) = counted(outcome, namespace, off(namespace, KEY, &needs));
    match (is_tunnel(*other), is_counted) {
        (true, true) => outcome.add(finding),
        (true, false) => outcome.add(finding.confidence(Confidence::Medium)),
        (false, true) => {
            outcome.add(finding.severity(Severity::Warn).confidence(Confidence::Medium));
        }
        // A host with a bridge and a NIC may separate them on purpose, while nothing is sent.
        (false, false) => {}
    }
}

fn is_off(namespace: &Namespace, key: &str) -> bool {
    namespace.sysctls.get(key).is_some_and(|value| value == "0")
}

/// Adds the counter of packets that were not forwarded, and whether it increased.
fn counted(outcome: &mut CheckOutcome, namespace: &Namespace, finding: Finding) -> (Finding, bool) {
    let refused = outcome
        .moving(namespace, &namespace.snmp)
        .map_or(0, |pair| pair.after.since(&pair.before).ip.in_addr_errors);
    match refused {
        0 => (finding, false),
        _ => (finding.evidence(format!("Ip InAddrErrors +{refused}"), "/proc/net/snmp"), true),
    }
}

fn off(namespace: &Namespace, key: &str, needs: &str) -> Finding {
    let name = key.replace('/', ".");
    CHECK
        .in_namespace(namespace, name.as_str())
        .evidence(format!("{name} = 0"), "/proc/sys")
        .evidence(needs, "RTM_GETLINK, RTM_GETROUTE")
        .cost(Cost::estimated(1.0, "all packets between tenants here and other hosts"))
        .set(
            Change::sysctl(namespace, key, "0", "1"),
            "the host forwards packets of all its networks, as far as its packet filter lets it; \
             set it in /etc/sysctl.d, too",
        )
}

/// Whether a device leads to pods: a bridge with an address and ports, or a veth without an address
/// whose other end is in another namespace, as Calico sets it up. A NIC of a test host can look like
/// such a veth if it has IPv6 addresses only.
fn is_pods(view: &View<'_>, spot: DeviceRef<'_>, routed: &[DeviceRef<'_>]) -> bool {
    if routed.iter().any(|one| one.place == spot.place) {
        return spot.kind() == "bridge" && view.ports(spot).next().is_some();
    }
    let is_free = spot.interface.up
        && spot.interface.master.is_none()
        && !has_address(spot, false)
        && !has_address(spot, true);
    let peer = view.peer(spot);
    is_free && peer.is_some_and(|peer| peer.place.namespace != spot.place.namespace)
}

fn is_tunnel(spot: DeviceRef<'_>) -> bool {
    ["vxlan", "geneve", "ipip", "gre", "wireguard"].contains(&spot.kind())
}

/// Whether a device has a global address of a family.
fn has_address(spot: DeviceRef<'_>, ipv6: bool) -> bool {
    let addresses = spot.namespace.addresses.get().into_iter().flatten();
    addresses.filter(|known| known.link == spot.interface.index).any(|known| match known.address {
        IpAddr::V4(_) => !ipv6,
        IpAddr::V6(address) => ipv6 && !address.is_unicast_link_local(),
    })
}

/// Whether packets of a family are routed to other hosts by a device.
fn has_route(spot: DeviceRef<'_>, ipv6: bool) -> bool {
    let routes = spot.namespace.routes.get().into_iter().flatten();
    let mut own = routes.filter(|route| {
        route.link == Some(spot.interface.index) && route.kind == RouteKind::Unicast
    });
    own.any(|route| match route.to {
        IpAddr::V4(_) => !ipv6,
        // Every device has these.
        IpAddr::V6(to) => ipv6 && !to.is_unicast_link_local() && !to.is_multicast(),
    })
}
