//! OV069: A fixed entry contradicts the device or container that is there.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View, ip_command};
use netstate::MacAddr;
use netstate::entry::{Knowledge, Neighbour};
use netstate::interface::Vxlan;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV069",
    title: "A fixed entry contradicts the other end",
    severity: Severity::Error,
    explanation: "A control plane has set a neighbour or forwarding entry on a VXLAN device, and \
        the device or container at the other end has another hardware address, or is behind \
        another VTEP. Packets arrive and are dropped, because they are for another host's address. \
        The far address changed (systemd's MACAddressPolicy=persistent, a container made anew), or \
        the control plane missed a change. If only the receiving host was read, the counter \
        rx_otherhost_dropped of its VXLAN device shows it.",
    run,
};

/// Devices with one VNI and port.
type Ends<'a> = Vec<DeviceRef<'a>>;

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let mut overlays: BTreeMap<(u32, u16), Ends<'_>> = BTreeMap::new();
    for (tunnel, vxlan) in view.fixed_tunnels() {
        overlays.entry((vxlan.vni, vxlan.port)).or_default().push(tunnel);
    }
    let mut by_mac: BTreeMap<MacAddr, Vec<DeviceRef<'_>>> = BTreeMap::new();
    for spot in view.devices() {
        if let Some(mac) = spot.interface.mac {
            by_mac.entry(mac).or_default().push(spot);
        }
    }
    for nic in view.underlay_nics() {
        of_underlay(view, outcome, nic);
    }
    for (tunnel, vxlan) in view.fixed_tunnels() {
        let same = overlays.get(&(vxlan.vni, vxlan.port)).into_iter().flatten();
        let ends: Ends<'_> = same
            .copied()
            .filter(|end| end.place != tunnel.place && joined(view, tunnel, *end))
            .collect();
        neighbours(view, outcome, tunnel, &ends);
        remotes(view, outcome, tunnel, &ends, &by_mac);
        tenants(view, outcome, tunnel, &ends);
        from_afar(view, outcome, tunnel, vxlan);
        received(view, outcome, tunnel);
    }
}

/// State of a fixed neighbour entry, as `ip neigh` takes it.
fn state(known: &Neighbour) -> String {
    let by = if known.external { " extern_learn" } else { "" };
    format!("{}{by}", if known.noarp { "noarp" } else { "permanent" })
}

/// A command that gives a fixed entry another hardware address, and leaves its state.
fn replace(known: &Neighbour, mac: MacAddr, device: &str) -> String {
    let (ip, address) = (ip_command(known.address), known.address);
    format!("{ip} neigh replace {address} lladdr {mac} dev {} nud {}", quote(device), state(known))
}

/// Whether two devices have one underlay. Machines for tests have several overlays with the same VNI
/// that never meet.
fn joined<'a>(view: &View<'a>, tunnel: DeviceRef<'a>, end: DeviceRef<'a>) -> bool {
    // The underlay of an end that was not read is unknown.
    let Some(at) = view.ways(end).and_then(|ways| view.namespace(ways.underlay)) else {
        return false;
    };
    let there: Vec<_> = view.devices_of(at).map(|spot| view.segment(spot)).collect();
    let mut nics = view.underlays(tunnel).into_iter().map(|underlay| underlay.nic);
    nics.any(|nic| there.contains(&view.segment(nic)))
}

/// The other end on whose segment a device is, or that it is itself.
fn end_of<'a>(
    view: &View<'a>,
    tunnel: DeviceRef<'a>,
    ends: &[DeviceRef<'a>],
    spot: DeviceRef<'a>,
) -> Option<DeviceRef<'a>> {
    let mut ends = ends.iter().copied();
    ends.find(|end| {
        view.segment(*end) == view.segment(spot) && view.segment(*end) != view.segment(tunnel)
    })
}

