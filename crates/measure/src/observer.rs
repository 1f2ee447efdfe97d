//! What a run tells whoever asked for it.

use std::time::Duration;

use crate::path_under_test::PathUnderTest;
use crate::plan::PlannedCell;
use results::Sample;
use results::stats::Outlook;

/// A cell of the plan.
#[derive(Debug, Clone, Copy)]
pub struct CellRef<'a> {
    /// Its index in [`Plan::cells`](crate::plan::Plan::cells).
    pub index: usize,
    /// The cell: path, workload, sizes, setting.
    pub planned: &'a PlannedCell,
    /// Path that the cell is measured over.
    pub subject: &'a PathUnderTest,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Samples taken, those of cells that are left out included.
    pub done: u64,
    /// Samples to take, unless the run stops earlier.
    pub total: u64,
}

/// Told how a run gets on, on the thread that runs it.
pub trait Observer {
    /// The maximum that a cell's load is a share of is about to be sought.
    fn calibrating(&mut self, _cell: CellRef<'_>) {}

    /// A cell is about to be measured.
    fn sampling(&mut self, _cell: CellRef<'_>) {}

    /// Puts the cell's setting in effect, and takes back the last one's: right before the
    /// sample or, where the run rests, up to a second before the end of the rest.
    ///
    /// # Errors
    /// Why the setting cannot be had: the sample is void.
    fn set(&mut self, _cell: CellRef<'_>) -> Result<(), String> {
        Ok(())
    }

    /// A sample was taken, valid or not; `progress` stays where it is taken once more.
    fn sampled(&mut self, _cell: CellRef<'_>, _progress: Progress, _sample: &Sample) {}

    /// Nothing is sent for so long, to keep within [`Plan::impact`](crate::plan::Plan::impact).
    fn resting(&mut self, _rest: Duration) {}

    /// A block was done; how wide the intervals are, where there are some.
    fn block_done(&mut self, _outlook: Option<Outlook>) {}
}
