//! The checked request of a measurement: the loads of its cells, and how to sample them.

use std::time::Duration;

use load::Workload;
use load::ask::{Ask, Engine, Task};
use measure::impact::Impact;
use measure::plan::{HOPELESS_AFTER, Plan, PlannedCell, Stopping};
use measure::run::Outcome;
use measure::sampler::{Rule, Survey};
use results::{Beside, ConfidenceGoal, Placement as Placed, Plan as PlanRecord};

/// Time without progress after which a path counts as broken.
const SETUP_LIMIT: Duration = Duration::from_secs(5);
/// Sample duration of a trial if other load is steady.
const OF_A_STEADY_TRIAL: Duration = Duration::from_millis(250);

/// The checked workload options.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// One load per cell of a path.
    pub asks: Vec<Ask>,
    pub tasks: Vec<Task>,
    pub sizes: Vec<u32>,
    pub flows: Vec<u32>,
    pub outstanding: Vec<u32>,
    pub load_percent: Vec<f64>,
    /// Rates of `udp_stream`, bits/s.
    pub rates: Vec<u64>,
    /// Bulk traffic beside requests, each a cell more.
    pub beside: Vec<Beside>,
    pub socket_buffers: Vec<u32>,
    pub engines: Vec<Engine>,
    pub gso: bool,
    /// DSCP of all packets.
    pub dscp: Option<u8>,
    /// The load uses ECN.
    pub ecn: bool,
}

impl Asked {
    /// Returns whether all loads send one request at a time, with pauses under `--impact`.
    fn rests(&self) -> bool {
        self.outstanding == [1] && self.tasks.iter().all(|task| task.workload().is_rr())
    }

    /// Builds every combination. A workload ignores options that it does not support.
    pub fn combinations(&self) -> Vec<Ask> {
        let mut asks = Vec::new();
        for &task in &self.tasks {
            let workload = task.workload();
            let rr = workload.is_rr();
            let own = [workload.default_message_bytes()];
            let sizes = if self.sizes.is_empty() { &own[..] } else { &self.sizes };
            // Streams have no requests.
            let outstanding = if rr { &self.outstanding[..] } else { &[1] };
            let loads = options(if rr { &self.load_percent } else { &[] });
            let is_udp_stream = task == Task::Steady(Workload::UdpStream);
            let besides = besides(rr, &self.beside);
            let rates = options(if is_udp_stream { &self.rates } else { &[] });
            for &engine in &self.engines {
                for &socket_buffer_bytes in &options(&self.socket_buffers) {
                    for &flows in &self.flows {
                        let ask = Ask { flows, socket_buffer_bytes, engine, ..Ask::new(task) };
                        let (gso, dscp) = (self.gso && is_udp_stream, self.dscp);
                        let ask = Ask { gso, dscp, ecn: self.ecn, ..ask };
                        let ways = besides.iter().flat_map(|&beside| {
                            loads.iter().map(move |&load_percent| (beside, load_percent))
                        });
                        for (beside, load_percent) in ways {
                            for &rate_bits_per_s in &rates {
                                for &outstanding in outstanding {
                                    asks.extend(sizes.iter().map(|&message_bytes| Ask {
                                        message_bytes,
                                        outstanding,
                                        beside,
                                        load_percent,
                                        rate_bits_per_s,
                                        ..ask
                                    }));
                                }
                            }
                        }
                    }
                }
            }
        }
        asks
    }

    /// Adds another part of a plan, without duplicates.
    pub fn join(&mut self, other: Asked) {
        fn union<T: PartialEq>(into: &mut Vec<T>, from: Vec<T>) {
            for item in from {
                if !into.contains(&item) {
                    into.push(item);
                }
            }
        }
        union(&mut self.asks, other.asks);
        union(&mut self.tasks, other.tasks);
        union(&mut self.sizes, other.sizes);
        union(&mut self.flows, other.flows);
        union(&mut self.outstanding, other.outstanding);
        union(&mut self.load_percent, other.load_percent);
        union(&mut self.rates, other.rates);
        union(&mut self.beside, other.beside);
        union(&mut self.socket_buffers, other.socket_buffers);
        union(&mut self.engines, other.engines);
        self.gso |= other.gso;
        self.dscp = self.dscp.or(other.dscp);
        self.ecn |= other.ecn;
    }
}

/// The checked sampling options.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Number of blocks, or the interval width that ends the run.
    pub stopping: Stopping,
    /// Measured interval of each sample.
    pub duration: Duration,
    /// Discarded traffic before each measured interval.
    pub warmup: Duration,
    /// CPUs of the clients' and the servers' threads.
    pub placement: Placed,
    /// Seed of the random order.
    pub seed: u64,
    /// Rule that decides whether a sample is void.
    pub rule: Rule,
    /// Limit on the test's own load.
    pub impact: Option<Impact>,
    /// Options that were given, so that no default may replace them.
    pub given: Given,
}

