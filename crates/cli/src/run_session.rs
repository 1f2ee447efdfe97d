//! A run, and what goes on beside its samples: the progress bar, the time
//! line, and the setting that is varied.

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

use crate::progress::Progress;
use crate::variation::Varied;

/// What puts the settings of a plan in effect.
pub trait Vary {
    /// Puts the cell's setting in effect, and takes back the last one's.
    ///
    /// # Errors
    /// Why it cannot be had: the sample is void.
    fn set(&mut self, cell: &PlannedCell) -> Result<(), String>;

    /// A sample was taken.
    fn sampled(&mut self, _sample: &Sample) {}

    /// Takes back what is in effect, at the end of the run.
    ///
    /// # Errors
    /// What could not be given back.
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

/// Applies a cell's setting to the hosts of its testbed, and restores it before another. What
/// guests were started with is in effect for as long as their testbed stands.
pub struct InTestbeds<'a> {
    settings: &'a [Varied],
    /// The hosts of each subject.
    hosts: Vec<&'a [Arc<Host>]>,
    /// PathUnderTest and setting in effect.
    applied: Option<((usize, usize), Held)>,
}

impl<'a> InTestbeds<'a> {
    /// `hosts` are those of each subject.
    pub fn new(settings: &'a [Varied], hosts: Vec<&'a [Arc<Host>]>) -> InTestbeds<'a> {
        InTestbeds { settings, hosts, applied: None }
    }
}

impl Vary for InTestbeds<'_> {
    fn set(&mut self, cell: &PlannedCell) -> Result<(), String> {
        let of_hosts = |setting: &usize| matches!(self.settings[*setting], Varied::Hosts(_));
        let wanted = cell.setting.filter(of_hosts).map(|setting| (cell.subject, setting));
        if self.applied.as_ref().map(|(which, _)| *which) == wanted {
            return Ok(());
        }
        if let Some((_, applied)) = self.applied.take() {
            applied
                .restore()
                .map_err(|error| format!("the setting was not given back: {error}"))?;
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
            Some((_, applied)) => applied.restore().context("a varied setting was not given back"),
            None => Ok(()),
        }
    }
}

/// Carries out a plan. A time line that cannot be kept is left out, with a word in the log.
///
/// # Errors
/// A plan that cannot be begun; a setting that could not be given back.
pub fn run(
    progress: &mut Progress,
    plan: &Plan,
    subjects: &[PathUnderTest],
    machine: &Machine,
    vary: &mut dyn Vary,
    stop: &AtomicBool,
) -> anyhow::Result<(Outcome, Option<Timeline>)> {
    let blocks =
        plan.stopping.half_width.map_or(plan.stopping.blocks, |_| plan.stopping.max_blocks);
    let sample = plan.duration + plan.warmup + Duration::from_millis(100);
    progress.measure(sample * plan.cells.len() as u32 * blocks);
    let recorder = Recorder::start(plan.impact.is_some())
        .inspect_err(|error| tracing::warn!("no time line is kept: {error}"))
        .ok();
    let mut watching = Watching { progress, recorder, vary };
    let outcome = measure::run::run(plan, subjects, machine, &mut watching, stop);
    let Watching { recorder, vary, .. } = watching;
    let timeline = recorder.and_then(Recorder::finish);
    let given_back = vary.finish();
    progress.finish();
    given_back?;
    Ok((outcome?, timeline))
}

struct Watching<'a> {
    progress: &'a mut Progress,
    recorder: Option<Recorder>,
    vary: &'a mut dyn Vary,
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
        if let Some(reason) = &sample.invalid_reason {
            let (mode, workload) = (&cell.subject.mode, cell.planned.ask.task);
            tracing::info!(mode, %workload, reason, "void sample");
        }
        self.progress.sampled(progress.done, progress.total);
        self.vary.sampled(sample);
    }

    fn block_done(&mut self, outlook: Option<Outlook>) {
        self.progress.outlook(outlook);
    }

    fn resting(&mut self, rest: Duration) {
        self.progress.resting(rest);
    }
}
