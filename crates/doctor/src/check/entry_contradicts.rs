//! OV069: A fixed entry of a tunnel contradicts the devices at its other end.

use std::net::IpAddr;

use netstate::MacAddr;
use netstate::entry::{Knowledge, Neighbour};
use netstate::interface::Vxlan;

use super::leads_on::far_ends;
use super::{Check, Cost, Outcome, Severity, Spot, View};
use settings::command::inside;

pub(super) const CHECK: Check = Check {
    code: "OV069",
    title: "A fixed entry contradicts the other end",
    severity: Severity::Error,
    explanation: "A control plane wrote a neighbour or forwarding entry on the VXLAN device, and \
        the device or container at the other end has another hardware address, or is behind \
        another VTEP. Its packets arrive, and the other end takes them for another host's. \
        The entry was not updated after a container moved, or systemd-udevd \
        (MACAddressPolicy=persistent) or an administrator changed the device's address. Found if \
        both ends are on this machine.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for (tunnel, vxlan) in view.tunnels() {
        // An external device gets the remote with each packet, and its entries do not count.
        if vxlan.external {
            continue;
        }
        let ends = far_ends(view, tunnel, vxlan);
        // The other ends are on other machines, or were not read.
        if ends.is_empty() {
            continue;
        }
        neighbours(view, outcome, tunnel, vxlan, &ends);
        forwarding(view, outcome, tunnel, &ends);
    }
}

/// Compares fixed neighbours with the devices that have their addresses.
fn neighbours(
    view: &View<'_>,
    outcome: &mut Outcome,
    tunnel: Spot<'_>,
    vxlan: &Vxlan,
    ends: &[Spot<'_>],
) {
    for known in tunnel.namespace.neighbours.get().into_iter().flatten() {
        let is_fixed = known.knowledge == Knowledge::Permanent;
        if known.link != tunnel.interface.index || !is_fixed {
            continue;
        }
        let Some(mac) = known.mac.filter(|mac| mac.is_unicast()) else { continue };
        let behind: Vec<IpAddr> = remotes(tunnel, mac).chain(vxlan.remote).collect();
        let ends = ends.iter().filter(|end| is_behind(view, **end, &behind));
        let owners: Vec<(Spot<'_>, Spot<'_>)> = ends
            .flat_map(|end| {
                let owners = view.neighbour_with(*end, known.address);
                owners.into_iter().map(|owner| (*end, owner))
            })
            .collect();
        let Some((end, owner)) = owners.first() else { continue };
        // Several devices may have the address: one with the entry's address suffices.
        if owners.iter().any(|(_, owner)| owner.interface.mac == Some(mac)) {
            continue;
        }
        let Some(real) = owner.interface.mac else { continue };
        let (command, undo) = corrected(tunnel, known, mac, real);
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(format!("entry for {} says {mac}", known.address), "RTM_GETNEIGH")
                .evidence(
                    format!(
                        "{} {}, which has {} behind {} {}, has {real}",
                        owner.namespace.label,
                        owner.name(),
                        known.address,
                        end.namespace.label,
                        end.name()
                    ),
                    "RTM_GETADDR, RTM_GETLINK",
                )
                .cost(Cost::estimated(1.0, "all packets to this neighbour"))
                .by_hand(
                    command,
                    "changes this end only, until the control plane writes the entry again. Other \
                     nodes may have the same entry; senders that asked before keep the wrong \
                     address until they ask again; and a device whose address was changed lost \
                     its own fixed neighbours (OV041)",
                    undo,
                ),
        );
    }
}

/// Returns the command that corrects a neighbour, and its undo. The new address needs forwarding
/// entries, too: without them the device would drop the packets.
fn corrected(
    tunnel: Spot<'_>,
    known: &Neighbour,
    wrong: MacAddr,
    real: MacAddr,
) -> (String, String) {
    let run = |command: String| inside(tunnel.namespace.path.as_deref(), &command);
    let (name, address) = (tunnel.name(), known.address);
    let neighbour =
        |mac| run(format!("ip neigh replace {address} lladdr {mac} dev {name} nud permanent"));
    let present: Vec<IpAddr> = remotes(tunnel, real).collect();
    let missing = remotes(tunnel, wrong).filter(|remote| !present.contains(remote));
    let (mut commands, mut undo) = (Vec::new(), vec![neighbour(wrong)]);
    for remote in missing {
        let entry = |verb| run(format!("bridge fdb {verb} {real} dev {name} dst {remote} self"));
        commands.push(entry("append"));
        undo.push(entry("del"));
    }
    commands.push(neighbour(real));
    (commands.join(" && "), undo.join(" && "))
}

/// Compares fixed forwarding entries with the tunnels that the addresses are behind.
fn forwarding(view: &View<'_>, outcome: &mut Outcome, tunnel: Spot<'_>, ends: &[Spot<'_>]) {
    for entry in tunnel.namespace.fdb.get().into_iter().flatten() {
        let of_tunnel = entry.link == tunnel.interface.index && entry.fixed;
        let (Some(mac), Some(remote), true) = (entry.mac, entry.remote, of_tunnel) else {
            continue;
        };
        if !mac.is_unicast() || mac == MacAddr::default() {
            continue;
        }
        let owner = view.devices().find(|spot| spot.interface.mac == Some(mac));
        // The owner is not on this machine.
        let Some(owner) = owner else { continue };
        let segment = view.segment(owner);
        let Some(right) = ends.iter().find(|end| view.segment(**end) == segment) else { continue };
        if is_behind(view, *right, &[remote]) {
            continue;
        }
        // Without a local address, the VTEP that has the owner is unknown.
        let Some(there) = right.vxlan().and_then(|vxlan| vxlan.local) else { continue };
        let path = tunnel.namespace.path.as_deref();
        let set = |to: IpAddr| {
            let command =
                format!("bridge fdb replace {mac} dev {} dst {to} self permanent", tunnel.name());
            inside(path, &command)
        };
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(format!("entry for {mac} sends to {remote}"), "RTM_GETNEIGH")
                .evidence(
                    format!("{mac} is {} {}, behind {there}", owner.namespace.label, owner.name()),
                    "RTM_GETLINK",
                )
                .cost(Cost::estimated(1.0, "all packets to this address"))
                .by_hand(
                    set(there),
                    "this end only, and only until the control plane writes the entry again",
                    set(remote),
                ),
        );
    }
}

/// Returns the VTEPs to which a device sends an address.
fn remotes(tunnel: Spot<'_>, mac: MacAddr) -> impl Iterator<Item = IpAddr> {
    let entries = tunnel.namespace.fdb.get().into_iter().flatten();
    entries
        .filter(move |entry| entry.link == tunnel.interface.index && entry.mac == Some(mac))
        .filter_map(|entry| entry.remote)
}

/// Whether the underlay of a tunnel has one of the addresses.
fn is_behind(view: &View<'_>, end: Spot<'_>, remotes: &[IpAddr]) -> bool {
    let local = end.vxlan().and_then(|vxlan| vxlan.local);
    if let Some(local) = local {
        return remotes.contains(&local);
    }
    let underlay = view.ways(end).and_then(|ways| view.namespace(ways.underlay));
    let namespace = underlay.and_then(|at| view.host().namespaces.get(at));
    let addresses = namespace.and_then(|namespace| namespace.addresses.get());
    addresses.into_iter().flatten().any(|known| remotes.contains(&known.address))
}
