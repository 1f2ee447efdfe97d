//! The blocks of a run: every cell once, in random order, until the stop rule ends it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::poll::poll;

use super::judge::Judge;
use super::pacing::{Pacing, Took};
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

/// How often a rest looks whether the run is to stop: on a busy machine each look takes a CPU
/// from others. A signal for this thread makes it look at once.
const STOP_LOOK: Duration = Duration::from_millis(500);
/// How long before the end of a rest the next cell's setting is put in effect: others have caught
/// up with that burst of work before the next one, the sample, begins.
const SETTLE: Duration = Duration::from_secs(1);
/// Why a sample is void that was taken once more.
const UNLIKE: &str = "taken once more: other load differed from that of the block's other cells";

/// What a run has of each cell, in the plan's order.
pub(super) struct CellLog {
    /// Samples, void ones included.
    pub samples: Vec<Vec<Sample>>,
    /// What was said of them besides figures.
    pub said: Vec<Said>,
    /// Why a cell is not measured at all.
    pub unsupported: Vec<Option<String>>,
    /// Blocks after which a cell took no more samples.
    pub settled: Vec<Option<u32>>,
}

impl CellLog {
    /// Before the first block.
    pub fn for_each(plan: &Plan, subjects: &[PathUnderTest]) -> CellLog {
        let unsupported = |cell: &PlannedCell| unsupported(cell, &subjects[cell.subject]);
        CellLog {
            samples: vec![Vec::new(); plan.cells.len()],
            said: vec![Said::default(); plan.cells.len()],
            unsupported: plan.cells.iter().map(unsupported).collect(),
            settled: vec![None; plan.cells.len()],
        }
    }

    /// Whether a cell is measured in the next block.
    fn takes_samples(&self, at: usize, plan: &Plan) -> bool {
        self.unsupported[at].is_none() && self.settled[at].is_none() && !self.is_hopeless(at, plan)
    }

    /// Whether another sample of a cell would say nothing new. Disturbance passes; a
    /// broken path does not.
    fn is_hopeless(&self, at: usize, plan: &Plan) -> bool {
        let telling = |sample: &&Sample| sample.path_proved || !carried_nothing(sample);
        let mut samples = self.samples[at].iter().filter(telling);
        samples.clone().count() >= plan.hopeless_after && samples.all(|sample| !sample.path_proved)
    }

    /// What the stop rule decides by.
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

    /// Groups of which every cell under the change on trial is settled after `blocks` blocks
    /// take no more samples, baselines included. Whether there is a new one.
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

    /// A cell's sample of a block that counts.
    fn counted(&self, at: usize, block: u32) -> Option<&Sample> {
        self.samples[at].iter().find(|sample| sample.valid && sample.block == block)
    }
}

/// Where samples come from: the paths, or, in tests, a simulated machine.
pub(super) trait Source {
    /// Takes one sample of a cell, whose setting is in effect.
    fn sample(&mut self, cell: CellRef<'_>, in_force: InForce, said: &mut Said) -> Taken;

    /// How long to rest before the next.
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
    /// What is offered to each cell, by its index.
    pub offers: &'a [Offer],
    /// Keeps to [`Plan::impact`].
    pub pacing: Option<Pacing>,
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
            rest: self.pacing.as_ref().map_or(Duration::ZERO, Pacing::between),
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
            // What others have changes in the course of a run.
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
        self.pacing.as_ref().map_or(Duration::ZERO, Pacing::left)
    }
}

/// Part of all CPUs that other programs have, 0..1, on this machine and on the server's.
#[derive(Debug, Clone, Copy)]
struct Others {
    here: f64,
    there: f64,
}

