//! Devices that need one MTU: those of a layer-2 segment, and those of an overlay as far as it
//! is seen from here. A change of one of them alone makes the finding of another check true,
//! so that they are proposed together.

use std::collections::BTreeMap;

use settings::Change;

use super::View;
use super::leads_on::{far_ends, room};
use super::nat_mtu::{forwards, routed};
use crate::view::{Place, Spot};

/// Devices of an extent, at most. Beyond, a fix is of the device and its peer only: a saved
/// host may have a hundred thousand devices on one bridge, each of them with a finding.
const MOST: usize = 128;

/// The devices of a device's segment; where a tunnel is one of them, those at its other ends;
/// where a tunnel is routed to, the bridges that its packets come from.
pub(super) fn extent<'a>(view: &View<'a>, of: Spot<'a>) -> Vec<Spot<'a>> {
    let mut found: BTreeMap<Place, Spot<'a>> = BTreeMap::new();
    let mut left = vec![of];
    while let Some(spot) = left.pop() {
        if found.insert(spot.place, spot).is_some() {
            continue;
        }
        left.extend(view.peer(spot));
        left.extend(view.bridge(spot));
        // One more than are kept is enough to see that there are too many.
        left.extend(view.ports(spot).take(MOST + 1));
        if let Some(vxlan) = spot.vxlan() {
            left.extend(far_ends(view, spot, vxlan).into_iter().take(MOST + 1));
            if forwards(spot.namespace) {
                left.extend(behind(view, spot));
            }
        }
        if found.len() > MOST {
            return [Some(of), view.peer(of)].into_iter().flatten().collect();
        }
    }
    found.into_values().collect()
}

/// Bridges of a tunnel's namespace from which packets are routed into it: whoever set them up
/// gave them the tunnel's MTU. Others (those of Docker, say) have that of the underlay.
fn behind<'a>(view: &View<'a>, tunnel: Spot<'a>) -> impl Iterator<Item = Spot<'a>> {
    let routed = routed(view, tunnel.place.namespace);
    let is_routed = routed.iter().any(|spot| spot.place == tunnel.place);
    let mtu = tunnel.interface.mtu;
    routed
        .into_iter()
        .filter(move |spot| is_routed && spot.kind() == "bridge" && spot.interface.mtu == mtu)
}

/// Changes that leave no device of the extent above an MTU.
pub(super) fn lowered(view: &View<'_>, of: Spot<'_>, to: u32) -> Vec<Change> {
    changes(extent(view, of).into_iter().filter(|spot| spot.interface.mtu > to), to)
}

/// Changes that raise a tunnel and all of its extent to an MTU, or to what the ways of all
/// its ends have room for. None where the extent has a NIC, whose other end is not seen.
pub(super) fn raised(view: &View<'_>, tunnel: Spot<'_>, to: u32) -> Vec<Change> {
    let extent = extent(view, tunnel);
    if extent.iter().any(Spot::is_physical) {
        return Vec::new();
    }
    let rooms = extent.iter().filter(|spot| spot.vxlan().is_some());
    let to = rooms.filter_map(|spot| room(view, *spot)).fold(to, u32::min);
    changes(extent.into_iter().filter(|spot| spot.interface.mtu < to), to)
}

/// Bridges first: one that nobody gave an MTU follows its ports, and then has no longer the
/// value that was read.
fn changes<'a>(of: impl Iterator<Item = Spot<'a>>, to: u32) -> Vec<Change> {
    let (mut bridges, others): (Vec<_>, Vec<_>) = of.partition(|spot| spot.kind() == "bridge");
    bridges.extend(others);
    bridges.into_iter().map(|spot| Change::mtu(spot, to)).collect()
}
