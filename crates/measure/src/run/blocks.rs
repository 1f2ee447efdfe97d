//! Blocks of a run: every cell once, in random order, until the stop rule ends the run.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::poll::poll;

use super::judge::Judge;
use super::pacing::{RestPacing, Took};
use super::{Ended, order, unsupported};
use crate::calibrate::Offer;
use crate::in_force::InForce;
use crate::observer::{CellRef, Observer, Progress};
use crate::path_under_test::PathUnderTest;
use crate::plan::{Plan, PlannedCell};
use crate::probes::Probes;
use crate::ratios;
use crate::remote::Remote;
use crate::sample::{self, Said, Taken, Taker};
use crate::sampler::Machine;
use results::stats::{Decision, Outlook, Series, StopRule};
use results::{CpuSeconds, Sample, Unit};

/// Interval at which a rest checks the stop flag. On a busy machine each check takes CPU time from
/// other programs. A signal to this thread triggers a check at once.
const STOP_LOOK: Duration = Duration::from_millis(500);
/// Time before the end of a rest at which the next cell's setting is applied, so that other
/// programs can catch up with that burst of work before the sample begins.
const SETTLE: Duration = Duration::from_secs(1);
/// Reason of a void sample that was retaken.
const UNLIKE: &str = "retaken: other load differed from that of the block's other cells";

/// Log of a run's cells, in the plan's order.
pub(super) struct CellLog {
    /// Samples, void ones included.
    pub samples: Vec<Vec<Sample>>,
    /// Notes about them.
    pub said: Vec<Said>,
    /// Reason why a cell is not measured at all.
    pub unsupported: Vec<Option<String>>,
    /// Number of blocks after which a cell took no more samples.
    pub settled: Vec<Option<u32>>,
}

impl CellLog {
    /// Creates the log before the first block.
    pub fn for_each(plan: &Plan, subjects: &[PathUnderTest]) -> CellLog {
        let unsupported = |cell: &PlannedCell| unsupported(cell, &subjects[cell.subject]);
        CellLog {
            samples: vec![Vec::new(); plan.cells.len()],
            said: vec![Said::default(); plan.cells.len()],
            unsupported: plan.cells.iter().map(unsupported).collect(),
            settled: vec![None; plan.cells.len()],
        }
    }

    /// Returns whether a cell is measured in the next block.
    fn takes_samples(&self, at: usize, plan: &Plan) -> bool {
        self.unsupported[at].is_none() && self.settled[at].is_none() && !self.is_hopeless(at, plan)
    }

    /// Returns whether another sample of a cell is useless. Disturbance passes, a broken path does
    /// not.
    fn is_hopeless(&self, at: usize, plan: &Plan) -> bool {
        let telling = |sample: &&Sample| sample.path_proved || !carried_nothing(sample);
        let mut samples = self.samples[at].iter().filter(telling);
        samples.clone().count() >= plan.hopeless_after && samples.all(|sample| !sample.path_proved)
    }

    /// Returns the input of the stop rule.
    fn series(&self, plan: &Plan) -> Vec<Series> {
        let of =
            |((samples, cell), settled): ((&Vec<Sample>, &PlannedCell), &Option<u32>)| Series {
                ratios: samples.iter().filter_map(|sample| sample.ratio).collect(),
                demand: samples.iter().filter_map(|sample| sample.service_demand_ratio).collect(),
                on_trial: cell.setting.is_some(),
                less_is_better: cell.ask.unit() == Unit::Microseconds,
                settled: *settled,
            };
        self.samples.iter().zip(&plan.cells).zip(&self.settled).map(of).collect()
    }

    /// Stops sampling groups, baselines included, in which every cell with the change under test is
    /// settled after `blocks` blocks. Returns whether there is a new one.
    fn settle(
        &mut self,
        blocks: u32,
        groups: &[Vec<usize>],
        cells: &[Series],
        now: &[bool],
    ) -> bool {
        let mut new = false;
        for group in groups {
            let tried = || group.iter().filter(|at| cells[**at].on_trial);
            let is_open = self.settled[group[0]].is_none();
            if is_open && tried().next().is_some() && tried().all(|at| now[*at]) {
                group.iter().for_each(|at| self.settled[*at] = Some(blocks));
                new = true;
            }
        }
        new
    }

