//! Runs a plan: the cells' loads (`calibrate`), random blocks of samples (`blocks`) in an `order`
//! that is fair to compared cells, a `judge` of other load, ratios within each block (`ratios`),
//! the decision to stop ([`StopRule`]), and a summary of each cell (`summary`).

mod blocks;
mod judge;
mod order;
mod outlook;
mod pacing;
#[cfg(test)]
mod simulated;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::calibrate::{self, Offer};
use crate::observer::Observer;
use crate::path_under_test::{PathUnderTest, ServerEnd};
use crate::plan::{Plan, PlannedCell};
use crate::probes::{ProbeError, Probes};
use crate::ratios;
use crate::sampler::{Drops, Machine};
use crate::summary;
use blocks::{Blocked, Blocks, CellLog, Paths};
use judge::Judge;
use load::Load;
use load::ask::Engine;
use load::driver;
use pacing::RestPacing;
use results::stats::{StatsError, StopRule};
use results::{Background, Cell, EndedBy, Interval, Status, Tool};

/// Reason why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every block was done.
    Blocks,
    /// Every interval reached the goal.
    Confidence,
    /// More blocks would not change the verdict on the change under test.
    Decided,
    /// The goal was not reached within the maximum number of blocks.
    MaxBlocks,
    /// The goal would take many times the maximum number of blocks.
    OutOfReach,
    /// It was asked to stop.
    Interrupted,
    /// A server on another machine was lost and did not come back.
    Failed,
}

impl Ended {
    /// Returns the name in the results file.
    pub fn by(self) -> EndedBy {
        match self {
            Ended::Blocks => EndedBy::Blocks,
            Ended::Confidence => EndedBy::Confidence,
            Ended::Decided => EndedBy::Decided,
            Ended::MaxBlocks => EndedBy::MaxBlocks,
            Ended::OutOfReach => EndedBy::OutOfReach,
            Ended::Interrupted => EndedBy::Interrupted,
            Ended::Failed => EndedBy::Failed,
        }
    }

    /// Whether the run reached its planned end.
    pub fn is_complete(self) -> bool {
        !matches!(self, Ended::Interrupted | Ended::Failed)
    }
}

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The cells, in the plan's order.
    pub cells: Vec<Cell>,
    /// Number of complete blocks.
    pub blocks_done: u32,
    /// Reason of the end: length, goal, Ctrl-C or a failure.
    pub ended: Ended,
    /// Block numbers of the interim analyses.
    pub interim_analyses: Vec<u32>,
    /// Remarks that qualify the figures.
    pub notes: Vec<String>,
    /// Other load, and the rule that judged it.
    pub background: Background,
    /// Mean duration of a block, retaken samples included.
    pub block_time: Duration,
}

/// Reason why a plan cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A sampler of a subject failed.
    #[error("{mode}: {error}")]
    Probe {
        /// Mode of the path.
        mode: String,
        /// Sampler and error.
        error: Box<ProbeError>,
    },
    /// The plan's stopping rule is not valid.
    #[error(transparent)]
    Stopping(#[from] StatsError),
}

