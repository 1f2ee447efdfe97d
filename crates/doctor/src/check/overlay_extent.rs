//! Devices that need one MTU: the devices of a layer-2 segment, and the devices of an overlay as
//! far as doctor can see it. Changing one of them alone would cause a finding of another check, so
//! they are changed together.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use settings::Change;

use super::View;
use super::leads_on::{far_ends, room};
use super::nat_mtu::{forwards, routed};
use crate::view::{DeviceKey, DeviceRef};

/// Most devices of an extent. Beyond it, a fix covers only the device and its peer: a saved host
/// may have a hundred thousand devices on one bridge, each with a finding.
const MOST: usize = 128;

/// Returns the devices of a device's segment. For a tunnel among them, adds the devices at its
/// other ends, and, if packets are routed to it, the bridges that they come from.
pub(super) fn extent<'a>(view: &View<'a>, of: DeviceRef<'a>) -> Vec<DeviceRef<'a>> {
    let mut found: BTreeMap<DeviceKey, DeviceRef<'a>> = BTreeMap::new();
    let mut left = vec![of];
    while let Some(spot) = left.pop() {
        // Devices form circles: each is visited once.
        if found.insert(spot.place, spot).is_some() {
            continue;
        }
        left.extend(view.peer(spot));
        left.extend(view.bridge(spot));
        // One more than the limit is enough to see that there are too many.
        left.extend(view.ports(spot).take(MOST + 1));
        if let Some(vxlan) = spot.vxlan() {
            left.extend(far_ends(view, spot, vxlan).into_iter().take(MOST + 1));
            // Routed packets come from bridges in the tunnel's namespace.
            if forwards(spot.namespace) {
                left.extend(behind(view, spot));
            }
        }
        // A very large segment is not listed: only this link is named.
        if found.len() > MOST {
            return [Some(of), view.peer(of)].into_iter().flatten().collect();
        }
    }
    found.into_values().collect()
}

/// Returns the bridges of a tunnel's namespace from which packets are routed into it. They were set
/// up with the tunnel's MTU; other bridges, such as Docker's, have the underlay's.
fn behind<'a>(view: &View<'a>, tunnel: DeviceRef<'a>) -> impl Iterator<Item = DeviceRef<'a>> {
    let routed = routed(view, tunnel.place.namespace);
    let is_routed = routed.iter().any(|spot| spot.place == tunnel.place);
    let mtu = tunnel.interface.mtu;
    routed
        .into_iter()
        .filter(move |spot| is_routed && spot.kind() == "bridge" && spot.interface.mtu == mtu)
}

/// Names the other ends of an extent's tunnels that were not read, and so are not changed. `None`: all
/// were read.
pub(super) fn unread_ends(view: &View<'_>, of: DeviceRef<'_>) -> Option<String> {
    /// More would hide the rest of the text.
    const SHOWN: usize = 3;
    let extent = extent(view, of);
    let tunnels = extent.iter().filter(|spot| spot.vxlan().is_some());
    let remotes = tunnels.filter_map(|spot| view.ways(*spot)).flat_map(|ways| &ways.ways);
    let remotes: BTreeSet<IpAddr> = remotes.map(|(remote, _)| *remote).collect();
    let is_unread =
        |remote: &&IpAddr| !remote.is_multicast() && view.with_address(**remote).next().is_none();
    let unread: Vec<String> = remotes.iter().filter(is_unread).map(ToString::to_string).collect();
    let names = unread.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match unread.len() {
        0 => None,
        count if count > SHOWN => Some(format!("{names} and {} others", count - SHOWN)),
        _ => Some(names),
    }
}

/// Returns the changes after which no device of the extent is above an MTU.
pub(super) fn lowered(view: &View<'_>, of: DeviceRef<'_>, to: u32) -> Vec<Change> {
    changes(extent(view, of).into_iter().filter(|spot| spot.interface.mtu > to), to)
}

/// Returns the changes that raise a tunnel and its extent to an MTU, limited by the routes of all
/// its ends. Empty if the extent has a NIC, because the other end of its link is unknown.
pub(super) fn raised(view: &View<'_>, tunnel: DeviceRef<'_>, to: u32) -> Vec<Change> {
    let extent = extent(view, tunnel);
    // Raising the MTU of one end of a wire alone would lose packets.
    if extent.iter().any(DeviceRef::is_physical) {
        return Vec::new();
    }
    let rooms = extent.iter().filter(|spot| spot.vxlan().is_some());
    let to = rooms.filter_map(|spot| room(view, *spot)).fold(to, u32::min);
    changes(extent.into_iter().filter(|spot| spot.interface.mtu < to), to)
}

/// Changes bridges first: a bridge whose MTU was never set follows its ports, and would then no
/// longer have the value that was read.
fn changes<'a>(of: impl Iterator<Item = DeviceRef<'a>>, to: u32) -> Vec<Change> {
    let (mut bridges, others): (Vec<_>, Vec<_>) = of.partition(|spot| spot.kind() == "bridge");
    bridges.extend(others);
    bridges.into_iter().map(|spot| Change::mtu(spot, to)).collect()
}
