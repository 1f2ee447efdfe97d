//! Carries out a plan, in one direction: the cells' loads (`calibrate`), random blocks of
//! samples (`blocks`) in an `order` that is the same for what is compared, a `judge` of what
//! else ran, ratios within each block (`ratios`), the decision to stop ([`StopRule`]), a
//! summary of each cell (`summary`).

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
use pacing::Pacing;
use results::stats::{StatsError, StopRule};
use results::{Background, Cell, EndedBy, Interval, Status, Tool};

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every block was done.
    Blocks,
    /// Every interval reached the goal.
    Confidence,
    /// More blocks would say nothing that matters of the change on trial.
    Decided,
    /// The goal was not reached in the blocks allowed.
    MaxBlocks,
    /// The goal would need many times the blocks allowed.
    OutOfReach,
    /// It was asked to stop.
    Interrupted,
    /// A server on another machine is gone and did not come back.
    Failed,
}

impl Ended {
    /// As the results file has it.
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

    /// Whether the run was carried out to its own end.
    pub fn is_complete(self) -> bool {
        !matches!(self, Ended::Interrupted | Ended::Failed)
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// The cells, in the plan's order.
    pub cells: Vec<Cell>,
    /// Number of blocks of which every cell was measured.
    pub blocks_done: u32,
    /// What ended the run: its length, its goal, Ctrl-C or a failure.
    pub ended: Ended,
    /// Numbers of blocks at which the goal was judged.
    pub looks: Vec<u32>,
    /// Things a reader must know before believing a figure.
    pub notes: Vec<String>,
    /// What else ran, and what it was judged by.
    pub background: Background,
    /// Mean time of a block, retaken samples included.
    pub block_time: Duration,
}

/// A plan that cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A sampler of a subject.
    #[error("{mode}: {error}")]
    Probe {
        /// Mode of the path whose sampler failed.
        mode: String,
        /// Sampler that could not be opened, and how it failed.
        error: Box<ProbeError>,
    },
    /// The plan's stopping rule is not valid.
    #[error(transparent)]
    Stopping(#[from] StatsError),
}

/// Carries out a plan. A cell that fails is in the outcome with its reason;
/// the others go on. `stop` ends it between two system calls.
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
    let pacing = plan.impact.map(|impact| Pacing::new(impact, subjects, plan.duration));
    let mut judge = Judge::new(plan.rule, &plan.before, peer_load(subjects));
    let (offers, blocked) = match calibrate::offers(plan, subjects, observer, &mut trial) {
        // Stopped before the loads were known: no block is begun.
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
            blocked.notes.extend(source.pacing.as_ref().and_then(Pacing::said));
            (offers, blocked)
        }
    };
    let background = judge.record();
    Ok(summarised(plan, subjects, &offers, log, &rule, blocked, background))
}

/// Busy share of the server's machine before the run, where it is another.
fn peer_load(subjects: &[PathUnderTest]) -> Option<f64> {
    let mut remotes = subjects.iter().filter_map(PathUnderTest::remote);
    remotes.find(|remote| !remote.is_same_machine()).map(|remote| remote.idle_load())
}

/// The samplers of each subject, opened once for the whole run.
fn open_probes(subjects: &[PathUnderTest]) -> Result<Vec<Probes>, RunError> {
    let drops = Drops::open().map(Arc::new);
    if let Err(reason) = &drops {
        tracing::debug!(reason, "drops are attributed by counters only");
    }
    let open = |subject: &PathUnderTest| {
        let probes = Probes::open(&subject.places)?.with_programs(&subject.hops);
        match &drops {
            Ok(drops) => probes.with_drops(Arc::clone(drops)),
            Err(_) => Ok(probes),
        }
    };
    let named = |subject: &PathUnderTest| {
        open(subject)
            .map_err(|error| RunError::Probe { mode: subject.mode.clone(), error: Box::new(error) })
    };
    subjects.iter().map(named).collect()
}

/// Why a cell is not measured at all.
fn unsupported(cell: &PlannedCell, subject: &PathUnderTest) -> Option<String> {
    match cell.ask.engine {
        Engine::Overlane => None,
        Engine::Tool(tool) => match subject.server {
            ServerEnd::Here { target, listen, .. } => {
                driver::can(tool, &cell.ask, target, listen).err()
            }
            ServerEnd::Away(_) => Some("driven in the lab only: its server is not here".to_owned()),
            ServerEnd::Guests(_) => Some("not in the guests, which hold overlane only".to_owned()),
        },
    }
}

/// From what was logged of the cells to what the results have.
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
    // Too few ratios make no interval; those of a cell that settled have that of its look.
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
        let mut cell = summary::cell(plan, subject, planned, offered, samples, settled, &interval);
        cell.tool = said.tool.map(|(version, command)| Tool {
            version,
            command,
            figures: summary::tool_figures(&cell.samples),
            ratio: against_built_in[at],
        });
        if let Some(reason) = log.unsupported[at].take() {
            cell.status = Status::Unsupported;
            cell.reason = Some(reason);
        }
        for note in said.notes {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        cells.push(cell);
    }
    let looks = rule.looks();
    Outcome { cells, blocks_done, ended, looks, notes, background, block_time }
}