/// Fixed neighbours of a NIC under a tunnel, against the hosts of its segment.
fn of_underlay<'a>(view: &View<'a>, outcome: &mut CheckOutcome, nic: DeviceRef<'a>) {
    let known = nic.namespace.neighbours.get().into_iter().flatten().filter(|known| {
        known.link == nic.interface.index && known.knowledge == Knowledge::Permanent
    });
    for known in known {
        let Some(mac) = known.mac.filter(|mac| mac.is_unicast()) else { continue };
        let there = view.neighbour_with(nic, known.address);
        // It is right, or the host was not read.
        if there.iter().any(|device| device.interface.mac == Some(mac)) {
            continue;
        }
        let Some((device, real)) = there.iter().find_map(|one| Some((one, one.interface.mac?)))
        else {
            // Without the device's address there is nothing to compare.
            continue;
        };
        let set = |mac| inside(nic.namespace.path.as_deref(), &replace(known, mac, nic.name()));
        outcome.add(
            CHECK
                .on(nic)
                .evidence(
                    format!("entry for {} says {mac}, {}", known.address, state(known)),
                    "RTM_GETNEIGH",
                )
                .evidence(
                    format!(
                        "{} is {real}, at {} {}",
                        known.address,
                        device.namespace.label,
                        device.name()
                    ),
                    "IFLA_ADDRESS",
                )
                .cost(Cost::estimated(1.0, "all packets to this host"))
                .by_hand(
                    set(real),
                    "changes this host only; without the entry ARP would find the address itself",
                    set(mac),
                ),
        );
    }
}

/// Neighbour entries against devices with the address.
fn neighbours<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    tunnel: DeviceRef<'a>,
    ends: &[DeviceRef<'a>],
) {
    let known = tunnel.namespace.neighbours.get().into_iter().flatten().filter(|known| {
        known.link == tunnel.interface.index && known.knowledge == Knowledge::Permanent
    });
    for known in known {
        let Some(mac) = known.mac.filter(|mac| mac.is_unicast()) else { continue };
        let there: Vec<DeviceRef<'_>> = view
            .with_address(known.address)
            .filter(|spot| end_of(view, tunnel, ends, *spot).is_some())
            .collect();
        // It is right, or the device was not read.
        if there.iter().any(|spot| spot.interface.mac == Some(mac)) {
            continue;
        }
        let Some((spot, real)) = there.iter().find_map(|spot| Some((spot, spot.interface.mac?)))
        else {
            // Without the device's address there is nothing to compare.
            continue;
        };
        let finding = CHECK
            .on(tunnel)
            .evidence(
                format!("entry for {} says {mac}, {}", known.address, state(known)),
                "RTM_GETNEIGH",
            )
            .evidence(
                format!("{} is {real}, at {} {}", known.address, spot.namespace.label, spot.name()),
                "IFLA_ADDRESS",
            )
            .cost(Cost::estimated(1.0, "all packets to this neighbour"));
        let remote = |mac| {
            tunnel.namespace.fdb.get().into_iter().flatten().find_map(|entry| {
                let of = entry.link == tunnel.interface.index && entry.mac == Some(mac);
                entry.remote.filter(|_| of)
            })
        };
        // Without a forwarding entry the device would drop packets for the new address.
        let missing = remote(mac).filter(|_| remote(real).is_none());
        let path = tunnel.namespace.path.as_deref();
        let name = quote(tunnel.name());
        let set = |mac| inside(path, &replace(known, mac, tunnel.name()));
        let (mut command, mut undo) = (set(real), set(mac));
        if let Some(remote) = missing {
            let entry = |action, state| {
                let entry =
                    format!("bridge fdb {action} {real} dev {name} dst {remote} self{state}");
                inside(path, &entry)
            };
            command = format!("{} && {command}", entry("replace", " permanent"));
            undo = format!("{undo} && {}", entry("del", ""));
        }
        outcome.add(finding.by_hand(
            command,
            "changes this end only, and the control plane that set the entry may set it again: check \
             its record of the other host. Other nodes may have the same entry, and a device whose \
             address changed lost its own fixed neighbours (OV041)",
            undo,
        ));
    }
}

