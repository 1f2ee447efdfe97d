//! Finds where GSO packets are cut, from the mean skb size at each hop.

use results::{Cell, HopRecord, RecordKind, Task};

/// Fate of GSO packets from client to server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fate<'a> {
    /// Above the MTU at every hop.
    Uncut,
    /// Far above the MTU before a hop, at most the MTU at it.
    Cut {
        /// Mean skb before the hop, layer-3 bytes.
        before: f64,
        /// The first hop at which they are cut.
        at: &'a HopRecord,
    },
    /// At most the MTU from the first hop on: no GSO packet was built.
    NeverBuilt,
}

/// Returns devices and other stages towards the server, in path order.
fn forward(cell: &Cell) -> impl Iterator<Item = &HopRecord> {
    let way = cell.workload.workload().direction();
    cell.hops.iter().filter(move |hop| {
        let carries = matches!(hop.kind, RecordKind::Device | RecordKind::Stage);
        hop.direction == way && carries && hop.packets > 0
    })
}

/// Returns the smallest mean skb of any device or stage towards the server, layer-3 bytes.
pub(crate) fn smallest(cell: &Cell) -> Option<f64> {
    forward(cell).map(|hop| hop.mean_skb_bytes).reduce(f64::min)
}

/// Returns the fate of GSO packets; `None` without hops, or if messages are too small to be cut.
///
/// "Far above" is twice the MTU: a mean also counts handshakes and shorter last skbs, so a value
/// slightly above the MTU proves nothing.
pub(crate) fn fate(cell: &Cell) -> Option<Fate<'_>> {
    // A VLAN tag does not count in the MTU, but does in the counters.
    let mtu = f64::from(cell.mtu) + 4.0;
    // Small messages need no GSO packets, so nothing can be cut.
    if !matches!(cell.workload, Task::Steady(workload) if workload.is_stream())
        || f64::from(cell.message_bytes) <= 2.0 * mtu
    {
        return None;
    }
    // Without GSO, the UDP sender fragments; there are no GSO packets.
    if !cell.workload.workload().is_byte_stream() && !cell.gso {
        return None;
    }
    let mut hops = forward(cell);
    let first = hops.next()?;
    // The sender itself builds packets of at most the MTU.
    if first.mean_skb_bytes <= mtu {
        return Some(Fate::NeverBuilt);
    }
    let mut before = first.mean_skb_bytes;
    for at in hops {
        if before > 2.0 * mtu && at.mean_skb_bytes <= mtu {
            return Some(Fate::Cut { before, at });
        }
        // GRO may merge packets again on the path.
        before = before.max(at.mean_skb_bytes);
    }
    Some(Fate::Uncut)
}
