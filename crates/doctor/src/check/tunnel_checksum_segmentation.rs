//! OV002: outer checksums are sent, but the NIC segments only packets without them.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV002",
    title: "Tunnel segmentation with checksums is off",
    severity: Severity::Warn,
    explanation: "The VXLAN device sends outer UDP checksums, and the NIC has \
        tx-udp_tnl-segmentation on but tx-udp_tnl-csum-segmentation off, so the CPU cuts packets \
        with an outer checksum. Switch the feature on, or switch the outer checksums off (udpcsum) \
        if the receivers' GRO does not need them.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    const FEATURE: &str = "tx-udp_tnl-csum-segmentation";
    let mut seen = std::collections::BTreeSet::new();
    for (tunnel, vxlan) in view.tunnels() {
        for underlay in view.underlays(tunnel) {
            let nic = underlay.nic;
            let sends = if underlay.remote.is_ipv4() { vxlan.checksum } else { vxlan.checksum6 };
            // Packets to a remote on this host reach no NIC.
            if !sends || nic.interface.loopback || !seen.insert(nic.place) {
                continue;
            }
            // Without any tunnel segmentation, OV001 reports it.
            let plain = nic.feature("tx-udp_tnl-segmentation").ok().flatten();
            let Some(off) = outcome.off(nic, FEATURE) else { continue };
            if !plain.is_some_and(|plain| plain.is_on()) {
                continue;
            }
            let finding = CHECK
                .on(nic)
                .evidence(format!("{FEATURE}: off"), "ETHTOOL_GFEATURES")
                .evidence(format!("{} sends outer checksums", tunnel.name()), "IFLA_VXLAN_UDP_CSUM")
                .cost(Cost::estimated(0.25, "CPU time of large transfers through the tunnel"))
                .confidence(Confidence::Medium);
            outcome.add(match off.fixed {
                true => finding.severity(Severity::Info),
                false => finding.set(
                    Change::feature(nic, FEATURE, true),
                    "some drivers send broken packets with it: watch for checksum errors (OV009)",
                ),
            });
        }
    }
}
