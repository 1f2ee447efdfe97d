//! OV097: A tenant's device is a port of no bridge.

use super::tunnel_outside::{is_used, with_join};
use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use netstate::entry::Knowledge;

pub(super) const CHECK: Check = Check {
    code: "OV097",
    title: "A tenant's device is connected to no bridge",
    severity: Severity::Error,
    explanation: "The host's end of a tenant's veth pair is up, but it is no port of a bridge, has \
        no address, no route and no filter, and sent nothing to the tenant between the two \
        readings. The tenant asks for its neighbours and gets no answer, and the host has bridges \
        with other ports. A bridge that was created again has lost its ports, and a network manager \
        may remove ports that it does not know. If BPF programs alone serve the device, this may \
        be intended.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for device in view.devices() {
        let interface = device.interface;
        if !interface.up || !interface.carrier || interface.master.is_some() {
            continue;
        }
        let Some(tenant) = view.peer(device) else { continue };
        // A device that carries packets to the tenant is in use, by whatever means.
        if device.moved().is_none_or(|moved| moved.tx_packets > 0) {
            continue;
        }
        if tenant.place.namespace == device.place.namespace {
            continue;
        }
        let Some(address) = unanswered(tenant) else { continue };
        let bridges: Vec<DeviceRef<'_>> = view
            .devices_of(device.place.namespace)
            .filter(|other| other.kind() == "bridge" && other.interface.up)
            .filter(|bridge| view.ports(*bridge).next().is_some())
            .collect();
        if bridges.is_empty() || is_used(view, device) {
            continue;
        }
        let names: Vec<&str> = bridges.iter().map(|bridge| bridge.name()).collect();
        let of_tenant = format!("{} {}", tenant.namespace.label, tenant.name());
        let finding = CHECK
            .on(device)
            .evidence(
                format!("no bridge, no address, no route; its peer is {of_tenant}"),
                "RTM_GETLINK",
            )
            .evidence(format!("{of_tenant} gets no answer from {address}"), "RTM_GETNEIGH")
            .evidence(format!("bridges: {}", names.join(", ")), "RTM_GETLINK")
            .cost(Cost::estimated(1.0, "all packets of the tenant"))
            .confidence(Confidence::Medium);
        let risk = "joins the tenant to the bridge's network: make sure that it belongs there";
        outcome.add(with_join(finding, device, &bridges, risk));
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
