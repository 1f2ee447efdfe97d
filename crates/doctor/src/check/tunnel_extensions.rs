//! OV121: One end of a tunnel has an extension of VXLAN that the other end lacks.

use super::{Check, CheckOutcome, Cost, DeviceRef, Severity, View};
use netstate::interface::Vxlan;

pub(super) const CHECK: Check = Check {
    code: "OV121",
    title: "The ends of a tunnel differ in extensions",
    severity: Severity::Warn,
    explanation: "A VXLAN device without an extension drops packets whose headers have flags of it: \
        gbp sends the packet mark as a group policy, gpe names the inner protocol. The kernel counts \
        them as rx_frame_errors, like packets with a congestion mark (ECN) on the outer header whose \
        inner header does not support one. With gbp, packets without a mark arrive. If the other end \
        was not read, OV050 reports the counter. A device gets an extension only when it is created: \
        create one of the devices again, and with it all devices on the same port of its host.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.fixed_tunnels() {
        let Some((end, of)) = other_end(view, tunnel, vxlan) else { continue };
        // Without a second reading, current errors are unknown.
        let Some(moved) = tunnel.moved() else { continue };
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(format!("rx_frame_errors +{}", moved.rx_frame), "IFLA_STATS64")
                .evidence(
                    format!(
                        "{} has {}, {} {} has {}",
                        tunnel.name(),
                        extensions(vxlan),
                        end.namespace.label,
                        end.name(),
                        extensions(of)
                    ),
                    "IFLA_VXLAN_GBP, IFLA_VXLAN_GPE",
                )
                .cost(Cost::of_packets(
                    moved.rx_frame,
                    moved.rx_packets.saturating_add(moved.rx_frame),
                    "received packets",
                )),
        );
    }
}

/// Another end with other extensions, whose packets the device does not accept now.
pub(super) fn other_end<'a>(
    view: &View<'a>,
    tunnel: DeviceRef<'a>,
    vxlan: &Vxlan,
) -> Option<(DeviceRef<'a>, &'a Vxlan)> {
    let is_refused = tunnel.moved().is_some_and(|moved| moved.rx_frame > 0);
    let differs = |of: &Vxlan| {
        (of.vni, of.port) == (vxlan.vni, vxlan.port) && extensions(of) != extensions(vxlan)
    };
    let mut ends = view.fixed_tunnels().filter(|_| is_refused);
    ends.find(|(end, of)| end.place != tunnel.place && differs(of))
}

pub(super) fn extensions(vxlan: &Vxlan) -> &'static str {
    match (vxlan.gbp, vxlan.gpe) {
        (false, false) => "no extension",
        (true, false) => "gbp",
        (false, true) => "gpe",
        (true, true) => "gbp and gpe",
    }
}
