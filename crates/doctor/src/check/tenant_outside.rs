//! OV097: A tenant's device is a port of no bridge.

use super::tunnel_outside::is_used;
use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use netstate::entry::Knowledge;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV097",
    title: "A tenant's device is connected to no bridge",
    severity: Severity::Error,
    explanation: "The host's end of a tenant's veth pair is up, but it is no port of a bridge, has \
        no address, no route and no filter, and sent nothing to the tenant between the two \
        readings. The tenant asks for its neighbours and gets no answer, and the host has bridges \
        with other ports. A bridge that was made again loses its ports, and a network manager may \
        take out ports that it does not know. A device that programs serve by BPF alone may be \
        correct.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for spot in view.devices() {
        let interface = spot.interface;
        if !interface.up || !interface.carrier || interface.master.is_some() {
            continue;
        }
        let Some(tenant) = view.peer(spot) else { continue };
        // A device that carries packets to the tenant is in use, by whatever means.
        if spot.moved().is_none_or(|moved| moved.tx_packets > 0) {
            continue;
        }
        if tenant.place.namespace == spot.place.namespace {
            continue;
        }
        let Some(address) = unanswered(tenant) else { continue };
        let bridges: Vec<DeviceRef<'_>> = view
            .devices_of(spot.place.namespace)
            .filter(|other| other.kind() == "bridge" && other.interface.up)
            .filter(|bridge| view.ports(*bridge).next().is_some())
            .collect();
        let Some(first) = bridges.first().filter(|_| !is_used(view, spot)) else { continue };
        let names: Vec<&str> = bridges.iter().map(|bridge| bridge.name()).collect();
        let of_tenant = format!("{} {}", tenant.namespace.label, tenant.name());
        let finding = CHECK
            .on(spot)
            .evidence(
                format!("no bridge, no address, no route; its peer is {of_tenant}"),
                "RTM_GETLINK",
            )
            .evidence(format!("{of_tenant} gets no answer from {address}"), "RTM_GETNEIGH")
            .evidence(format!("bridges: {}", names.join(", ")), "RTM_GETLINK")
            .cost(Cost::estimated(1.0, "all packets of the tenant"))
            .confidence(Confidence::Medium);
        // With several bridges, the right one is unknown.
        outcome.add(match bridges.len() {
            1 => {
                let (name, path) = (quote(spot.name()), spot.namespace.path.as_deref());
                finding.by_hand(
                    inside(path, &format!("ip link set {name} master {}", quote(first.name()))),
                    "joins the tenant to the bridge's network: make sure that it belongs there",
                    inside(path, &format!("ip link set {name} nomaster")),
                )
            }
            _ => finding,
        });
    }
}

/// An address that the tenant asks for in vain, if no neighbour answers it.
fn unanswered(tenant: DeviceRef<'_>) -> Option<std::net::IpAddr> {
    let known = tenant.namespace.neighbours.get().into_iter().flatten();
    let mut failed = None;
    for known in known.filter(|known| known.link == tenant.interface.index) {
        match known.knowledge {
            Knowledge::Failed => failed = failed.or(Some(known.address)),
            Knowledge::Usable => return None,
            _ => {}
        }
    }
    failed
}
