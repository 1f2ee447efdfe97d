//! Executes a run together with its progress bar, its timeline, and the varied settings.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use measure::observer::{self, CellRef, Observer};
use measure::path_under_test::PathUnderTest;
use measure::plan::{Plan, PlannedCell};
use measure::run::Outcome;
use measure::sampler::{Machine, Recorder};
use results::stats::Outlook;
use results::{Sample, Timeline};
use testbed::{Held, Host};

use crate::keeping::Keeping;
use crate::live::Live;
use crate::progress::Progress;
use crate::variation::Varied;

/// Applies the settings of a plan.
pub trait Vary {
    /// Restores the previous setting and applies the cell's.
    ///
    /// # Errors
    /// The reason why it cannot be applied. The sample is then void.
    fn set(&mut self, cell: &PlannedCell) -> Result<(), String>;

    /// Called after each sample.
    fn sampled(&mut self, _sample: &Sample) {}

    /// Restores the applied setting at the end of the run.
    ///
    /// # Errors
    /// The setting that could not be restored.
    fn finish(&mut self) -> anyhow::Result<()>;
}

/// A plan without settings.
pub struct Nothing;

impl Vary for Nothing {
    fn set(&mut self, _cell: &PlannedCell) -> Result<(), String> {
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Applies a cell's setting to the hosts of its testbed, and restores it before the next. Settings
/// of guests are part of their testbed, and need no change between samples.
pub struct InTestbeds<'a> {
    settings: &'a [Varied],
    hosts: Vec<&'a [Arc<Host>]>,
    /// The applied setting, with the indices of its subject and setting.
    applied: Option<((usize, usize), Held)>,
}

impl<'a> InTestbeds<'a> {
    /// `hosts` has the hosts of each subject.
    pub fn new(settings: &'a [Varied], hosts: Vec<&'a [Arc<Host>]>) -> InTestbeds<'a> {
        InTestbeds { settings, hosts, applied: None }
    }
}

impl Vary for InTestbeds<'_> {
    fn set(&mut self, cell: &PlannedCell) -> Result<(), String> {
        // Guest settings are part of their own testbed, so only host settings need a change.
        let of_hosts = |setting: &usize| matches!(self.settings[*setting], Varied::Hosts(_));
        let wanted = cell.setting.filter(of_hosts).map(|setting| (cell.subject, setting));
        // Consecutive samples of the same setting need no change.
        if self.applied.as_ref().map(|(which, _)| *which) == wanted {
            return Ok(());
        }
        // Restore first, because both settings may affect the same device.
        if let Some((_, applied)) = self.applied.take() {
            applied.restore().map_err(|error| format!("the setting was not restored: {error}"))?;
        }
        if let Some((subject, at)) = wanted
            && let Varied::Hosts(setting) = &self.settings[at]
        {
            let applied = setting.apply(self.hosts[subject]);
            let applied = applied.map_err(|e| format!("{setting}: {e}"))?;
            self.applied = Some(((subject, at), applied));
        }
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        match self.applied.take() {
            Some((_, applied)) => applied.restore().context("a varied setting was not restored"),
            // No setting was applied, so there is nothing to restore.
            None => Ok(()),
        }
    }
}

/// Executes a plan. If no timeline can be recorded, logs a warning and goes on without.
///
/// # Errors
/// A plan that cannot be started; a setting that could not be restored.
pub fn run(
    progress: &mut Progress,
    plan: &Plan,
    subjects: &[PathUnderTest],
    machine: &Machine,
    vary: &mut dyn Vary,
    keeping: &mut Keeping,
    stop: &AtomicBool,
) -> anyhow::Result<(Outcome, Option<Timeline>)> {
    let blocks =
        plan.stopping.half_width.map_or(plan.stopping.blocks, |_| plan.stopping.max_blocks);
    // The extra 100 ms are an estimate of the time between two samples, for the progress bar only.
    let sample = plan.duration + plan.warmup + Duration::from_millis(100);
    progress.measure(sample * plan.cells.len() as u32 * blocks);
    // The timeline only explains results: a run is valid without it.
    let recorder = Recorder::start(plan.impact.is_some())
        .inspect_err(|error| tracing::warn!("no timeline is recorded: {error}"))
        .ok();
    let live = progress.is_shown().then(|| Live::new(plan, subjects));
    let mut watching = Watching { progress, recorder, vary, keeping, live };
    let outcome = measure::run::run(plan, subjects, machine, &mut watching, stop);
    let Watching { recorder, vary, .. } = watching;
    let timeline = recorder.and_then(Recorder::finish);
    // Restore settings even if the run has failed, and report both errors only afterwards.
    let given_back = vary.finish();
    progress.finish();
    given_back?;
    Ok((outcome?, timeline))
}

struct Watching<'a> {
    progress: &'a mut Progress,
    recorder: Option<Recorder>,
    vary: &'a mut dyn Vary,
    keeping: &'a mut Keeping,
    /// Figures for a terminal.
    live: Option<Live>,
}

impl Observer for Watching<'_> {
    fn calibrating(&mut self, cell: CellRef<'_>) {
        self.progress.calibrating(cell.subject, cell.planned);
    }

    fn sampling(&mut self, cell: CellRef<'_>) {
        self.progress.sampling(cell.subject, cell.planned);
        if let Some(recorder) = &mut self.recorder {
            recorder.mark(cell.index);
        }
    }

    fn set(&mut self, cell: CellRef<'_>) -> Result<(), String> {
        self.progress.setting();
        self.vary.set(cell.planned)
    }

    fn sampled(&mut self, cell: CellRef<'_>, progress: observer::Progress, sample: &Sample) {
        // Only a log line: the results also contain void samples.
        if let Some(reason) = &sample.invalid_reason {
            let (mode, workload) = (&cell.subject.mode, cell.planned.ask.task);
            tracing::info!(mode, %workload, reason, "void sample");
        }
        if let Some(live) = &mut self.live {
            live.take(cell.index, sample);
        }
        self.progress.sampled(progress.done, progress.total);
        self.vary.sampled(sample);
        self.keeping.sample(cell.index, sample);
    }

    fn block_done(&mut self, outlook: Option<Outlook>) {
        self.progress.outlook(outlook);
        if let Some(live) = &self.live {
            self.progress.figures(&live.lines());
        }
    }

    fn resting(&mut self, rest: Duration) {
        self.progress.resting(rest);
    }
}
