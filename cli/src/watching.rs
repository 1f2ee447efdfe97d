//! What goes on beside the samples of a lab run: the progress bar, the time
//! line, and the setting that is varied.

use std::sync::Arc;

use measure::plan::PlannedCell;
use measure::results::{Sample, Timeline};
use measure::run::Observer;
use measure::sampler::Recorder;
use measure::subject::Subject;
use testbed::{Applied, Host, Setting};

use crate::progress::Progress;

/// Watches a run.
pub struct Watching<'a> {
    /// The bar.
    pub progress: &'a mut Progress,
    recorder: Option<Recorder>,
    cells: &'a [PlannedCell],
    settings: &'a [Setting],
    /// The hosts of each subject.
    hosts: Vec<&'a [Arc<Host>]>,
    /// Subject and setting in effect.
    applied: Option<((usize, usize), Applied)>,
}

impl<'a> Watching<'a> {
    /// Begins; a time line that cannot be kept is left out, with a word in the log.
    pub fn new(
        progress: &'a mut Progress,
        cells: &'a [PlannedCell],
        settings: &'a [Setting],
        hosts: Vec<&'a [Arc<Host>]>,
    ) -> Watching<'a> {
        let recorder = Recorder::start()
            .inspect_err(|error| tracing::warn!("no time line is kept: {error}"))
            .ok();
        Watching { progress, recorder, cells, settings, hosts, applied: None }
    }

    /// Ends: gives back what was varied, and what was recorded.
    ///
    /// # Errors
    /// A setting that could not be given back.
    pub fn finish(mut self) -> (Option<Timeline>, testbed::Result<()>) {
        let restored = self.applied.take().map_or(Ok(()), |(_, applied)| applied.restore());
        (self.recorder.take().and_then(Recorder::finish), restored)
    }
}

impl Observer for Watching<'_> {
    fn sampled(
        &mut self,
        done: u64,
        total: u64,
        subject: &Subject,
        cell: &PlannedCell,
        sample: &Sample,
    ) {
        self.progress.sampled(done, total, subject, cell, sample);
    }

    fn sampling(&mut self, subject: &Subject, cell: &PlannedCell) {
        self.progress.sampling(subject, cell);
        // Cells are told apart by where they are in the plan.
        let at = self.cells.iter().position(|planned| std::ptr::eq(planned, cell));
        if let (Some(recorder), Some(at)) = (&mut self.recorder, at) {
            recorder.mark(at);
        }
    }

    fn calibrating(&mut self, subject: &Subject, cell: &PlannedCell) {
        self.progress.calibrating(subject, cell);
    }

    fn set(&mut self, _subject: &Subject, cell: &PlannedCell) -> Result<(), String> {
        let wanted = cell.setting.map(|setting| (cell.subject, setting));
        if self.applied.as_ref().map(|(which, _)| *which) == wanted {
            return Ok(());
        }
        if let Some((_, applied)) = self.applied.take() {
            applied
                .restore()
                .map_err(|error| format!("the setting was not given back: {error}"))?;
        }
        if let Some((subject, setting)) = wanted {
            let applied = self.settings[setting].apply(self.hosts[subject]);
            let applied = applied.map_err(|e| format!("{}: {e}", self.settings[setting]))?;
            self.applied = Some(((subject, setting), applied));
        }
        Ok(())
    }
}
