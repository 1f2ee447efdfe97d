//! OV033: No UDP socket of a VXLAN port, here or at the remote end.

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::finding::Finding;
use crate::host::Namespace;
use netstate::interface::Vxlan;
use settings::Change;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV033",
    title: "The tunnel's port has no socket",
    severity: Severity::Error,
    explanation: "A VXLAN device receives through a UDP socket of its underlay's namespace, which \
        the kernel opens when the device is set up. There is none: the device is down, or a remote \
        VTEP that doctor can see has no device on that port. A device with a multicast group stays \
        down if the socket it shares is in too many groups. A host with tenants and no tunnel that \
        gets UDP packets for no socket is a remark. Packets are dropped or answered by \
        ICMP port unreachable.",
    run,
};

/// A device that cannot join its group, because the socket that it shares is in too many.
fn memberships(
    view: &View<'_>,
    namespace: &Namespace,
    tunnel: DeviceRef<'_>,
    vxlan: &Vxlan,
) -> Option<Finding> {
    const SETTING: &str = "net/ipv4/igmp_max_memberships";
    let is_group = |vxlan: &Vxlan| vxlan.remote.is_some_and(|to| to.is_ipv4() && to.is_multicast());
    let most: usize = namespace.sysctls.get(SETTING)?.parse().ok()?;
    let underlay = view.ways(tunnel)?.underlay;
    let joined = view.tunnels().filter(|(other, same)| {
        other.interface.up
            && same.port == vxlan.port
            && is_group(same)
            && view.ways(*other).is_some_and(|ways| ways.underlay == underlay)
    });
    let joined = joined.count();
    if !is_group(vxlan) || joined < most {
        return None;
    }
    let name = SETTING.replace('/', ".");
    let set =
        |value: usize| inside(namespace.path.as_deref(), &format!("sysctl -w {name}={value}"));
    let link = |state: &str| {
        let command = format!("ip link set {} {state}", quote(tunnel.name()));
        inside(tunnel.namespace.path.as_deref(), &command)
    };
    Some(
        CHECK
            .on(tunnel)
            .evidence(format!("{} is down", tunnel.name()), "IFLA_FLAGS")
            .evidence(
                format!(
                    "{name} = {most}; the devices on port {} share a socket, which has joined \
                     {joined} groups",
                    vxlan.port
                ),
                "/proc/sys, RTM_GETLINK",
            )
            .cost(Cost::estimated(1.0, "all packets of the tunnel"))
            .by_hand(
                format!("{} && {}", set(most.saturating_mul(2).max(64)), link("up")),
                "each group costs memory in the kernel",
                format!("{} && {}", link("down"), set(most)),
            ),
    )
}

