//! Carries out a plan: random blocks, every cell once a block, ratios within
//! the block, intervals over the blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::calibrate::{self, Offer};
use crate::driver;
use crate::engine::Load;
use crate::plan::{Ask, Engine, Plan, PlannedCell};
use crate::remote::Remote;
use crate::results::{Cell, Interval, Role, Sample, Status, Tool};
use crate::sample::{self, Said, Taken, Taker};
use crate::sampler::{Drops, Machine};
use crate::stats::{SequentialPlan, StatsError, block_order, median, trend};
use crate::subject::{ProbeError, Probes, ServerEnd, Subject};
use crate::summary;

/// Told how a run gets on, on the thread that runs it.
pub trait Observer {
    /// A sample was taken (valid or not): how many are done, of how many.
    fn sampled(
        &mut self,
        done: u64,
        total: u64,
        subject: &Subject,
        cell: &PlannedCell,
        sample: &Sample,
    );
    /// A cell is about to be measured.
    fn sampling(&mut self, subject: &Subject, cell: &PlannedCell);
    /// The maximum that a cell's load is taken of is about to be measured.
    fn calibrating(&mut self, _subject: &Subject, _cell: &PlannedCell) {}

    /// Puts the cell's setting in effect, and takes back the last one's.
    ///
    /// # Errors
    /// Why it cannot be had: the sample is void.
    fn set(&mut self, _subject: &Subject, _cell: &PlannedCell) -> Result<(), String> {
        Ok(())
    }
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every block was done.
    Blocks,
    /// Every interval reached the goal.
    Confidence,
    /// The goal was not reached in the blocks allowed.
    MaxBlocks,
    /// It was asked to stop.
    Interrupted,
    /// A server on another machine is gone and did not come back.
    Failed,
}

impl Ended {
    /// As the results file has it.
    pub fn name(self) -> &'static str {
        match self {
            Ended::Blocks => "blocks",
            Ended::Confidence => "confidence",
            Ended::MaxBlocks => "max_blocks",
            Ended::Interrupted => "interrupted",
            Ended::Failed => "failed",
        }
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// The cells, in the plan's order.
    pub cells: Vec<Cell>,
    /// Whole blocks done.
    pub blocks_done: u32,
    /// Why it ended.
    pub ended: Ended,
    /// Block counts at which the goal was looked at.
    pub looks: Vec<u32>,
    /// Things a reader must know before believing a figure.
    pub notes: Vec<String>,
}

