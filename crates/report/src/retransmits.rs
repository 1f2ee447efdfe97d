//! Retransmitted TCP segments of a cell.

use results::Cell;
use results::stats::median;

/// Returns the median over the valid samples of the segments retransmitted by both ends; `None` for
/// workloads over UDP.
pub(crate) fn retransmits(cell: &Cell) -> Option<f64> {
    if !cell.workload.workload().is_tcp() {
        return None;
    }
    let valid = cell.samples.iter().filter(|sample| sample.valid);
    let counts: Vec<f64> = valid.map(|sample| sample.tcp_retransmits as f64).collect();
    median(&counts)
}
