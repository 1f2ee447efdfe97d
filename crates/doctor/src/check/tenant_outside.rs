//! OV097: A tenant's device is a port of no bridge.

use super::bridge_port::is_uplink;
use super::tunnel_outside::{is_used, with_join};
use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View, is_link_local};
use netstate::entry::Knowledge;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV097",
    title: "A tenant's device is connected to no bridge",
    severity: Severity::Error,
    explanation: "The host's end of a tenant's veth pair is up, but it is no port of a bridge, has \
        no address, no route and no filter, and sent nothing to the tenant between the two \
        readings. The tenant asks for its neighbours and gets no answer, and the host has bridges \
        with other ports. A bridge that was created again has lost its ports, and a network manager \
        may remove ports that it does not know. Or the device is in a bridge without a way out, and \
        the tunnel to hosts that ask for the tenant is in another one. If BPF programs alone serve the device, this may \
        be intended.",
    run,
};

/// Tenants in a bridge without a way out, while the tunnel of their network is in another bridge.
fn wrong_bridge(view: &View<'_>, outcome: &mut CheckOutcome) {
    for port in view.devices() {
        let (Some(bridge), Some(tenant)) = (view.bridge(port), view.peer(port)) else { continue };
        let is_tenant = tenant.place.namespace != port.place.namespace
            && tenant.interface.master.is_none()
            && port.interface.up
            && bridge.interface.up;
        // An uplink, a tunnel or an address of the host is a way out.
        let is_closed = bridge.addresses().all(|known| is_link_local(known.address))
            && view.ports(bridge).all(|other| {
                !is_uplink(other)
                    && view.peer(other).is_some_and(|peer| view.bridge(peer).is_none())
            });
        if !is_tenant || !is_closed {
            continue;
        }
        let own = tenant.addresses().map(|known| known.address).filter(|own| !is_link_local(*own));
        let own: Vec<std::net::IpAddr> = own.collect();
        let here = view.devices_of(port.place.namespace);
        let tunnels =
            here.filter_map(|device| Some((device, device.vxlan()?, view.bridge(device)?)));
        let found = tunnels.into_iter().find_map(|(tunnel, vxlan, right)| {
            // A tenant of the same overlay asks for the address, and nobody answers.
            let mut ends = view
                .tunnels()
                .filter(|(_, other)| (other.vni, other.port) == (vxlan.vni, vxlan.port));
            ends.find_map(|(end, _)| {
                let segment = view.segment(end);
                let mut beside = view.devices().filter(|device| view.segment(*device) == segment);
                beside.find_map(|device| {
                    let address = own.iter().find(|address| device.is_silent(**address))?;
                    Some((tunnel, right, device, *address))
                })
            })
        });
        let Some((tunnel, right, device, address)) = found else { continue };
        let set = |bridge: DeviceRef<'_>| {
            let command =
                format!("ip link set {} master {}", quote(port.name()), quote(bridge.name()));
            inside(port.namespace.path.as_deref(), &command)
        };
        outcome.add(
            CHECK
                .on(port)
                .evidence(
                    format!(
                        "a port of {}, which has no uplink, tunnel or address; {} is a port of {}",
                        bridge.name(),
                        tunnel.name(),
                        right.name()
                    ),
                    "RTM_GETLINK",
                )
                .evidence(
                    format!(
                        "{} {} gets no answer from {address} of {} {}",
                        device.namespace.label,
                        device.name(),
                        tenant.namespace.label,
                        tenant.name()
                    ),
                    "RTM_GETNEIGH",
                )
                .cost(Cost::estimated(1.0, "all packets of the tenant"))
                .confidence(Confidence::Medium)
                .by_hand(
                    set(right),
                    "joins the tenant to the bridge's network: make sure that it belongs there",
                    set(bridge),
                ),
        );
    }
}

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    wrong_bridge(view, outcome);
    for device in view.devices() {
        let interface = device.interface;
        // A device that is down, or has a master, is another finding or none.
        if !interface.up || !interface.carrier || interface.master.is_some() {
            continue;
        }
        let Some(tenant) = view.peer(device) else { continue };
        // A device that carries packets to the tenant is in use, by whatever means.
        if device.moved().is_none_or(|moved| moved.tx_packets > 0) {
            continue;
        }
        // A pair within one namespace connects no tenant.
        if tenant.place.namespace == device.place.namespace {
            continue;
        }
        let Some(address) = unanswered(tenant) else { continue };
        let bridges: Vec<DeviceRef<'_>> = view
            .devices_of(device.place.namespace)
            .filter(|other| other.kind() == "bridge" && other.interface.up)
            .filter(|bridge| view.ports(*bridge).next().is_some())
            .collect();
        // Without bridges there is nothing to join; a used device is joined by other means.
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
            // One usable neighbour shows that the tenant is connected.
            Knowledge::Usable => return None,
            _ => {}
        }
    }
    failed
}
