//! OV033: No UDP socket of a VXLAN port, here or at the remote end.

use super::{Check, CheckOutcome, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV033",
    title: "The tunnel's port has no socket",
    severity: Severity::Error,
    explanation: "A VXLAN device receives through a UDP socket of its underlay's namespace, which \
        the kernel opens when the device is set up. There is none: the device is down, or a remote \
        VTEP that doctor can see has no device on that port. Packets are dropped or answered by \
        ICMP port unreachable.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
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
            // The kernel's sockets look like those of programs, so the tunnels tell them apart.
            let other = view.tunnels().find(|(other, same)| {
                other.place != tunnel.place
                    && other.interface.up
                    && same.port == vxlan.port
                    && view.ways(*other).map(|ways| ways.underlay) == Some(ways.underlay)
            });
            let owner = match other {
                Some((other, same)) if same.vni == vxlan.vni && same.external == vxlan.external => {
                    format!("that of {}, which has the same VNI {}", other.name(), vxlan.vni)
                }
                Some((other, _)) => format!("that of {}", other.name()),
                None => "another program's".to_owned(),
            };
            let finding = CHECK
                .on(tunnel)
                .evidence(format!("{} is down", tunnel.name()), "IFLA_FLAGS")
                .evidence(
                    format!(
                        "the UDP socket on port {} in {} is {owner}",
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
            for remote in view.neighbour_with(underlay.nic, underlay.remote) {
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
