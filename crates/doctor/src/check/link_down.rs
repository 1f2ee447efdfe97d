//! OV051: A bridge, port or underlay device of a path is down.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View, link_flaps};
use settings::{Change, Target};

pub(super) const CHECK: Check = Check {
    code: "OV051",
    title: "A device of a path is down",
    severity: Severity::Error,
    explanation: "A device that an overlay's packets must cross is down or has no carrier: a \
        bridge with ports, a port of a bridge, or the NIC under a tunnel. A TAP without carrier \
        has no program attached. A veth without carrier has a peer that is down. Or the loopback \
        device of a tenant with programs is down: they reach neither 127.0.0.1 nor the tenant's own \
        address.",
    run,
};

/// Loopback devices that are down in namespaces with programs and another device that is up.
fn loopback(view: &View<'_>, outcome: &mut CheckOutcome) {
    for namespace in &view.host().namespaces {
        let links = namespace.interfaces.get().map_or(&[][..], Vec::as_slice);
        // A namespace of a test or a sandbox needs none.
        let is_used = namespace.member_count > 0
            && links.iter().any(|link| !link.loopback && link.up && link.link_netns.is_some());
        let Some(lo) = links.iter().find(|link| link.loopback && !link.up && is_used) else {
            continue;
        };
        outcome.add(
            CHECK
                .in_namespace(namespace, &lo.name)
                .severity(Severity::Warn)
                .evidence("down", "IFLA_FLAGS")
                .cost(Cost::estimated(0.5, "packets to 127.0.0.1 and to the tenant's own address"))
                .confidence(Confidence::Medium)
                .set(
                    Change::up(Target { namespace: namespace.into(), interface: lo }),
                    "none: a runtime sets it up before a container's programs start",
                ),
        );
    }
}

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    loopback(view, outcome);
    let nics = view.tunnel_nics();
    for spot in view.devices() {
        let bridge = spot.kind() == "bridge" && view.ports(spot).next().is_some();
        let port = view.bridge(spot).is_some();
        let nic = nics.iter().any(|nic| nic.place == spot.place);
        // Other devices carry no overlay.
        if !bridge && !port && !nic || spot.interface.up && spot.interface.carrier {
            continue;
        }
        // OV095 reports it: it comes back.
        if link_flaps::is_flapping(spot, nic) {
            continue;
        }
        // OV033 reports it: without the device nothing listens on its port.
        if spot.vxlan().is_some() && !spot.interface.up {
            continue;
        }
        // A bridge has no carrier if its ports have none, and the ports are reported.
        if bridge && spot.interface.up {
            continue;
        }
        let state = if spot.interface.up { "up, without carrier" } else { "down" };
        let finding = CHECK
            .on(spot)
            .evidence(state, "IFLA_FLAGS, IFLA_OPERSTATE")
            .cost(Cost::estimated(1.0, "all packets of this device"))
            .confidence(Confidence::Medium);
        // A device whose peer is down, or that no program has open, is often left over on purpose.
        outcome.add(match spot.interface.up {
            true => finding.severity(Severity::Warn),
            false => finding.set(Change::up(spot), "it may have been set down on purpose"),
        });
    }
}
