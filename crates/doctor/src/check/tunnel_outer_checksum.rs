//! OV003: A VXLAN device over IPv4 sends no outer checksums.

use super::tunnel_zero_checksum::in_user_space;
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV003",
    title: "Outer UDP checksums are off",
    severity: Severity::Warn,
    explanation: "The VXLAN device sends outer UDP checksums of zero. If a receiver's NIC cannot \
        parse tunnels, its CPU must verify the inner checksums before GRO can merge packets, and \
        kernels before 5.x did not merge them at all (antrea-io/antrea#1048: 2.6 against 5.2 \
        Gb/s). Correct if the NIC can segment tunnelled packets only without an outer checksum.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.fixed_tunnels() {
        if vxlan.checksum {
            continue;
        }
        let underlays = view.underlays(tunnel);
        let Some(first) = underlays.iter().find(|underlay| underlay.remote.is_ipv4()) else {
            continue;
        };
        // OV092 reports it.
        if in_user_space(view, first.remote, vxlan).is_some() {
            continue;
        }
        // On purpose: this NIC segments only packets without an outer checksum.
        let cuts = |feature| first.nic.feature(feature).ok().flatten();
        if cuts("tx-udp_tnl-segmentation").is_some_and(|feature| feature.is_on())
            && cuts("tx-udp_tnl-csum-segmentation").is_some_and(|feature| !feature.is_on())
        {
            continue;
        }
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence("noudpcsum", "IFLA_VXLAN_UDP_CSUM")
                .cost(Cost::estimated(
                    0.2,
                    "the receiver's throughput, depending on its kernel and NIC",
                ))
                .confidence(Confidence::Medium),
        );
    }
}