/// What a pulse of so many seconds took, of what its measured part took.
fn took(sample: &Sample, client: &str, others: Others, pulse: f64) -> Took {
    // A broken sample has no measured part: only this process's own CPU time is known.
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

/// What the blocks came to.
pub(super) struct Blocked {
    /// Number of blocks of which every cell was measured.
    pub done: u32,
    /// What ended the run: its length, its goal, Ctrl-C or a failure.
    pub ended: Ended,
    /// How wide the intervals are.
    pub outlook: Option<Outlook>,
    /// Mean time of a whole block, of those after the last cells settled.
    pub block_time: Duration,
    /// Changes of the others' load.
    pub notes: Vec<String>,
}

impl Blocked {
    /// Stopped before the first.
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

/// What all blocks of a run have in common.
pub(super) struct Blocks<'a> {
    pub plan: &'a Plan,
    pub subjects: &'a [PathUnderTest],
    pub stop: &'a AtomicBool,
    pub source: &'a mut dyn Source,
    pub judge: &'a mut Judge,
    pub log: &'a mut CellLog,
    pub observer: &'a mut dyn Observer,
}

/// Where in a run a sample is.
#[derive(Debug, Clone, Copy)]
struct Spot {
    block: u32,
    position: u32,
    progress: Progress,
}

impl Blocks<'_> {
    /// Takes blocks until `rule` or something else ends the run.
    pub fn take(&mut self, rule: &StopRule) -> Blocked {
        let groups = order::groups(&self.plan.cells);
        let total = u64::from(rule.most_blocks()) * self.plan.cells.len() as u64;
        let mut since = (Instant::now(), 0);
        // Every rule ends at its last block.
        let mut blocked = Blocked { ended: Ended::Blocks, ..Blocked::stopped() };
        for block in 0..rule.most_blocks() {
            let order = order::of_block(self.plan.seed, block, &groups);
            if let ControlFlow::Break(ended) = self.block(block, total, &order) {
                blocked.ended = ended;
                break;
            }
            blocked.done = block + 1;
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

    /// One block; breaks where the run cannot go on.
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

    /// Cells that are compared share what disturbs them: of a group, those that were
    /// disturbed more or less than the others are taken once more.
    fn balance(&mut self, group: &[(usize, Spot)]) -> ControlFlow<Ended> {
        let samples: Vec<Option<&Sample>> =
            group.iter().map(|(at, spot)| self.log.counted(*at, spot.block)).collect();
        // One alone has nothing that it could be unlike.
        if samples.iter().flatten().count() < 2 {
            return ControlFlow::Continue(());
        }
        for unlike in self.judge.unlike(&samples) {
            let (at, spot) = group[unlike];
            // The run has no samples left that it may take once more.
            if !self.judge.retake() {
                break;
            }
            let (sample, _) = self.once(at, spot)?;
            // Where the second is void the first one counts, unlike as it is.
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

    /// A cell's samples of a block: one, and a second where that is no good.
    fn cell(&mut self, at: usize, spot: Spot) -> ControlFlow<Ended> {
        let (mut sample, mut stands_out) = self.once(at, spot)?;
        // A disturbed sample says nothing about the path, nor does one in which the threads of
        // the load had no CPU: once more.
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
            Some(reason) if self.judge.is_strict() => void(&mut sample, &reason),
            Some(_) if sample.valid => self.judge.keep(),
            _ => {}
        }
        self.log.samples[at].push(*sample);
        ControlFlow::Continue(())
    }

    /// One sample, and in which way it stands out.
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
                    Taken::Stopped => return ControlFlow::Break(Ended::Interrupted),
                }
            }
        };
        sample.block = spot.block;
        sample.position = spot.position;
        let mut stands_out = self.judge.stands_out(&sample);
        if let Some(reason) = stands_out.as_mut().filter(|_| self.judge.is_strict()) {
            reason.push_str("; --disturbance sets that limit");
        }
        self.observer.sampled(cell, spot.progress, &sample);
        if subject.remote().is_some_and(Remote::is_given_up) {
            // Every later sample would say the same.
            self.log.samples[at].push(*sample);
            return ControlFlow::Break(Ended::Failed);
        }
        ControlFlow::Continue((sample, stands_out))
    }

    /// Rests until no more than `left` of the rest is left.
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

/// Pauses for [`STOP_LOOK`] at most, or until a signal comes.
fn pause(rest: Duration) {
    // Any error is a shorter rest, and there is another.
    let _ = poll(&mut [], sys::wait::at_most(rest.min(STOP_LOOK)));
}

/// Whether the ends had found each other, and then nothing was sent, or nothing of a connection
/// came, in the interval.
fn carried_nothing(sample: &Sample) -> bool {
    let sent = sample.loss.as_ref().map_or(0, |loss| loss.sent);
    sample.seconds > 0.0 && sample.units == 0 && sent == 0
}

/// Takes a sample out of the count; one that is void keeps its own reason.
fn void(sample: &mut Sample, reason: &str) {
    if sample.valid {
        sample.valid = false;
        sample.invalid_reason = Some(reason.to_owned());
        (sample.ratio, sample.service_demand_ratio) = (None, None);
    }
}