/// Options that were given on the command line or in a plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given {
    pub duration: bool,
    pub warmup: bool,
    pub placement: bool,
    pub quick: bool,
}

impl RunOptions {
    /// Shortens pulses, unless their duration was given, if a workload does not pause between two
    /// requests.
    pub fn shorten_bursts(&mut self, asked: &Asked) {
        // Without pulses there are no bursts to shorten.
        if self.impact.is_none() || asked.rests() {
            return;
        }
        if !self.given.duration {
            self.duration = Impact::BURST;
        }
        if !self.given.warmup {
            self.warmup = Impact::BURST_WARMUP;
        }
    }

    /// Shortens the samples of a trial, unless their duration was given, if other load is steady.
    /// Longer samples would then average out little, while more pairs of samples make a difference
    /// significant sooner.
    pub fn shorten_pairs(&mut self, survey: &Survey) {
        let is_given = self.given.duration || self.given.quick || self.impact.is_some();
        if !is_given && !survey.comes_and_goes() {
            self.duration = OF_A_STEADY_TRIAL;
        }
    }

    /// Builds the plan for these cells and varied settings.
    pub fn plan(&self, cells: Vec<PlannedCell>, settings: Vec<String>, survey: &Survey) -> Plan {
        Plan {
            seed: self.seed,
            cells,
            stopping: self.stopping,
            settings,
            duration: self.duration,
            warmup: self.warmup,
            placement: self.placement.clone(),
            rule: self.rule,
            before: survey.steps.clone(),
            impact: self.impact,
            idle_load: survey.busy,
            setup_limit: SETUP_LIMIT,
            hopeless_after: HOPELESS_AFTER,
        }
    }
}

/// Builds the plan record for the results, except for fields that depend on the paths: baseline,
/// modes, offload, MTU and steering.
pub fn record(asked: &Asked, run_options: &RunOptions, outcome: &Outcome) -> PlanRecord {
    PlanRecord {
        name: None,
        seed: run_options.seed,
        baseline: String::new(),
        modes: Vec::new(),
        offload: Vec::new(),
        mtu: Vec::new(),
        workloads: asked.tasks.clone(),
        sizes: asked.sizes.clone(),
        flows: asked.flows.clone(),
        outstanding: asked.outstanding.clone(),
        load_percent: asked.load_percent.clone(),
        rates_bits_per_s: asked.rates.clone(),
        beside: asked.beside.clone(),
        socket_buffers: asked.socket_buffers.clone(),
        engines: asked.engines.clone(),
        vary: Vec::new(),
        ipv6: false,
        gso: asked.gso,
        dscp: asked.dscp,
        ecn: asked.ecn,
        placement: run_options.placement.clone(),
        steering: results::Steering::None,
        blocks: run_options.stopping.blocks,
        max_blocks: run_options.stopping.max_blocks,
        blocks_done: outcome.blocks_done,
        duration_s: run_options.duration.as_secs_f64(),
        warmup_s: run_options.warmup.as_secs_f64(),
        confidence: ConfidenceGoal {
            level: run_options.stopping.level,
            half_width: run_options.stopping.half_width,
            interim_analyses: outcome.interim_analyses.clone(),
        },
    }
}

/// Returns the requests alone, and beside each bulk traffic.
fn besides(rr: bool, asked: &[Beside]) -> Vec<Option<Beside>> {
    let beside = asked.iter().copied().map(Some).filter(|_| rr);
    std::iter::once(None).chain(beside).collect()
}

/// Returns each value as `Some`, or a single `None` if there are no values.
fn options<T: Copy>(values: &[T]) -> Vec<Option<T>> {
    if values.is_empty() { vec![None] } else { values.iter().copied().map(Some).collect() }
}

#[cfg(test)]
pub mod tests {
    use measure::sampler::Rule;
    use results::PlacementPolicy;

    use super::*;

    /// The defaults of `lab run`.
    pub fn lab_run_options() -> RunOptions {
        RunOptions {
            stopping: Stopping {
                level: 0.95,
                blocks: 20,
                half_width: None,
                proof: false,
                max_blocks: 100,
            },
            duration: Duration::from_millis(500),
            warmup: Duration::from_millis(100),
            placement: PlacementPolicy::Split.place(&[0, 1]),
            seed: 1,
            rule: Rule::Background,
            impact: None,
            given: Given::default(),
        }
    }
}
