//! OV018: The VXLAN devices of both ends, where both are seen, have different MTUs.

use super::{Check, Confidence, Cost, Outcome, Severity, Spot, View};
use netstate::interface::Vxlan;

use crate::change::Change;

pub(super) const CHECK: Check = Check {
    code: "OV018",
    title: "Both ends of a tunnel differ in MTU",
    severity: Severity::Warn,
    explanation: "The VXLAN device here and the one at the remote VTEP have different MTUs. What \
        fits here may not fit the devices behind the remote end, and is dropped there \
        without an error.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for (tunnel, vxlan) in view.tunnels() {
        for other in far_ends(view, tunnel, vxlan) {
            let (mtu, theirs) = (tunnel.interface.mtu, other.interface.mtu);
            if mtu <= theirs {
                continue;
            }
            outcome.add(
                CHECK
                    .on(tunnel)
                    .evidence(format!("MTU of {}: {mtu}", tunnel.name()), "IFLA_MTU")
                    .evidence(
                        format!(
                            "MTU of {} {} at the other end: {theirs}",
                            other.namespace.label,
                            other.name()
                        ),
                        "IFLA_MTU",
                    )
                    .cost(Cost::estimated(0.5, "packets over the smaller MTU"))
                    .confidence(Confidence::Medium)
                    .set(
                        Change::mtu(tunnel, theirs),
                        "bridge, veth and tenant devices above need the same MTU",
                    ),
            );
        }
    }
}

/// The VXLAN devices of the same VNI and port at a tunnel's remotes, where the
/// remotes are on this machine.
pub(super) fn far_ends<'a>(view: &View<'a>, tunnel: Spot<'a>, vxlan: &Vxlan) -> Vec<Spot<'a>> {
    let mut ends: Vec<Spot<'a>> = Vec::new();
    for underlay in view.underlays(tunnel) {
        for remote in view.neighbour_with(underlay.nic, underlay.remote) {
            ends.extend(view.tunnels().filter_map(|(spot, other)| {
                let under = view.ways(spot)?.underlay;
                let same = under == remote.namespace.inode
                    && spot.place != tunnel.place
                    && (other.vni, other.port) == (vxlan.vni, vxlan.port);
                same.then_some(spot)
            }));
        }
    }
    ends.sort_by_key(|spot| spot.place);
    ends.dedup_by_key(|spot| spot.place);
    ends
}