/// Hosts with tenants and without any tunnel that get UDP packets for which there is no socket.
fn without_tunnel(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let forwards = namespace.sysctls.get("net/ipv4/ip_forward").is_some_and(|on| on == "1");
        let inode = namespace.inode;
        let is_underlay = view.tunnels().any(|(tunnel, _)| {
            tunnel.place.namespace == at
                || view.ways(tunnel).is_some_and(|ways| ways.underlay == inode)
        });
        if !forwards || is_underlay {
            continue;
        }
        let moved = namespace.snmp.get().map(|pair| pair.after.since(&pair.before).udp.no_ports);
        let Some(moved) = moved.filter(|moved| *moved > 0) else { continue };
        let bridge = view.devices_of(at).find(|bridge| {
            let mut ports = view.ports(*bridge);
            let has_tenant = |port: DeviceRef<'_>| {
                view.peer(port).is_some_and(|peer| peer.place.namespace != at)
            };
            bridge.kind() == "bridge" && ports.any(has_tenant)
        });
        let Some(bridge) = bridge else { continue };
        outcome.add(
            CHECK
                .in_namespace(namespace, "received packets")
                .severity(Severity::Info)
                .evidence(
                    format!("Udp NoPorts +{moved}: packets to ports without a socket"),
                    "/proc/net/snmp",
                )
                .evidence(
                    format!(
                        "{} has tenants on {}, and no VXLAN device",
                        namespace.label,
                        bridge.name()
                    ),
                    "RTM_GETLINK",
                )
                .cost(Cost::estimated(0.3, "packets of other nodes, if this host is one of them"))
                .confidence(Confidence::Low),
        );
    }
}

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    without_tunnel(view, outcome);
    for (tunnel, vxlan) in view.tunnels() {
        let Some(ways) = view.ways(tunnel) else { continue };
        // The underlay's namespace was not read.
        let Some(at) = view.namespace(ways.underlay) else { continue };
        let Some(namespace) = view.host().namespaces.get(at) else { continue };
        let Some(sockets) = outcome.need(&namespace.label, &namespace.udp_sockets) else {
            continue;
        };
        if sockets.iter().all(|socket| socket.port != vxlan.port) {
            let state = if tunnel.interface.up { "up" } else { "down" };
            let finding = CHECK
                .on(tunnel)
                .evidence(
                    format!("no UDP socket on port {} in {}", vxlan.port, namespace.label),
                    "/proc/net/udp, udp6",
                )
                .evidence(format!("{} is {state}", tunnel.name()), "IFLA_FLAGS")
                .cost(Cost::estimated(1.0, "all packets of the tunnel"));
            outcome.add(match tunnel.interface.up {
                true => finding,
                false => finding.set(Change::up(tunnel), "none known"),
            });
            continue;
        }
        if !tunnel.interface.up {
            // The kernel's sockets look like sockets of programs, so the tunnels distinguish them.
            let other = view.tunnels().find(|(other, same)| {
                other.place != tunnel.place
                    && other.interface.up
                    && same.port == vxlan.port
                    && view.ways(*other).map(|ways| ways.underlay) == Some(ways.underlay)
            });
            let owner = match other {
                Some((other, same)) if same.vni == vxlan.vni && same.external == vxlan.external => {
                    format!("{}, which has the same VNI {}", other.name(), vxlan.vni)
                }
                Some((other, _)) => other.name().to_owned(),
                None => "another program".to_owned(),
            };
            if let Some(finding) = memberships(view, namespace, tunnel, vxlan) {
                outcome.add(finding);
                continue;
            }
            let finding = CHECK
                .on(tunnel)
                .evidence(format!("{} is down", tunnel.name()), "IFLA_FLAGS")
                .evidence(
                    format!(
                        "the UDP socket on port {} in {} belongs to {owner}",
                        vxlan.port, namespace.label
                    ),
                    "/proc/net/udp, udp6",
                )
                .cost(Cost::estimated(1.0, "all packets of the tunnel"));
            outcome.add(match other {
                // Two devices of different settings cannot share the port, so setting it up fails.
                Some((_, same)) if same.external == vxlan.external && same.vni != vxlan.vni => {
                    finding.set(Change::up(tunnel), "none known")
                }
                _ => finding,
            });
            continue;
        }
        for underlay in view.underlays(tunnel) {
            // An entry may have a port of its own.
            let mut entries = tunnel.namespace.fdb.get().into_iter().flatten().filter(|entry| {
                entry.link == tunnel.interface.index && entry.remote == Some(underlay.remote)
            });
            let port = entries.find_map(|entry| entry.port).unwrap_or(vxlan.port);
            let owners = view.neighbour_with(underlay.nic, underlay.remote);
            // OV038 reports an address that two hosts have.
            if owners.len() > 1 {
                continue;
            }
            for remote in owners {
                let theirs = remote.namespace.udp_sockets.get();
                let silent = theirs.is_some_and(|all| {
                    // A tunnel endpoint in user space listens like any program.
                    all.iter().all(|socket| socket.port != port)
                });
                if silent {
                    outcome.add(
                        CHECK
                            .on(tunnel)
                            .evidence(
                                format!(
                                    "no UDP socket on port {port} in {}, which has {}",
                                    remote.namespace.label, underlay.remote
                                ),
                                "/proc/net/udp, udp6",
                            )
                            .cost(Cost::estimated(1.0, "all packets to this remote")),
                    );
                }
            }
        }
    }
}