    /// Returns a cell's counted sample of a block.
    fn counted(&self, at: usize, block: u32) -> Option<&Sample> {
        self.samples[at].iter().find(|sample| sample.valid && sample.block == block)
    }
}

/// Source of samples: the paths or, in tests, a simulated machine.
pub(super) trait Source {
    /// Takes one sample of a cell whose setting is in effect.
    fn sample(&mut self, cell: CellRef<'_>, in_force: InForce, said: &mut Said) -> Taken;

    /// Returns the rest before the next sample.
    fn rest(&self) -> Duration {
        Duration::ZERO
    }
}

/// Samples of the plan's paths.
pub(super) struct Paths<'a> {
    pub plan: &'a Plan,
    pub machine: &'a Machine,
    /// Probes of each subject, by its index.
    pub probes: &'a [Probes],
    /// Offer for each cell, by its index.
    pub offers: &'a [Offer],
    /// Enforces [`Plan::impact`].
    pub pacing: Option<RestPacing>,
    pub stop: &'a AtomicBool,
}

impl Source for Paths<'_> {
    fn sample(&mut self, cell: CellRef<'_>, in_force: InForce, said: &mut Said) -> Taken {
        let mut taker = Taker {
            plan: self.plan,
            engine: cell.planned.ask.engine,
            subject: cell.subject,
            probes: &self.probes[cell.planned.subject],
            machine: self.machine,
            said,
            in_force,
            rest: self.pacing.as_ref().map_or(Duration::ZERO, RestPacing::between),
            stop: self.stop,
        };
        let Some(pacing) = &mut self.pacing else {
            return sample::take(&mut taker, cell.planned, &self.offers[cell.index]);
        };
        let remote = cell.subject.remote();
        let begun = pacing.begin(remote);
        let taken = sample::take(&mut taker, cell.planned, &self.offers[cell.index]);
        if let Taken::Sample(sample) = &taken {
            let pulse = (self.plan.warmup + self.plan.duration).as_secs_f64();
            let client = cell.subject.ends()[0];
            // Use the current values: other load changes during a run.
            let others = Others {
                here: pacing.others().unwrap_or(self.plan.idle_load),
                there: remote
                    .map_or(0.0, |remote| pacing.others_at(remote).unwrap_or(remote.idle_load())),
            };
            pacing.end(&begun, &took(sample, client, others, pulse), remote);
        }
        taken
    }

    fn rest(&self) -> Duration {
        self.pacing.as_ref().map_or(Duration::ZERO, RestPacing::left)
    }
}

/// CPU time of other programs, as a part of all CPUs, 0..1, on this machine and the server's.
#[derive(Debug, Clone, Copy)]
struct Others {
    here: f64,
    there: f64,
}

/// Extrapolates the load of a pulse of this many seconds from its measured part.
fn took(sample: &Sample, client: &str, others: Others, pulse: f64) -> Took {
    // A broken sample has no measured part; only this process's own CPU time is known.
    let whole = if sample.seconds > 0.0 { (pulse / sample.seconds).max(1.0) } else { 0.0 };
    let beyond = |cpu: &CpuSeconds, others: f64| {
        let CpuSeconds { user, system, softirq, irq, idle, steal } = cpu;
        let busy = user + system + softirq + irq;
        (busy - others * (busy + idle + steal)) * whole
    };
    let measured = |seconds| (sample.seconds > 0.0).then_some(seconds);
    let hops = || sample.hops.iter().filter(|hop| hop.host == client);
    Took {
        kernel_s: (sample.cpu.softirq + sample.cpu.irq) * whole,
        machine_s: measured(beyond(&sample.cpu, others.here)),
        peer_s: sample.peer_cpu.and_then(|cpu| measured(beyond(&cpu, others.there))),
        bits: hops().map(|hop| hop.bytes as f64 * 8.0).sum::<f64>() * whole,
        packets: hops().map(|hop| hop.packets as f64).sum::<f64>() * whole,
        transactions: sample.units as f64 * whole,
    }
}

pub(super) struct Blocked {
    /// Number of complete blocks.
    pub done: u32,
    /// Reason of the end: length, goal, Ctrl-C or a failure.
    pub ended: Ended,
    /// Width of the intervals.
    pub outlook: Option<Outlook>,
    /// Mean duration of complete blocks since the last cell settled.
    pub block_time: Duration,
    /// Notes about changes of other load.
    pub notes: Vec<String>,
}

