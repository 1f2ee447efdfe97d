//! OV001: UDP tunnel segmentation off on the NIC under a VXLAN device.

use std::collections::BTreeMap;

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV001",
    title: "Tunnelled GSO packets are cut by the CPU",
    severity: Severity::Warn,
    explanation: "The NIC under a VXLAN device does not segment tunnelled packets: \
        tx-udp_tnl-segmentation is off, or tx-udp_tnl-csum-segmentation, which packets with an \
        outer checksum need. So the kernel cuts every tunnelled GSO packet into wire-size packets \
        before the driver (software GSO), and pays for each of them. Correct if the NIC's own \
        segmentation is broken, or fixed off because the hardware cannot do it.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for nic in view.underlay_nics() {
        // Both features decide whether it segments no tunnelled packets at all. OV002 reports a NIC
        // that does for other tunnels.
        let Some(off) = outcome.off(nic, PLAIN) else { continue };
        let sums = nic.feature(WITH_CHECKSUM).ok().flatten();
        let sums = sums.is_some_and(|feature| feature.is_on());
        for (feature, by) in needed(view, nic) {
            let off = match feature {
                PLAIN => off,
                // Packets with checksum are segmented by the NIC.
                _ if sums => continue,
                _ => match outcome.off(nic, feature) {
                    Some(off) => off,
                    None => continue,
                },
            };
            let fixed = if off.fixed { " [fixed]" } else { "" };
            let finding = CHECK
                .on(nic)
                .evidence(format!("{feature}: off{fixed}"), "ETHTOOL_GFEATURES")
                .evidence(by, "IFLA_VXLAN_UDP_CSUM, IFLA_VXLAN_UDP_ZERO_CSUM6_TX")
                .cost(Cost::estimated(
                    0.25,
                    "CPU time of large transfers through the tunnel; lab run --modes vxlan \
                     --offload full,no-tunnel measures it here",
                ));
            outcome.add(match off.fixed {
                // The driver does not let it be switched on: for information only.
                true => finding.severity(Severity::Info),
                false => finding.confidence(Confidence::Medium).set(
                    Change::feature(nic, feature, true),
                    "some drivers send broken packets with it: watch for checksum errors (OV009)",
                ),
            });
        }
    }
}

/// NIC features that segment tunnelled GSO packets without and with an outer checksum.
const PLAIN: &str = "tx-udp_tnl-segmentation";
const WITH_CHECKSUM: &str = "tx-udp_tnl-csum-segmentation";

/// Returns the features that the tunnels over a NIC need, each with its evidence.
fn needed(view: &View<'_>, nic: DeviceRef<'_>) -> BTreeMap<&'static str, String> {
    let mut needed = BTreeMap::new();
    for (tunnel, vxlan) in view.tunnels() {
        for underlay in view.underlays(tunnel) {
            if underlay.nic.place != nic.place {
                continue;
            }
            let ipv4 = underlay.remote.is_ipv4();
            let sends = if ipv4 { vxlan.checksum } else { vxlan.checksum6 };
            // For an external device, each packet carries this setting: assume none.
            let (feature, what) = match sends && !vxlan.external {
                true => (WITH_CHECKSUM, "sends outer checksums"),
                false => (PLAIN, "sends no outer checksums"),
            };
            needed.entry(feature).or_insert_with(|| format!("{} {what}", tunnel.name()));
        }
    }
    needed
}
