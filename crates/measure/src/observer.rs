//! Progress callbacks of a run.

use std::time::Duration;

use crate::path_under_test::PathUnderTest;
use crate::plan::PlannedCell;
use results::Sample;
use results::stats::Outlook;

/// A cell of the plan.
#[derive(Debug, Clone, Copy)]
pub struct CellRef<'a> {
    /// Index in [`Plan::cells`](crate::plan::Plan::cells).
    pub index: usize,
    /// The cell: path, workload, sizes, setting.
    pub planned: &'a PlannedCell,
    /// Path that the cell is measured over.
    pub subject: &'a PathUnderTest,
}

/// Progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Samples taken, including those of skipped cells.
    pub done: u64,
    /// Samples to take, unless the run stops earlier.
    pub total: u64,
}

/// Receives progress of a run, on the thread that runs it.
pub trait Observer {
    /// Called before the maximum behind a cell's percentage load is measured.
    fn calibrating(&mut self, _cell: CellRef<'_>) {}

    /// Called before a cell is measured.
    fn sampling(&mut self, _cell: CellRef<'_>) {}

    /// Applies the cell's setting and restores the previous one. Called right before the sample or,
    /// if the run rests, up to a second before the end of the rest.
    ///
    /// # Errors
    /// The reason why the setting cannot be applied. The sample is then void.
    fn set(&mut self, _cell: CellRef<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Called after a sample, valid or not. `progress` does not advance if it will be retaken.
    fn sampled(&mut self, _cell: CellRef<'_>, _progress: Progress, _sample: &Sample) {}

    /// Called before a rest that keeps to [`Plan::impact`](crate::plan::Plan::impact).
    fn resting(&mut self, _rest: Duration) {}

    /// Called after a block, with the width of the intervals if there are any.
    fn block_done(&mut self, _outlook: Option<Outlook>) {}
}
