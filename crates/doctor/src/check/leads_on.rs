//! Follows a device to its tunnel and underlay. Shared by checks.

use netstate::interface::{Vxlan, vxlan_overhead};

use super::View;
use crate::view::{DeviceKey, DeviceRef};

/// Returns the VXLAN device behind a device: the device itself, or a port of the bridge that it is.
pub(super) fn tunnel<'a>(view: &View<'a>, spot: DeviceRef<'a>) -> Option<DeviceRef<'a>> {
    std::iter::once(spot).chain(view.ports(spot)).find(|spot| spot.vxlan().is_some())
}

/// Returns the devices that may carry a tunnel's packets.
pub(super) fn underlays(view: &View<'_>, tunnel: DeviceRef<'_>) -> Vec<DeviceKey> {
    let ways = view.underlays(tunnel).into_iter().map(|underlay| underlay.nic);
    ways.chain(view.link(tunnel)).chain(view.tunnel_nic(tunnel)).map(|nic| nic.place).collect()
}

/// Returns the VXLAN devices of the same VNI and port at a tunnel's remotes, if the remotes are on
/// this machine.
pub(super) fn far_ends<'a>(
    view: &View<'a>,
    tunnel: DeviceRef<'a>,
    vxlan: &Vxlan,
) -> Vec<DeviceRef<'a>> {
    let mut ends: Vec<DeviceRef<'a>> = Vec::new();
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

/// Returns the largest layer-3 packet in bytes that fits all of a tunnel's routes. `None` if no
/// route is known.
pub(super) fn room(view: &View<'_>, tunnel: DeviceRef<'_>) -> Option<u32> {
    let underlays = view.underlays(tunnel).into_iter();
    // Loopback has no wire whose MTU could limit packets.
    let wires = underlays.filter(|underlay| !underlay.nic.interface.loopback);
    wires
        .map(|underlay| underlay.nic.interface.mtu.saturating_sub(vxlan_overhead(underlay.remote)))
        .min()
}
