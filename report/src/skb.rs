//! Where super-packets are cut, from the mean skb size at each hop.

use measure::results::{Cell, HopRecord};

/// What became of super-packets on the way from client to server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fate<'a> {
    /// Above the MTU at every hop.
    Uncut,
    /// Far above the MTU before this hop, at most the MTU at it.
    Cut {
        /// Mean skb before, layer-3 bytes.
        before: f64,
        /// The hop.
        at: &'a HopRecord,
    },
    /// At most the MTU from the first hop on: none was ever built.
    NeverBuilt,
}

/// Devices, and stages that are none, on the way to the server, in the order of the path.
fn forward(cell: &Cell) -> impl Iterator<Item = &HopRecord> {
    cell.hops.iter().filter(|hop| {
        let carries = matches!(hop.kind.as_str(), "device" | "stage");
        hop.direction == "forward" && carries && hop.packets > 0
    })
}

/// Smallest mean skb of any device or stage on the way, layer-3 bytes.
pub(crate) fn smallest(cell: &Cell) -> Option<f64> {
    forward(cell).map(|hop| hop.mean_skb_bytes).reduce(f64::min)
}

/// `None` without hops, or where messages are too small to need cutting.
///
/// "Far above" is twice the MTU: a mean also counts handshakes and the last,
/// shorter skbs, so a little above says nothing.
pub(crate) fn fate(cell: &Cell) -> Option<Fate<'_>> {
    // A VLAN tag stands outside the MTU, and the counters have it.
    let mtu = f64::from(cell.mtu) + 4.0;
    if !cell.workload.ends_with("_stream") || f64::from(cell.message_bytes) <= 2.0 * mtu {
        return None;
    }
    // UDP without GSO is cut into fragments by the sender, not from super-packets.
    if cell.workload == "udp_stream" && !cell.gso {
        return None;
    }
    let mut hops = forward(cell);
    let first = hops.next()?;
    if first.mean_skb_bytes <= mtu {
        return Some(Fate::NeverBuilt);
    }
    let mut before = first.mean_skb_bytes;
    for at in hops {
        if before > 2.0 * mtu && at.mean_skb_bytes <= mtu {
            return Some(Fate::Cut { before, at });
        }
        before = before.max(at.mean_skb_bytes);
    }
    Some(Fate::Uncut)
}