/// Neighbour entries of the tunnel's tenants against tenants at its other ends.
fn tenants<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    tunnel: DeviceRef<'a>,
    ends: &[DeviceRef<'a>],
) {
    let segment = view.segment(tunnel);
    let is_beside =
        |spot: &DeviceRef<'a>| spot.place != tunnel.place && view.segment(*spot) == segment;
    for spot in view.devices().filter(is_beside) {
        // The kernel gives all neighbours the device's own address, which OV120 reports.
        if spot.interface.noarp {
            continue;
        }
        let known = spot.namespace.neighbours.get().into_iter().flatten().filter(|known| {
            known.link == spot.interface.index && known.knowledge == Knowledge::Permanent
        });
        for known in known {
            let Some(mac) = known.mac.filter(|mac| mac.is_unicast()) else { continue };
            let mut there = view.with_address(known.address).filter(|other| {
                view.segment(*other) == segment || end_of(view, tunnel, ends, *other).is_some()
            });
            // Two owners are another fault (OV038), and one of them may be right.
            let (Some(owner), None) = (there.next(), there.next()) else { continue };
            let Some(real) = owner.interface.mac.filter(|real| *real != mac) else { continue };
            // A second device of the owner, as a macvlan for a shared address, may have it.
            let mut of_owner =
                view.devices().filter(|other| other.place.namespace == owner.place.namespace);
            // One of the owner's devices has the address, so the entry is right.
            if of_owner.any(|other| other.interface.mac == Some(mac)) {
                continue;
            }
            let set =
                |mac| inside(spot.namespace.path.as_deref(), &replace(known, mac, spot.name()));
            let owner = format!("{} {}", owner.namespace.label, owner.name());
            let finding = CHECK
                .on(spot)
                .evidence(
                    format!("entry for {} says {mac}, {}", known.address, state(known)),
                    "RTM_GETNEIGH",
                )
                .evidence(format!("{} is {real}, at {owner}", known.address), "IFLA_ADDRESS")
                .cost(Cost::estimated(1.0, "all packets to this neighbour"));
            let risk = "the program that set the entry may set it again";
            outcome.add(finding.by_hand(set(real), risk, set(mac)));
        }
    }
}

/// Forwarding entries against the host where the address is.
fn remotes<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    tunnel: DeviceRef<'a>,
    ends: &[DeviceRef<'a>],
    by_mac: &BTreeMap<MacAddr, Vec<DeviceRef<'a>>>,
) {
    let fdb = tunnel.namespace.fdb.get().into_iter().flatten();
    for entry in fdb.filter(|entry| entry.fixed && entry.link == tunnel.interface.index) {
        let (Some(mac), Some(remote)) = (entry.mac.filter(|mac| mac.is_unicast()), entry.remote)
        else {
            continue;
        };
        // The default entry, and entries that change VNI or port, lead elsewhere on purpose.
        if mac == MacAddr::default() || entry.vni.is_some() || entry.port.is_some() {
            continue;
        }
        let owners = by_mac.get(&mac).into_iter().flatten();
        let ends: Vec<(DeviceRef<'_>, DeviceRef<'_>)> =
            owners.filter_map(|spot| Some((*spot, end_of(view, tunnel, ends, *spot)?))).collect();
        let right = ends.iter().any(|(_, end)| vteps(view, *end).contains(&remote));
        let Some((spot, end)) = ends.first().filter(|_| !right) else { continue };
        let there = vteps(view, *end);
        let (Some(real), path) = (
            there.iter().find(|address| address.is_ipv4() == remote.is_ipv4()),
            tunnel.namespace.path.as_deref(),
        ) else {
            continue;
        };
        let set = |to: IpAddr| {
            let name = quote(tunnel.name());
            let by = if entry.external { " extern_learn" } else { "" };
            inside(
                path,
                &format!("bridge fdb replace {mac} dev {name} dst {to} self permanent{by}"),
            )
        };
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(
                    format!(
                        "entry for {mac} leads to {remote}, {}",
                        if entry.external { "extern_learn" } else { "permanent" }
                    ),
                    "RTM_GETNEIGH",
                )
                .evidence(
                    format!("{mac} is {} {}, behind {real}", spot.namespace.label, spot.name()),
                    "IFLA_ADDRESS",
                )
                .cost(Cost::estimated(1.0, "all packets to this address"))
                .by_hand(
                    set(*real),
                    "changes this end only, and the control plane that set the entry may set it again",
                    set(remote),
                ),
        );
    }
}

