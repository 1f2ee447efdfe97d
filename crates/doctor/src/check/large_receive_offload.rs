//! OV008: Large receive offload on a device that forwards.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV008",
    title: "LRO is on where packets are forwarded",
    severity: Severity::Error,
    explanation: "Large receive offload merges received packets and discards the information \
        needed to cut them again. If they are forwarded or bridged, they are dropped or sent with \
        wrong checksums. The kernel switches LRO off when forwarding is enabled, but does not stop \
        a driver or administrator from enabling it later.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for spot in view.devices() {
        let forwards = |key: &str| spot.namespace.sysctls.get(key).is_some_and(|on| on != "0");
        let on_path = view.bridge(spot).is_some()
            || forwards("net/ipv4/ip_forward")
            || forwards("net/ipv6/conf/all/forwarding");
        // Unread features prove nothing.
        let lro = spot.feature("rx-lro").ok().flatten();
        // A host that forwards nothing may use LRO.
        if !on_path || !lro.is_some_and(|lro| lro.is_on()) {
            continue;
        }
        outcome.add(
            CHECK
                .on(spot)
                .evidence("rx-lro: on", "ETHTOOL_GFEATURES")
                .evidence("it is a port of a bridge, or the namespace forwards", "netlink, sysctl")
                .cost(Cost::estimated(0.9, "forwarded TCP streams"))
                .confidence(Confidence::Medium)
                .set(
                    Change::feature(spot, "rx-lro", false),
                    "streams that this host itself receives cost more CPU; GRO merges them instead",
                ),
        );
    }
}