/// A plan that cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A sampler of a subject.
    #[error("{mode}: {error}")]
    Probe {
        /// The subject's mode.
        mode: String,
        /// Why.
        error: Box<ProbeError>,
    },
    /// The stopping rule.
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
    subjects: &[Subject],
    machine: &Machine,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Outcome, RunError> {
    let drops = Drops::open().map(Arc::new);
    if let Err(reason) = &drops {
        tracing::debug!(reason, "drops are attributed by counters only");
    }
    let probes = subjects
        .iter()
        .map(|subject| {
            let open = || {
                let probes = Probes::open(&subject.places)?.with_programs(&subject.hops);
                match &drops {
                    Ok(drops) => probes.with_drops(Arc::clone(drops)),
                    Err(_) => Ok(probes),
                }
            };
            open().map_err(|error| RunError::Probe {
                mode: subject.mode.clone(),
                error: Box::new(error),
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let looks = Looks::new(plan)?;
    let cannot: Vec<Option<String>> =
        plan.cells.iter().map(|cell| unsupported(cell, &subjects[cell.subject])).collect();
    let mut said = vec![Said::default(); plan.cells.len()];
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); plan.cells.len()];
    let mut done = 0;
    let mut ended = looks.after_all();
    let mut blocks_done = 0;
    let mut trial = |subject: &Subject, load: &Load| calibrate::rate(load, subject.between(), stop);
    let offers = calibrate::offers(plan, subjects, observer, &mut trial);
    let most_blocks = match &offers {
        Some(_) => looks.most_blocks(),
        None => {
            ended = Ended::Interrupted;
            0
        }
    };
    let offers =
        offers.unwrap_or_else(|| plan.cells.iter().map(|cell| Offer::stopped(&cell.ask)).collect());
    'blocks: for block in 0..most_blocks {
        for (position, at) in
            block_order(plan.seed, block, plan.cells.len()).into_iter().enumerate()
        {
            done += 1;
            if cannot[at].is_some() || hopeless(&samples[at], plan) {
                continue;
            }
            let cell = &plan.cells[at];
            let subject = &subjects[cell.subject];
            observer.sampling(subject, cell);
            let mut take = || {
                if stop.load(Ordering::Relaxed) {
                    return Taken::Stopped;
                }
                if let Err(reason) = observer.set(subject, cell) {
                    return Taken::Sample(Box::new(sample::void(reason)));
                }
                let mut taker = Taker {
                    plan,
                    engine: cell.ask.engine,
                    subject,
                    probes: &probes[cell.subject],
                    machine,
                    said: &mut said[at],
                    stop,
                };
                sample::take(&mut taker, cell, &offers[at])
            };
            let mut taken = take();
            // A disturbed sample says nothing about the path: once more.
            if matches!(&taken, Taken::Sample(sample) if !sample.valid && sample.path_proved) {
                taken = take();
            }
            let Taken::Sample(mut sample) = taken else {
                ended = Ended::Interrupted;
                break 'blocks;
            };
            sample.block = block;
            sample.position = position as u32;
            let total = u64::from(looks.most_blocks()) * plan.cells.len() as u64;
            observer.sampled(done, total, subject, cell, &sample);
            samples[at].push(*sample);
            if subject.remote().is_some_and(Remote::is_given_up) {
                // Every later sample would say the same.
                ended = Ended::Failed;
                break 'blocks;
            }
        }
        blocks_done = block + 1;
        fill_ratios(plan, &mut samples);
        if looks.reached(blocks_done, &samples) {
            ended = Ended::Confidence;
            break;
        }
    }
    fill_ratios(plan, &mut samples);
    let interval = |ratios: &[f64]| looks.interval(blocks_done, ratios).ok();
    let against: Vec<Option<Interval>> =
        (0..plan.cells.len()).map(|at| interval(&against_built_in(plan, &samples, at))).collect();
    let mut notes: Vec<String> = Vec::new();
    let mut cells = Vec::new();
    for (at, (cell, samples)) in plan.cells.iter().zip(samples).enumerate() {
        let subject = &subjects[cell.subject];
        let mut entry =
            summary::cell(plan, subject, cell, offers[at].offered(), samples, &interval);
        entry.tool = said[at].tool.take().map(|(version, command)| Tool {
            version,
            command,
            figures: summary::tool_figures(&entry.samples),
            ratio: against[at],
        });
        if let Some(reason) = &cannot[at] {
            entry.status = Status::Unsupported;
            entry.reason = Some(reason.clone());
        }
        for note in std::mem::take(&mut said[at].notes) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        cells.push(entry);
    }
    Ok(Outcome { cells, blocks_done, ended, looks: looks.counts(), notes })
}

/// Why a cell is not measured at all.
fn unsupported(cell: &PlannedCell, subject: &Subject) -> Option<String> {
    match cell.ask.engine {
        Engine::Overlane => None,
        Engine::Tool(tool) => match subject.server {
            ServerEnd::Here { target, listen, .. } => {
                driver::can(tool, &cell.ask, target, listen).err()
            }
            ServerEnd::Away(_) => Some("driven in the lab only: its server is not here".to_owned()),
        },
    }
}

/// A tool's values over those of the built-in engine, of the same path and ask
/// in the same block; none where the run has no such cell.
fn against_built_in(plan: &Plan, samples: &[Vec<Sample>], at: usize) -> Vec<f64> {
    let cell = &plan.cells[at];
    let twin = |other: &PlannedCell| {
        let ask = Ask { engine: Engine::Overlane, ..cell.ask };
        (other.subject, other.role, other.setting, other.ask)
            == (cell.subject, cell.role, cell.setting, ask)
    };
    let Some(twin) = plan.cells.iter().position(twin).filter(|twin| *twin != at) else {
        return Vec::new();
    };
    let valid = |sample: &&Sample| sample.valid;
    samples[at]
        .iter()
        .filter(valid)
        .filter_map(|own| {
            let other = samples[twin].iter().filter(valid).find(|s| s.block == own.block)?;
            quotient(own.value, other.value)
        })
        .collect()
}

fn hopeless(samples: &[Sample], plan: &Plan) -> bool {
    // Disturbance passes; a broken path does not.
    samples.len() >= plan.hopeless_after && samples.iter().all(|sample| !sample.path_proved)
}

/// Fills every sample's ratio to the baseline's sample of the same block.
fn fill_ratios(plan: &Plan, samples: &mut [Vec<Sample>]) {
    for (at, cell) in plan.cells.iter().enumerate() {
        if cell.role == Role::Baseline {
            continue;
        }
        let (mut own, baseline) = (std::mem::take(&mut samples[at]), &samples[cell.baseline]);
        for sample in own.iter_mut().filter(|sample| sample.valid) {
            let reference =
                baseline.iter().find(|other| other.block == sample.block && other.valid);
            let Some(reference) = reference else { continue };
            sample.ratio = quotient(sample.value, reference.value);
            sample.service_demand_ratio = sample
                .service_demand
                .zip(reference.service_demand)
                .and_then(|(own, reference)| quotient(own, reference));
        }
        samples[at] = own;
    }
}

/// `None` where either is not a positive number: no ratio can be taken to a
/// baseline that moved nothing.
fn quotient(value: f64, reference: f64) -> Option<f64> {
    let ratio = value / reference;
    (value > 0.0 && reference > 0.0 && ratio.is_finite()).then_some(ratio)
}

/// The stopping rule: a number of blocks, or looks at the goal.
enum Looks {
    Blocks { blocks: u32, level: f64 },
    Goal { sequential: SequentialPlan, half_width: f64 },
}

impl Looks {
    fn new(plan: &Plan) -> Result<Looks, StatsError> {
        let stopping = &plan.stopping;
        Ok(match stopping.half_width {
            None => Looks::Blocks { blocks: stopping.blocks, level: stopping.level },
            Some(half_width) => Looks::Goal {
                sequential: SequentialPlan::new(stopping.level, 2, stopping.max_blocks)?,
                half_width,
            },
        })
    }

    fn most_blocks(&self) -> u32 {
        match self {
            Looks::Blocks { blocks, .. } => *blocks,
            Looks::Goal { sequential, .. } => {
                sequential.looks().last().map_or(0, |look| look.blocks)
            }
        }
    }

    fn after_all(&self) -> Ended {
        match self {
            Looks::Blocks { .. } => Ended::Blocks,
            Looks::Goal { .. } => Ended::MaxBlocks,
        }
    }

    fn counts(&self) -> Vec<u32> {
        match self {
            Looks::Blocks { .. } => Vec::new(),
            Looks::Goal { sequential, .. } => {
                sequential.looks().iter().map(|look| look.blocks).collect()
            }
        }
    }

    fn interval(&self, blocks: u32, ratios: &[f64]) -> Result<Interval, StatsError> {
        match self {
            Looks::Blocks { level, .. } => crate::stats::ratio_interval(ratios, *level),
            Looks::Goal { sequential, .. } => sequential.interval(blocks, ratios),
        }
    }

    /// Whether every cell's interval is within the goal, and this is a look.
    fn reached(&self, blocks: u32, samples: &[Vec<Sample>]) -> bool {
        let Looks::Goal { sequential, half_width } = self else { return false };
        if sequential.at_look(blocks).is_none() {
            return false;
        }
        let mut intervals = Vec::new();
        for samples in samples {
            let ratios: Vec<f64> = samples.iter().filter_map(|sample| sample.ratio).collect();
            // The baseline has no ratios, and a failed cell never will.
            if ratios.is_empty() {
                continue;
            }
            match sequential.interval(blocks, &ratios) {
                Ok(interval) => intervals.push(interval),
                Err(_) => return false,
            }
        }
        let last = sequential.looks().last().is_some_and(|look| look.blocks == blocks);
        let narrow =
            |interval: &Interval| crate::stats::relative_half_width(interval) <= *half_width;
        if last {
            !intervals.is_empty() && intervals.iter().all(narrow)
        } else {
            sequential.stops(blocks, &intervals, *half_width)
        }
    }
}

/// The samples' drift over the run in words, when there is one. Ratios are
/// judged where there are some: drift common to both ends of a ratio is not
/// the cell's.
pub(crate) fn drift(samples: &[Sample], role: Role) -> Option<String> {
    let values: Vec<f64> = samples
        .iter()
        .filter(|sample| sample.valid)
        .filter_map(|sample| if role == Role::Baseline { Some(sample.value) } else { sample.ratio })
        .collect();
    let found = trend(&values).ok()?;
    found.is_significant().then(|| {
        let of = if role == Role::Baseline { "value" } else { "ratio" };
        format!("{of}: {found}")
    })
}

/// Median over the valid samples of one figure each.
pub(crate) fn median_of(
    samples: &[Sample],
    figure: impl Fn(&Sample) -> Option<f64>,
) -> Option<f64> {
    let values: Vec<f64> = samples.iter().filter(|s| s.valid).filter_map(figure).collect();
    median(&values)
}

/// Why a cell has no valid sample: the reason met most often.
pub(crate) fn failure(samples: &[Sample]) -> (Status, Option<String>) {
    if samples.iter().any(|sample| sample.valid) {
        return (Status::Ok, None);
    }
    let mut reasons: Vec<(usize, &str)> = Vec::new();
    for reason in samples.iter().filter_map(|sample| sample.invalid_reason.as_deref()) {
        match reasons.iter_mut().find(|(_, known)| *known == reason) {
            Some((count, _)) => *count += 1,
            None => reasons.push((1, reason)),
        }
    }
    let most = reasons.iter().max_by_key(|(count, _)| *count);
    let reason = most.map_or("no sample was taken", |(_, reason)| reason);
    (Status::Failed, Some(reason.to_owned()))
}