impl Blocked {
    /// Result if stopped before the first block.
    pub fn stopped() -> Blocked {
        Blocked {
            done: 0,
            ended: Ended::Interrupted,
            outlook: None,
            block_time: Duration::ZERO,
            notes: Vec::new(),
        }
    }
}

/// Context of all blocks of a run.
pub(super) struct Blocks<'a> {
    pub plan: &'a Plan,
    pub subjects: &'a [PathUnderTest],
    pub stop: &'a AtomicBool,
    pub source: &'a mut dyn Source,
    pub judge: &'a mut Judge,
    pub log: &'a mut CellLog,
    pub observer: &'a mut dyn Observer,
}

/// Position of a sample in a run.
#[derive(Debug, Clone, Copy)]
struct Spot {
    block: u32,
    position: u32,
    progress: Progress,
}

impl Blocks<'_> {
    /// Runs blocks until `rule` or another condition ends the run.
    pub fn take(&mut self, rule: &StopRule) -> Blocked {
        let groups = order::groups(&self.plan.cells);
        let total = u64::from(rule.most_blocks()) * self.plan.cells.len() as u64;
        let mut since = (Instant::now(), 0);
        // Default: every rule ends at its last block.
        let mut blocked = Blocked { ended: Ended::Blocks, ..Blocked::stopped() };
        for block in 0..rule.most_blocks() {
            let order = order::of_block(self.plan.seed, block, &groups);
            // The blocks so far are kept.
            if let ControlFlow::Break(ended) = self.block(block, total, &order) {
                blocked.ended = ended;
                break;
            }
            blocked.done = block + 1;
            // Settled cells make blocks shorter, so average since the last cell settled.
            blocked.block_time = since.0.elapsed() / (blocked.done - since.1);
            ratios::fill(self.plan, &mut self.log.samples);
            blocked.notes.extend(self.judge.block_done(block));
            let cells = self.log.series(self.plan);
            blocked.outlook = rule.outlook(blocked.done, &cells);
            self.observer.block_done(blocked.outlook);
            blocked.ended = match (rule.decide(blocked.done, &cells), rule) {
                (Decision::Continue, _) => {
                    let now = rule.settled(blocked.done, &cells);
                    if self.log.settle(blocked.done, &groups, &cells, &now) {
                        since = (Instant::now(), blocked.done);
                    }
                    // More blocks are needed.
                    continue;
                }
                (Decision::GoalReached, _) => Ended::Confidence,
                (Decision::OutOfReach, _) => Ended::OutOfReach,
                (Decision::Decided, _) => Ended::Decided,
                (Decision::LastBlock, StopRule::Blocks { .. } | StopRule::Proof { .. }) => {
                    Ended::Blocks
                }
                (Decision::LastBlock, StopRule::Goal { .. }) => Ended::MaxBlocks,
            };
            break;
        }
        blocked
    }

    /// Runs one block; breaks if the run cannot go on.
    fn block(&mut self, block: u32, total: u64, order: &[Vec<usize>]) -> ControlFlow<Ended> {
        let before = u64::from(block) * self.plan.cells.len() as u64;
        let mut position = 0;
        for group in order {
            let mut spots = Vec::with_capacity(group.len());
            for &at in group {
                let done = before + u64::from(position) + 1;
                let spot = Spot { block, position, progress: Progress { done, total } };
                position += 1;
                spots.push((at, spot));
                if self.log.takes_samples(at, self.plan) {
                    self.judge.first();
                    self.cell(at, spot)?;
                }
            }
            self.balance(&spots)?;
        }
        ControlFlow::Continue(())
    }

    /// Compared cells should share disturbances: retakes samples of a group that were disturbed
    /// more or less than the others.
    fn balance(&mut self, group: &[(usize, Spot)]) -> ControlFlow<Ended> {
        let samples: Vec<Option<&Sample>> =
            group.iter().map(|(at, spot)| self.log.counted(*at, spot.block)).collect();
        // A single sample cannot differ from others.
        if samples.iter().flatten().count() < 2 {
            return ControlFlow::Continue(());
        }
        for unlike in self.judge.unlike(&samples) {
            let (at, spot) = group[unlike];
            // The run's budget of retakes is exhausted.
            if !self.judge.retake() {
                break;
            }
            let (sample, _) = self.once(at, spot)?;
            // If the second sample is void, the first one still counts.
            if sample.valid {
                let earlier = self.log.samples[at].iter_mut();
                for earlier in earlier.filter(|earlier| earlier.block == spot.block) {
                    void(earlier, UNLIKE);
                }
            }
            self.log.samples[at].push(*sample);
        }
        ControlFlow::Continue(())
    }

    /// Takes a cell's sample of a block, and a second one if the first is unusable.
    fn cell(&mut self, at: usize, spot: Spot) -> ControlFlow<Ended> {
        let (mut sample, mut stands_out) = self.once(at, spot)?;
        // A disturbed sample says nothing about the path, nor does one whose load threads had no
        // CPU: retake it.
        let passes = sample.path_proved || carried_nothing(&sample);
        let again = passes && (!sample.valid || stands_out.is_some());
        if again && self.judge.retake() {
            if let Some(reason) = &stands_out {
                void(&mut sample, reason);
            }
            self.log.samples[at].push(*sample);
            (sample, stands_out) = self.once(at, spot)?;
        }
        match stands_out {
            // Strict rule: a sample that exceeds the limits twice is void.
            Some(reason) if self.judge.is_strict() => void(&mut sample, &reason),
            // Background rule: the second sample counts anyway.
            Some(_) if sample.valid => self.judge.keep(),
            _ => {}
        }
        self.log.samples[at].push(*sample);
        ControlFlow::Continue(())
    }

    /// Takes one sample, and describes how it is disturbed.
    fn once(&mut self, at: usize, spot: Spot) -> ControlFlow<Ended, (Box<Sample>, Option<String>)> {
        let planned = &self.plan.cells[at];
        let subject = &self.subjects[planned.subject];
        let cell = CellRef { index: at, planned, subject };
        if self.stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(Ended::Interrupted);
        }
        let rest = self.source.rest();
        if !rest.is_zero() {
            self.observer.resting(rest);
        }
        self.rest_until(SETTLE)?;
        let set = self.observer.set(cell);
        self.rest_until(Duration::ZERO)?;
        self.observer.sampling(cell);
        let mut sample = match set {
            Err(reason) => Box::new(crate::void::void(reason)),
            Ok(()) => {
                let in_force = self.judge.in_force();
                match self.source.sample(cell, in_force, &mut self.log.said[at]) {
                    Taken::Sample(sample) => sample,
                    // Ctrl-C: the sample cut short does not count.
                    Taken::Stopped => return ControlFlow::Break(Ended::Interrupted),
                }
            }
        };
        sample.block = spot.block;
        sample.position = spot.position;
        let mut stands_out = self.judge.stands_out(&sample);
        if let Some(reason) = stands_out.as_mut().filter(|_| self.judge.is_strict()) {
            reason.push_str("; --disturbance sets this limit");
        }
        self.observer.sampled(cell, spot.progress, &sample);
        if subject.remote().is_some_and(Remote::is_given_up) {
            // Every later sample would fail in the same way.
            self.log.samples[at].push(*sample);
            return ControlFlow::Break(Ended::Failed);
        }
        ControlFlow::Continue((sample, stands_out))
    }

    /// Waits until at most `left` of the rest remains.
    fn rest_until(&self, left: Duration) -> ControlFlow<Ended> {
        loop {
            let rest = self.source.rest().saturating_sub(left);
            if rest.is_zero() {
                return ControlFlow::Continue(());
            }
            pause(rest);
            if self.stop.load(Ordering::Relaxed) {
                return ControlFlow::Break(Ended::Interrupted);
            }
        }
    }
}

/// Sleeps for at most [`STOP_LOOK`], or until a signal arrives.
fn pause(rest: Duration) {
    // An error only shortens this rest; the caller rests again.
    let _ = poll(&mut [], sys::wait::at_most(rest.min(STOP_LOOK)));
}

/// Returns whether the ends had found each other, but no traffic was sent or no connection
/// completed in the interval.
fn carried_nothing(sample: &Sample) -> bool {
    let sent = sample.loss.as_ref().map_or(0, |loss| loss.sent);
    sample.seconds > 0.0 && sample.units == 0 && sent == 0
}

/// Excludes a sample. A sample that is already void keeps its reason.
fn void(sample: &mut Sample, reason: &str) {
    if sample.valid {
        sample.valid = false;
        sample.invalid_reason = Some(reason.to_owned());
        (sample.ratio, sample.service_demand_ratio) = (None, None);
    }
}
