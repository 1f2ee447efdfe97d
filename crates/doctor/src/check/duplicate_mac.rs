//! OV039: two devices of one layer-2 segment have the same MAC address.

use super::{Check, CheckOutcome, Cost, DeviceRef, Severity, View, shared_between};
use std::collections::BTreeMap;
use std::net::IpAddr;

use netstate::MacAddr;
use netstate::entry::Knowledge;

use crate::view::DeviceKey;

pub(super) const CHECK: Check = Check {
    code: "OV039",
    title: "Two devices have the same hardware address",
    severity: Severity::Error,
    explanation: "Two devices on one layer-2 segment, as far as doctor can see it, have the same \
        hardware address. Bridges learn it at one port, then at the other, so packets reach the \
        wrong device. Or several fixed neighbours of a VXLAN device have the same hardware \
        address: a forwarding entry leads to one VTEP only, so packets for the other neighbour \
        reach the wrong node. The usual causes are cloned machines and containers with fixed \
        addresses.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    behind_tunnels(view, outcome);
    let mut owners: BTreeMap<(DeviceKey, MacAddr), Vec<DeviceRef<'_>>> = BTreeMap::new();
    for spot in view.devices() {
        // A bridge takes over the address of a port, and ports do not send with their own address.
        let sends = spot.interface.up && spot.interface.master.is_none();
        if let Some(mac) = spot.interface.mac.filter(|mac| sends && mac.is_unicast()) {
            owners.entry((view.segment(spot), mac)).or_default().push(spot);
        }
    }
    for ((_, mac), spots) in owners {
        // One owner, or several in one namespace.
        let Some((first, other)) = shared_between(&spots) else { continue };
        outcome.add(
            CHECK
                .on(*first)
                .evidence(
                    format!("{mac} is also on {} {}", other.namespace.label, other.name()),
                    "IFLA_ADDRESS",
                )
                .cost(Cost::estimated(0.5, "packets to this address")),
        );
    }
}

/// VTEPs of other nodes that a control plane reports with one hardware address.
fn behind_tunnels(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, _) in view.fixed_tunnels() {
        // Behind a bridge, neighbours are tenants, of which one may have several addresses.
        if tunnel.interface.master.is_some() {
            continue;
        }
        let mut owners: BTreeMap<(bool, MacAddr), Vec<IpAddr>> = BTreeMap::new();
        for known in tunnel.namespace.neighbours.get().into_iter().flatten() {
            let is_fixed = known.link == tunnel.interface.index
                && known.knowledge == Knowledge::Permanent
                // A VTEP has one address of the link, too.
                && !matches!(known.address, IpAddr::V6(six) if six.is_unicast_link_local());
            if let Some(mac) = known.mac.filter(|mac| is_fixed && mac.is_unicast()) {
                owners.entry((known.address.is_ipv4(), mac)).or_default().push(known.address);
            }
        }
        for ((_, mac), addresses) in owners {
            let [first, second, ..] = addresses[..] else { continue };
            outcome.add(
                CHECK
                    .on(tunnel)
                    .evidence(
                        format!("fixed neighbours {first} and {second} both have {mac}"),
                        "RTM_GETNEIGH",
                    )
                    .cost(Cost::estimated(0.9, "packets to one of these nodes")),
            );
        }
    }
}
