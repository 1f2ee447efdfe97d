//! OV068: A host of pods and tunnels does not forward.

use std::net::IpAddr;

use super::nat_mtu::routed;
use super::{Check, Confidence, Cost, Outcome, Severity, Spot, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV068",
    title: "The host does not forward between its networks",
    severity: Severity::Error,
    explanation: "The namespace has a network of containers and a tunnel, each a network of its \
        own, but net.ipv4.ip_forward is 0. It drops every packet from one to the other, and counts \
        it in InAddrErrors. A restart of the network service or a file in /etc/sysctl.d often \
        sets it back to 0. Without a tunnel, it is reported if InAddrErrors increases. Correct \
        for a host that must not connect its networks.",
    run,
};

const KEY: &str = "net/ipv4/ip_forward";

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        // The setting was not read, or the namespace forwards.
        if namespace.sysctls.get(KEY).is_none_or(|value| value != "0") {
            continue;
        }
        let routed = routed(view, at);
        let Some(pods) = view.devices_of(at).find(|spot| is_pods(view, *spot, &routed)) else {
            continue;
        };
        let others = routed.iter().filter(|spot| spot.place != pods.place);
        let others = others.filter(|spot| spot.interface.master.is_none());
        // The tunnel is the stronger proof.
        let Some(other) = others.max_by_key(|spot| is_tunnel(**spot)) else { continue };
        let refused = outcome
            .moving(namespace, &namespace.snmp)
            .map_or(0, |pair| pair.after.since(&pair.before).ip.in_addr_errors);
        // A host with a bridge and a NIC may separate them on purpose, while nothing is sent.
        if refused == 0 && !is_tunnel(*other) {
            continue;
        }
        let finding = CHECK
            .in_namespace(namespace, "net.ipv4.ip_forward")
            .evidence("net.ipv4.ip_forward = 0", "/proc/sys")
            .evidence(
                format!(
                    "{} has end hosts behind it, {} leads to others",
                    pods.name(),
                    other.name()
                ),
                "RTM_GETLINK, RTM_GETADDR",
            )
            .cost(Cost::estimated(
                1.0,
                format!("all packets between {} and {}", pods.name(), other.name()),
            ))
            .set(
                Change::sysctl(namespace, KEY, "0", "1"),
                "all networks of the namespace are connected; filter rules decide what may pass",
            );
        let finding = match refused {
            0 => finding.confidence(Confidence::Medium),
            count => finding.evidence(format!("Ip InAddrErrors +{count}"), "/proc/net/snmp"),
        };
        outcome.add(match is_tunnel(*other) {
            true => finding,
            false => finding.severity(Severity::Warn).confidence(Confidence::Medium),
        });
    }
}

/// Whether a device leads to pods: a bridge with an address and ports, or a veth without an address
/// whose other end is in another namespace, as Calico sets it up. A NIC of a test host can look like
/// such a veth if it has IPv6 addresses only.
fn is_pods(view: &View<'_>, spot: Spot<'_>, routed: &[Spot<'_>]) -> bool {
    if routed.iter().any(|one| one.place == spot.place) {
        return spot.kind() == "bridge" && view.ports(spot).next().is_some();
    }
    let addresses = spot.namespace.addresses.get().into_iter().flatten();
    let has_address = addresses
        .filter(|known| known.link == spot.interface.index)
        .any(|known| !matches!(known.address, IpAddr::V6(six) if six.is_unicast_link_local()));
    let is_free = spot.interface.up && spot.interface.master.is_none() && !has_address;
    let peer = view.peer(spot);
    is_free && peer.is_some_and(|peer| peer.place.namespace != spot.place.namespace)
}

fn is_tunnel(spot: Spot<'_>) -> bool {
    ["vxlan", "geneve", "ipip", "gre", "wireguard"].contains(&spot.kind())
}
