//! Where GSO packets are cut, from the mean skb size at each hop.

use results::{Cell, HopRecord, RecordKind, Task};

/// What became of GSO packets on the way from client to server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fate<'a> {
    /// Above the MTU at every hop.
    Uncut,
    /// Far above the MTU before this hop, at most the MTU at it.
    Cut {
        /// Mean skb before, layer-3 bytes.
        before: f64,
        /// The first hop at which they are cut.
        at: &'a HopRecord,
    },
    /// At most the MTU from the first hop on: none was ever built.
    NeverBuilt,
}

/// Devices, and stages that are none, on the way to the server, in the order of the path.
fn forward(cell: &Cell) -> impl Iterator<Item = &HopRecord> {
    let way = cell.workload.workload().direction();
    cell.hops.iter().filter(move |hop| {
        let carries = matches!(hop.kind, RecordKind::Device | RecordKind::Stage);
        hop.direction == way && carries && hop.packets > 0
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
    // Small messages never need GSO packets, so nothing can be cut.
    if !matches!(cell.workload, Task::Steady(workload) if workload.is_stream())
        || f64::from(cell.message_bytes) <= 2.0 * mtu
    {
        return None;
    }
    // UDP without GSO is cut into fragments by the sender, not from GSO packets.
    if !cell.workload.workload().is_byte_stream() && !cell.gso {
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