/// Addresses at which a VXLAN device receives.
fn vteps(view: &View<'_>, end: DeviceRef<'_>) -> Vec<IpAddr> {
    if let Some(local) = end.vxlan().and_then(|vxlan| vxlan.local) {
        return vec![local];
    }
    let underlay = view.ways(end).and_then(|ways| view.namespace(ways.underlay));
    let namespace = underlay.and_then(|at| view.host().namespaces.get(at));
    let addresses = namespace.and_then(|namespace| namespace.addresses.get());
    let addresses = addresses.into_iter().flatten().map(|known| known.address);
    addresses.filter(|address| !address.is_loopback()).collect()
}

/// Forwarding entries against the device that the other host reported.
fn from_afar(view: &View<'_>, outcome: &mut CheckOutcome, tunnel: DeviceRef<'_>, vxlan: &Vxlan) {
    for far in &view.host().far_ends {
        let there = far.tunnels.iter().find(|link| {
            link.vxlan
                .as_ref()
                .is_some_and(|other| other.vni == vxlan.vni && other.port == vxlan.port)
        });
        let Some(there) = there else { continue };
        // Behind a bridge there are other addresses than the device's own.
        let (Some(real), None) = (there.mac, there.master) else { continue };
        let local = there.vxlan.as_ref().and_then(|other| other.local);
        let entries: Vec<MacAddr> = tunnel
            .namespace
            .fdb
            .get()
            .into_iter()
            .flatten()
            .filter(|entry| entry.fixed && entry.link == tunnel.interface.index)
            .filter(|entry| entry.remote.is_some_and(|to| to == far.address || Some(to) == local))
            .filter_map(|entry| entry.mac.filter(|mac| mac.is_unicast()))
            .filter(|mac| *mac != MacAddr::default())
            .collect();
        let Some(wrong) = entries.first().filter(|_| !entries.contains(&real)) else { continue };
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(
                    format!("entry for {wrong} leads to {}, permanent", far.address),
                    "RTM_GETNEIGH",
                )
                .evidence(
                    format!("address of {} there: {real}", there.name),
                    format!("{}, asked by --peer", far.address),
                )
                .cost(Cost::estimated(1.0, "all packets to this remote")),
        );
    }
}

/// The receiver's view: IP takes the packets for another host's.
fn received(view: &View<'_>, outcome: &mut CheckOutcome, tunnel: DeviceRef<'_>) {
    let Some(moved) = tunnel.moved().filter(|moved| moved.rx_otherhost > 0) else { return };
    // A bridge or a macvlan above it takes frames for other addresses.
    if view.bridge(tunnel).is_some() {
        return;
    }
    let mac = tunnel.interface.mac.map_or_else(|| "unknown".to_owned(), |mac| mac.to_string());
    outcome.add(
        CHECK
            .on(tunnel)
            .evidence(
                format!(
                    "rx_otherhost_dropped +{}: for other hardware addresses",
                    moved.rx_otherhost
                ),
                "IFLA_STATS64",
            )
            .evidence(
                format!("address of {}: {mac}; the senders' entries hold another", tunnel.name()),
                "IFLA_ADDRESS",
            )
            .cost(Cost::of_packets(moved.rx_otherhost, moved.rx_packets, "received packets"))
            .confidence(Confidence::Medium),
    );
}
