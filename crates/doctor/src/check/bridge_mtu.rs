//! OV014: Ports of one bridge differ in MTU.

use super::overlay_extent::lowered;
use super::{Check, Cost, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV014",
    title: "Ports of a bridge have different MTUs",
    severity: Severity::Warn,
    explanation: "A bridge drops what does not fit the port it leaves by, without telling the \
        sender (a bridge is no router: no ICMP). The bridge's own MTU follows the \
        smallest port unless it was set, so that traffic of the host itself fits, \
        while tenants on the larger ports send what is dropped.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for bridge in view.devices().filter(|spot| spot.kind() == "bridge") {
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
                        "devices of the segment that are not seen from here need the same MTU",
                    ),
            );
        }
    }
}
