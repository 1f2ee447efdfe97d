//! Finds packet sockets that miss accelerated packets: on bridges, their ports, VXLAN devices, or
//! on all devices of a namespace. The status report lists them; there is no other remedy.

use std::collections::{BTreeMap, BTreeSet};

use netstate::packet_diag::PacketDiag;
use sys::netns::NetNs;

use crate::model::{MachineSnapshot, Plan};
use crate::status::Listener;

/// Lists the sockets on devices of the plan, in these namespaces by number. `None`: unknown,
/// because the kernel lacks `CONFIG_PACKET_DIAG`.
pub(crate) fn listeners<'a>(
    plan: &Plan,
    machine: &MachineSnapshot,
    states: impl Iterator<Item = (u16, &'a NetNs)>,
) -> Option<Vec<Listener>> {
    let mut all = Vec::new();
    for (number, netns) in states {
        let passed = passed(plan, machine, number);
        // Nothing is accelerated in this namespace.
        if passed.is_empty() {
            continue;
        }
        let sockets = PacketDiag::open_in(netns).ok()?.listeners().ok()?;
        // Sockets with protocol 0 only send.
        for socket in sockets.iter().filter(|socket| socket.protocol != 0) {
            let device = match socket.link {
                0 => None,
                link => match passed.get(&link) {
                    Some(name) => Some(name.clone()),
                    // The fast path does not bypass this device.
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

/// Returns the devices of a namespace that accelerated packets bypass, with their names.
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