/// Runs a plan. A failed cell is in the outcome with its reason; the others go on. `stop` ends the
/// run between two system calls.
///
/// # Errors
/// [`RunError`] before the first sample.
pub fn run(
    plan: &Plan,
    subjects: &[PathUnderTest],
    machine: &Machine,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Outcome, RunError> {
    let probes = open_probes(subjects)?;
    let rule = plan.stopping.rule()?;
    let mut trial =
        |subject: &PathUnderTest, load: &Load| calibrate::rate(load, subject.between(), stop);
    let mut log = CellLog::for_each(plan, subjects);
    let pacing = plan.impact.map(|impact| RestPacing::new(impact, subjects, plan.duration));
    let mut judge = Judge::new(plan.rule, &plan.before, peer_load(subjects));
    let (offers, mut blocked) = match calibrate::offers(plan, subjects, observer, &mut trial) {
        // Stopped before the loads were known: run no block.
        None => {
            let stopped = plan.cells.iter().map(|cell| Offer::stopped(&cell.ask)).collect();
            (stopped, Blocked::stopped())
        }
        Some(offers) => {
            let probes = probes.as_slice();
            let mut source = Paths { plan, machine, probes, offers: &offers, pacing, stop };
            let mut blocks = Blocks {
                plan,
                subjects,
                stop,
                source: &mut source,
                judge: &mut judge,
                log: &mut log,
                observer,
            };
            let mut blocked = blocks.take(&rule);
            blocked.notes.extend(source.pacing.as_ref().and_then(RestPacing::said));
            (offers, blocked)
        }
    };
    let background = judge.record();
    blocked.notes.extend(crate::reported::note(plan, subjects));
    Ok(summarised(plan, subjects, &offers, log, &rule, blocked, background))
}

/// Returns the outcome before the first block, which has no samples yet.
pub fn not_begun(plan: &Plan, subjects: &[PathUnderTest]) -> Outcome {
    let empty = |planned: &PlannedCell| {
        let offered = Offer::stopped(&planned.ask).offered();
        summary::empty(plan, &subjects[planned.subject], planned, offered)
    };
    Outcome {
        cells: plan.cells.iter().map(empty).collect(),
        blocks_done: 0,
        ended: Ended::Interrupted,
        interim_analyses: Vec::new(),
        notes: Vec::new(),
        background: Judge::new(plan.rule, &plan.before, peer_load(subjects)).record(),
        block_time: Duration::ZERO,
    }
}

/// Returns the busy share of the server's machine before the run, if it is another one.
fn peer_load(subjects: &[PathUnderTest]) -> Option<f64> {
    let mut remotes = subjects.iter().filter_map(PathUnderTest::remote);
    remotes.find(|remote| !remote.is_same_machine()).map(|remote| remote.idle_load())
}

/// Opens the samplers of each subject, once for the whole run.
fn open_probes(subjects: &[PathUnderTest]) -> Result<Vec<Probes>, RunError> {
    let drops = Drops::open().map(Arc::new);
    if let Err(reason) = &drops {
        tracing::debug!(reason, "drops are attributed by counters only");
    }
    let open = |subject: &PathUnderTest| {
        let probes = Probes::open(&subject.places)?.with_programs(&subject.hops);
        match &drops {
            Ok(drops) => probes.with_drops(Arc::clone(drops)),
            // Without BPF, counters alone attribute losses.
            Err(_) => Ok(probes),
        }
    };
    let named = |subject: &PathUnderTest| {
        open(subject)
            .map_err(|error| RunError::Probe { mode: subject.mode.clone(), error: Box::new(error) })
    };
    subjects.iter().map(named).collect()
}

/// Returns the reason if a cell cannot be measured at all.
fn unsupported(cell: &PlannedCell, subject: &PathUnderTest) -> Option<String> {
    if let Some(damage) = &subject.damage {
        return Some(format!("not measured: a probe found a fault of the path: {damage}"));
    }
    match cell.ask.engine {
        Engine::Overlane => None,
        Engine::Tool(tool) => match subject.server {
            ServerEnd::Here { target, listen, .. } => {
                driver::can(tool, &cell.ask, target, listen).err()
            }
            ServerEnd::Away(_) => {
                Some("external tools run in the lab only: the server is not local".to_owned())
            }
            ServerEnd::Guests(_) => {
                Some("guests contain overlane only, no external tools".to_owned())
            }
        },
    }
}

/// Converts the log of the cells to the outcome.
fn summarised(
    plan: &Plan,
    subjects: &[PathUnderTest],
    offers: &[Offer],
    mut log: CellLog,
    rule: &StopRule,
    blocked: Blocked,
    background: Background,
) -> Outcome {
    let Blocked { done: blocks_done, ended, block_time, .. } = blocked;
    ratios::fill(plan, &mut log.samples);
    // Too few ratios give no interval. A settled cell keeps the interval of its interim
    // analysis.
    let interval = |settled: Option<u32>, ratios: &[f64]| {
        rule.interval(settled.unwrap_or(blocks_done), ratios).ok()
    };
    let against_built_in: Vec<Option<Interval>> = (0..plan.cells.len())
        .map(|at| interval(log.settled[at], &ratios::against_built_in(plan, &log.samples, at)))
        .collect();
    let mut notes = outlook::notes(plan, &blocked, &background, &log.settled);
    let mut cells = Vec::with_capacity(plan.cells.len());
    for (at, planned) in plan.cells.iter().enumerate() {
        let samples = std::mem::take(&mut log.samples[at]);
        let said = std::mem::take(&mut log.said[at]);
        let subject = &subjects[planned.subject];
        let offered = offers[at].offered();
        let settled = log.settled[at];
        let interval = |ratios: &[f64]| interval(settled, ratios);
        let empty = summary::empty(plan, subject, planned, offered);
        let mut cell = summary::filled(empty, samples, settled, &interval);
        cell.tool = said.tool.map(|(version, command)| Tool {
            version,
            command,
            figures: summary::tool_figures(&cell.samples),
            ratio: against_built_in[at],
        });
        if let Some(reason) = log.unsupported[at].take() {
            // The mode itself is supported.
            cell.status = match subject.damage {
                Some(_) => Status::Failed,
                None => Status::Unsupported,
            };
            cell.reason = Some(reason);
        }
        for note in said.notes {
            // Many cells produce the same note.
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        cells.push(cell);
    }
    let interim_analyses = rule.interim_analyses();
    Outcome { cells, blocks_done, ended, interim_analyses, notes, background, block_time }
}
