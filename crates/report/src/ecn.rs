//! Packets of a cell by ECN codepoint.

use results::{Cell, EcnCounts, Results, Status};

use crate::panel::name;
use crate::remark::some_of;
use crate::unit::percent;
use crate::work::place;

/// Returns the packets of all valid samples; `None` without ECN.
pub(crate) fn counts(cell: &Cell) -> Option<EcnCounts> {
    let valid = cell.samples.iter().filter(|sample| sample.valid);
    EcnCounts::together(valid.filter_map(|sample| sample.ecn))
}

/// Share of the packets that arrived with CE.
pub(crate) fn congestion(cell: &Cell) -> Option<f64> {
    counts(cell).map(|counts| counts.ce as f64 / counts.arrived.max(1) as f64)
}

/// Returns the cells whose path clears the codepoint of datagrams.
pub(crate) fn cleared(results: &Results) -> Option<String> {
    let cells = results.cells.iter().filter(|cell| cell.status == Status::Ok);
    let cleared: Vec<String> = cells
        .filter_map(|cell| {
            let EcnCounts { arrived, not_ect, .. } = counts(cell)?;
            let cleared = not_ect.filter(|cleared| *cleared > 0)?;
            let share = percent(cleared as f64 / arrived.max(1) as f64);
            Some(format!("{share} in {} in {}", name(cell), place(results, cell)))
        })
        .collect();
    (!cleared.is_empty()).then(|| {
        format!("ECN: datagrams arrived without their codepoint: {}.", some_of(&cleared, 3))
    })
}
