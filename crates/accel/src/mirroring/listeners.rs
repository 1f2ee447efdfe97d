//! Who listens by packet sockets where packets on the fast path do not come by: on bridges,
//! their ports, VXLAN devices, or all devices of a namespace. Nothing can be done for them
//! but to say so.

use std::collections::{BTreeMap, BTreeSet};

use netstate::packet_diag::PacketDiag;
use sys::netns::NetNs;

use crate::model::{MachineSnapshot, Plan};
use crate::status::Listener;

/// The sockets on devices of the plan, in these namespaces, by their numbers; `None`: the
/// kernel cannot tell (`CONFIG_PACKET_DIAG`).
pub(crate) fn listeners<'a>(
    plan: &Plan,
    machine: &MachineSnapshot,
    states: impl Iterator<Item = (u16, &'a NetNs)>,
) -> Option<Vec<Listener>> {
    let mut all = Vec::new();
    for (number, netns) in states {
        let passed = passed(plan, machine, number);
        if passed.is_empty() {
            continue;
        }
        let sockets = PacketDiag::open_in(netns).ok()?.listeners().ok()?;
        // With protocol 0 a socket sends only.
        for socket in sockets.iter().filter(|socket| socket.protocol != 0) {
            let device = match socket.link {
                0 => None,
                link => match passed.get(&link) {
                    Some(name) => Some(name.clone()),
                    None => continue,
                },
            };
            let (protocol, inode) = (socket.protocol, socket.inode);
            all.push(Listener { device, protocol, inode });
        }
    }
    all.sort();
    Some(all)
}

/// The devices of a namespace that packets on the fast path pass by, with their names.
fn passed(plan: &Plan, machine: &MachineSnapshot, number: u16) -> BTreeMap<u32, String> {
    let overlay = match machine.sandboxes.get(&number) {
        Some(sandbox) => &sandbox.snapshot.overlay,
        None => &machine.home.overlay,
    };
    let mut indexes = BTreeSet::new();
    for device in &plan.devices {
        if device.sandbox.unwrap_or(0) != number || device.refused.is_some() {
            continue;
        }
        indexes.insert(device.index);
        indexes.extend(overlay.links.get(&device.index).and_then(|link| link.master));
        let ports = device.ports.iter().map(|port| port.id);
        indexes.extend(ports.filter(|id| id.netns == number).map(|id| id.index));
    }
    let name = |index: u32| overlay.links.get(&index).map(|link| link.name.clone());
    indexes.into_iter().filter_map(|index| Some((index, name(index)?))).collect()
}
