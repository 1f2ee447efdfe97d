//! OV014: ports of one bridge have different MTUs.

use super::overlay_extent::lowered;
use super::{Check, CheckOutcome, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV014",
    title: "Ports of a bridge have different MTUs",
    severity: Severity::Warn,
    explanation: "A bridge drops a packet that is larger than the MTU of its output port. The \
        sender gets no ICMP, because a bridge is no router. Unless the bridge's own MTU was set, \
        it follows the smallest port: traffic of the host itself fits, but tenants on larger ports \
        send packets that the bridge drops.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for bridge in view.devices().filter(|spot| spot.kind() == "bridge") {
        // A port that is down forwards nothing.
        let ports: Vec<_> = view.ports(bridge).filter(|port| port.interface.up).collect();
        let Some(least) = ports.iter().map(|port| port.interface.mtu).min() else { continue };
        for port in ports.iter().filter(|port| port.interface.mtu > least) {
            let small = ports.iter().find(|other| other.interface.mtu == least);
            let (mtu, other) = (port.interface.mtu, small.map_or("", |other| other.name()));
            outcome.add(
                CHECK
                    .on(*port)
                    .evidence(format!("MTU of {}: {mtu}", port.name()), "IFLA_MTU")
                    .evidence(
                        format!("MTU of {other} on the same bridge {}: {least}", bridge.name()),
                        "IFLA_MTU, IFLA_MASTER",
                    )
                    .cost(Cost::estimated(0.8, "packets over the smaller MTU"))
                    .set_all(
                        lowered(view, *port, least),
                        "devices of the segment that doctor cannot see need the same MTU",
                    ),
            );
        }
    }
}
