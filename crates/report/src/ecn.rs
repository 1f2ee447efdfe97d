//! Packets of a cell by ECN codepoint.

use results::{Cell, EcnCounts};

/// Returns the packets of all valid samples; `None` without ECN.
pub(crate) fn counts(cell: &Cell) -> Option<EcnCounts> {
    let valid = cell.samples.iter().filter(|sample| sample.valid);
    EcnCounts::together(valid.filter_map(|sample| sample.ecn))
}

/// Share of the packets that arrived with CE.
pub(crate) fn congestion(cell: &Cell) -> Option<f64> {
    counts(cell).map(|counts| counts.ce as f64 / counts.arrived.max(1) as f64)
}
