//! A run, and what goes on beside its samples: the progress bar, the time
//! line, and the setting that is varied.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use measure::plan::{Plan, PlannedCell};
use measure::results::{Sample, Timeline};
use measure::run::{Observer, Outcome};
use measure::sampler::{Machine, Recorder};
use measure::subject::Subject;
use testbed::{Applied, Host, Setting};

use crate::progress::Progress;

/// Carries out a plan. `hosts` are those of each subject, in which its settings are
/// varied. A time line that cannot be kept is left out, with a word in the log.
///
/// # Errors
/// A plan that cannot be begun; a setting that could not be given back.
pub fn run(
    progress: &mut Progress,
    plan: &Plan,
    subjects: &[Subject],
    machine: &Machine,
    settings: &[Setting],
    hosts: Vec<&[Arc<Host>]>,
    stop: &AtomicBool,
) -> anyhow::Result<(Outcome, Option<Timeline>)> {
    let blocks =
        plan.stopping.half_width.map_or(plan.stopping.blocks, |_| plan.stopping.max_blocks);
    let sample = plan.duration + plan.warmup + Duration::from_millis(100);
    progress.measure(sample * plan.cells.len() as u32 * blocks);
    let recorder =
        Recorder::start().inspect_err(|error| tracing::warn!("no time line is kept: {error}")).ok();
    let mut watching =
        Watching { progress, recorder, cells: &plan.cells, settings, hosts, applied: None };
    let outcome = measure::run::run(plan, subjects, machine, &mut watching, stop);
    let Watching { recorder, applied, .. } = watching;
    let timeline = recorder.and_then(Recorder::finish);
    progress.finish();
    if let Some((_, applied)) = applied {
        applied.restore().context("a varied setting was not given back")?;
    }
    Ok((outcome?, timeline))
}

struct Watching<'a> {
    progress: &'a mut Progress,
    recorder: Option<Recorder>,
    cells: &'a [PlannedCell],
    settings: &'a [Setting],
    /// The hosts of each subject.
    hosts: Vec<&'a [Arc<Host>]>,
    /// Subject and setting in effect.
    applied: Option<((usize, usize), Applied)>,
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
        if let Some(reason) = &sample.invalid_reason {
            tracing::info!(mode = subject.mode, workload = %cell.ask.task, reason, "void sample");
        }
        self.progress.sampled(done, total);
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
