//! Runs on a simulated busy machine. Blocks, judge, ratios and stop rule are the real ones; time,
//! CPUs and the path's values are simulated.
//!
//! A sample's value falls with the other load on either machine during its interval. The relation
//! is not linear, and the judge does not know it. The truth is the factor that the tried setting
//! brings. An interval is right if it contains that factor.
//!
//! `bench/run busy-simulation` prints the whole table with more runs.
//!
//! The order of the cells in a block is a fair coin, and the factor is independent of the load.
//! Thus a block's ratio is above the truth with probability ½, whatever the other load and the
//! other blocks are. How often an interval misses is then known exactly for every load:
//! [`MISSES`]. The tests compare the rates with that, not with the requested 5%.

mod machine;

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rand::SeedableRng;
use rand_pcg::Pcg64;

use super::blocks::{Blocked, Blocks, CellLog, Source};
use super::judge::Judge;
use super::{Ended, ratios};
use crate::in_force::InForce;
use crate::observer::{CellRef, Observer};
use crate::path_under_test::{PathUnderTest, ServerEnd};
use crate::plan::{HOPELESS_AFTER, Plan, Step, Stopping, cells, trial_cells};
use crate::sample::{Said, Taken};
use crate::sampler::{Disturbance, Limits, Rule};
use load::Workload;
use load::ask::{Ask, Task};
use machine::{Busy, Noise, Others, left};
use results::stats::relative_half_width;
use results::{Interval, Placement, Sample};

/// Duration of a sample and of the time around it, seconds, as `try` has them by default.
const SAMPLE: f64 = 0.5;
const AROUND: f64 = 0.15;
/// Noise of a value beside load (standard deviation of its logarithm).
const NOISE: f64 = 0.04;
/// Effect of the tried setting, if it has one.
const GAIN: f64 = 1.10;
/// Effect of the setting on tcp_stream.
const GREAT: f64 = 1.6;
/// Share of intervals of 20 ratios that miss the truth: 2·P(B(20, ½) < 6).
const MISSES: f64 = 0.0414;

/// Two machines with a path between them.
struct Simulated {
    clock: f64,
    here: Busy,
    peer: Busy,
    factor: f64,
    /// Additional other load while the setting is tried: a change may free CPU time that other
    /// programs then use.
    attracted: f64,
    noise: Noise,
    /// Noise of tcp_rr, in multiples of [`NOISE`].
    unrest: f64,
    taken: u32,
}

impl Source for Simulated {
    fn sample(&mut self, cell: CellRef<'_>, _in_force: InForce, _said: &mut Said) -> Taken {
        let (from, to) = (self.clock + AROUND, self.clock + AROUND + SAMPLE);
        self.clock = to;
        self.taken += 1;
        let attracted = if cell.planned.setting.is_some() { self.attracted } else { 0.0 };
        let here = self.here.share(from, to, &mut self.noise) + attracted;
        let peer = self.peer.share(from, to, &mut self.noise);
        let tried = cell.planned.setting.is_some();
        let (factor, noise) = match cell.planned.ask.task.workload() {
            Workload::TcpStream => (GREAT, NOISE / 4.0),
            _ => (self.factor, self.unrest * NOISE),
        };
        let factor = if tried { factor } else { 1.0 };
        let value = 1e5 * factor * left(here, peer) * (noise * self.noise.normal()).exp();
        Taken::Sample(Box::new(Sample {
            value,
            valid: true,
            path_proved: true,
            disturbance: Some(self.here.seen(here, &mut self.noise)),
            peer_disturbance: Some(self.peer.seen(peer, &mut self.noise)),
            ..Sample::default()
        }))
    }
}

struct Quiet;

impl Observer for Quiet {}

struct Run {
    ratios: Vec<f64>,
    interval: Option<Interval>,
    blocked: Blocked,
    /// Samples taken, relative to those of the plan's complete blocks.
    cost: f64,
    judge: Judge,
}

fn subject() -> PathUnderTest {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 7));
    PathUnderTest {
        datagram_warmup: Duration::ZERO,
        mode: "path".to_owned(),
        offload: results::Profile::AsFound,
        mtu: 1500,
        client: 0,
        server: ServerEnd::Here { place: 0, target: address, listen: address },
        hops: Vec::new(),
        places: Vec::new(),
        damage: None,
    }
}

/// A plan with one change under test.
pub(super) fn plan(seed: u64, rule: Rule, stopping: Stopping) -> Plan {
    plan_of(&[Ask::new(Task::Steady(Workload::TcpRr))], seed, rule, stopping)
}

fn plan_of(asks: &[Ask], seed: u64, rule: Rule, stopping: Stopping) -> Plan {
    Plan {
        seed,
        cells: match stopping.proof {
            // As in `try`. Any other run has a second as-found series.
            true => trial_cells(asks),
            false => cells(
                &[("path", "as-found", 1500)],
                "path",
                asks,
                &[vec![Step { setting: 0, subject: 0 }]],
            ),
        },
        stopping,
        settings: vec!["tried".to_owned()],
        duration: Duration::from_secs_f64(SAMPLE),
        warmup: Duration::ZERO,
        placement: Placement {
            policy: results::PlacementPolicy::None,
            client_cpus: Vec::new(),
            server_cpus: Vec::new(),
        },
        rule,
        before: Vec::new(),
        impact: None,
        idle_load: 0.0,
        setup_limit: Duration::ZERO,
        hopeless_after: HOPELESS_AFTER,
    }
}

const TWENTY: Stopping =
    Stopping { level: 0.95, blocks: 20, half_width: None, proof: false, max_blocks: 0 };
/// As in `try`: a few more blocks of two cells, and an interim analysis may end the run.
const PROOF: Stopping = Stopping { proof: true, blocks: 30, ..TWENTY };
const GOAL: Stopping =
    Stopping { level: 0.95, blocks: 0, half_width: Some(0.05), proof: false, max_blocks: 40 };

fn run(seed: u64, others: [Others; 2], factor: f64, rule: Rule, stopping: Stopping) -> Run {
    attracting(0.0, seed, others, factor, rule, stopping)
}

fn attracting(
    attracted: f64,
    seed: u64,
    others: [Others; 2],
    factor: f64,
    rule: Rule,
    stopping: Stopping,
) -> Run {
    let mut noise = Noise(Pcg64::seed_from_u64(seed.wrapping_mul(0x9E37_79B9)));
    let [mut here, peer] = others.map(|others| Busy::new(others, &mut noise));
    // As in the survey before a run: five steps of 0.1 s.
    let before: Vec<Disturbance> = (0..5)
        .map(|step| {
            let from = f64::from(step) * 0.1;
            let share = here.share(from, from + 0.1, &mut noise);
            here.seen(share, &mut noise)
        })
        .collect();
    let plan = Plan { before, ..plan(seed, rule, stopping) };
    let mut source =
        Simulated { clock: 0.5, here, peer, factor, attracted, noise, unrest: 1.0, taken: 0 };
    let subjects = [subject()];
    let mut judge = Judge::new(plan.rule, &plan.before, None);
    let mut log = CellLog::for_each(&plan, &subjects);
    let rule = plan.stopping.rule().unwrap();
    let stop = AtomicBool::new(false);
    let blocked = Blocks {
        plan: &plan,
        subjects: &subjects,
        stop: &stop,
        source: &mut source,
        judge: &mut judge,
        log: &mut log,
        observer: &mut Quiet,
    }
    .take(&rule);
    ratios::fill(&plan, &mut log.samples);
    // The tried cell is the last one.
    let tried = log.samples.last().unwrap();
    let ratios: Vec<f64> = tried.iter().filter_map(|sample| sample.ratio).collect();
    let planned = f64::from(blocked.done) * plan.cells.len() as f64;
    Run {
        interval: rule.interval(blocked.done, &ratios).ok(),
        ratios,
        cost: f64::from(source.taken) / planned,
        blocked,
        judge,
    }
}

/// Loads of the table: name, other load here, other load at the peer.
fn loads() -> Vec<(String, [Others; 2])> {
    use Others::{Bursts, Drift, From, Idle, Periodic, Steady, Steal, Throttled, Until};
    let mut loads: Vec<(String, [Others; 2])> = vec![("idle".to_owned(), [Idle, Idle])];
    for level in [0.2, 0.5, 0.9] {
        loads.push((format!("steady {:.0}%", level * 100.0), [Steady(level), Idle]));
    }
    for (name, others) in [
        ("rare bursts", [Bursts { level: 0.8, on: 1.0, off: 15.0 }, Idle]),
        ("bursts", [Bursts { level: 0.9, on: 2.0, off: 3.0 }, Idle]),
        ("short bursts", [Bursts { level: 0.9, on: 0.2, off: 0.3 }, Idle]),
        ("every second for 0.3 s", [Periodic { level: 0.8, every: 1.0, takes: 0.3 }, Idle]),
        ("every 1.95 s for 0.7 s", [Periodic { level: 0.8, every: 1.95, takes: 0.7 }, Idle]),
        ("every 10 s for 2 s", [Periodic { level: 0.9, every: 10.0, takes: 2.0 }, Idle]),
        ("drift to 80%", [Drift(0.8), Idle]),
        ("begins in the middle", [From(20.0), Idle]),
        ("ends in the middle", [Until(20.0), Idle]),
        ("steal in waves", [Steal { level: 0.5, wave: 7.0 }, Idle]),
        ("held back by a group", [Throttled(0.4), Idle]),
        ("both ends, different", [Bursts { level: 0.8, on: 1.0, off: 2.0 }, Steady(0.6)]),
        (
            "both ends, bursts",
            [Bursts { level: 0.8, on: 1.0, off: 4.0 }, Bursts { level: 0.6, on: 3.0, off: 3.0 }],
        ),
    ] {
        loads.push((name.to_owned(), others));
    }
    loads
}

/// Rates over many runs.
#[derive(Debug, Default)]
struct Rates {
    runs: f64,
    /// Intervals that contain the truth.
    covered: f64,
    /// Intervals above 1, and intervals below 1.
    better: f64,
    worse: f64,
    /// Number of a run's ratios above the truth minus half of them: the sum over the runs, and the
    /// sum of squares.
    lean: f64,
    lean_squared: f64,
    /// Runs without an interval.
    holes: f64,
    /// Total blocks of all runs.
    blocks: f64,
    /// Mean relative half-width, and mean cost.
    width: f64,
    cost: f64,
    most_cost: f64,
}

fn rates(runs: u64, others: [Others; 2], factor: f64, stopping: Stopping) -> Rates {
    let mut rates = Rates { runs: runs as f64, ..Rates::default() };
    for seed in 0..runs {
        let run = run(seed, others, factor, Rule::Background, stopping);
        rates.blocks += f64::from(run.blocked.done);
        rates.cost += run.cost / runs as f64;
        rates.most_cost = rates.most_cost.max(run.cost);
        let above = run.ratios.iter().filter(|ratio| **ratio > factor).count() as f64;
        let lean = above - 0.5 * run.ratios.len() as f64;
        rates.lean += lean;
        rates.lean_squared += lean * lean;
        // A run without an interval covers nothing and proves nothing.
        let Some(interval) = run.interval else {
            rates.holes += 1.0;
            continue;
        };
        rates.width += relative_half_width(&interval) / runs as f64;
        rates.covered += f64::from(interval.low <= factor && factor <= interval.high);
        rates.better += f64::from(interval.low > 1.0);
        rates.worse += f64::from(interval.high < 1.0);
    }
    rates
}

/// Returns three standard errors of a share counted over `runs`.
fn error(share: f64, runs: f64) -> f64 {
    3.0 * (share * (1.0 - share) / runs).sqrt()
}

/// Asserts rates for intervals that miss the truth in a share `misses` of runs, by theory.
#[track_caller]
fn assert_honest(name: &str, none: &Rates, some: &Rates, misses: f64) {
    for rates in [none, some] {
        let least = 1.0 - misses - error(misses, rates.runs);
        assert!(rates.covered / rates.runs >= least, "{name}: covers too seldom: {rates:?}");
        assert_eq!(rates.holes, 0.0, "{name}: a run without an interval: {rates:?}");
        assert!(rates.most_cost <= 2.0, "{name}: more than twice its samples: {rates:?}");
    }
    let proven = (none.better + none.worse) / none.runs;
    assert!(proven <= misses + error(misses, none.runs), "{name}: falsely proven: {none:?}");
    // Misses are equally likely on both sides.
    let below = misses / 2.0 + error(misses / 2.0, some.runs);
    assert!(some.worse / some.runs <= below, "{name}: a gain proven a loss: {some:?}");
}

/// Asserts that a run's ratios in `blocks` blocks fall above and below the truth like a fair
/// coin. Dependent blocks would show in the variance, with fewer runs than in the share of
/// missing intervals.
#[track_caller]
fn assert_coin(name: &str, rates: &Rates, blocks: f64) {
    let variance = blocks / 4.0;
    let of_square = (blocks * blocks - blocks) / 8.0;
    let (mean, square) = (rates.lean / rates.runs, rates.lean_squared / rates.runs);
    let far = |by: f64| 3.0 * (by / rates.runs).sqrt();
    assert!(mean.abs() <= far(variance), "{name}: more on one side: {rates:?}");
    assert!((square - variance).abs() <= far(of_square), "{name}: blocks depend: {rates:?}");
}

/// Prints the rates as a table. `bench/run busy-simulation` sets more runs by `RUNS`.
#[test]
fn intervals_hold_the_truth_at_their_rate_whatever_others_do() {
    let runs = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(300);
    println!(
        "{runs} runs a load: a rate of {:.1}% is ±{:.1}% (three standard errors)\n",
        MISSES * 100.0,
        error(MISSES, runs as f64) * 100.0,
    );
    println!("| load | covers | falsely proven | found of +10% | interval | samples |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, others) in loads() {
        let [none, some] = [1.0, GAIN].map(|factor| rates(runs, others, factor, TWENTY));
        let covered = (none.covered + some.covered) / (2.0 * none.runs);
        println!(
            "| {name} | {:.1}% | {:.1}% | {:.0}% | ±{:.1}% | ×{:.2} |",
            covered * 100.0,
            (none.better + none.worse) / none.runs * 100.0,
            some.better / some.runs * 100.0,
            some.width * 100.0,
            some.cost,
        );
        assert_honest(&name, &none, &some, MISSES);
        assert_coin(&name, &none, 20.0);
        assert_coin(&name, &some, 20.0);
    }
}

#[test]
fn so_they_do_where_a_run_stops_at_its_goal_or_gives_it_up() {
    for (name, others) in loads() {
        let [none, some] = [1.0, GAIN].map(|factor| rates(120, others, factor, GOAL));
        // The interim analyses spend up to all of the 5%.
        assert_honest(&name, &none, &some, 0.05);
    }
}

/// `try` stops early: it proves the same in fewer blocks. CPU time is not simulated, so the
/// carried traffic alone decides.
#[test]
fn a_trial_that_ends_when_it_is_decided_is_as_honest_and_shorter() {
    let runs = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(120);
    println!("| load | covers | falsely proven | found of +10% | blocks | of nothing |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let (mut found, mut found_in_all) = (0.0, 0.0);
    for (name, others) in loads() {
        let [none, some] = [1.0, GAIN].map(|factor| rates(runs, others, factor, PROOF));
        let all = rates(runs, others, GAIN, TWENTY);
        println!(
            "| {name} | {:.1}% | {:.1}% | {:.0}% of {:.0}% | {:.1} | {:.1} |",
            (none.covered + some.covered) / (2.0 * none.runs) * 100.0,
            (none.better + none.worse) / none.runs * 100.0,
            some.better / some.runs * 100.0,
            all.better / all.runs * 100.0,
            some.blocks / some.runs,
            none.blocks / none.runs,
        );
        assert_honest(&name, &none, &some, 0.05);
        (found, found_in_all) = (found + some.better, found_in_all + all.better);
    }
    // Wider intervals of interim analyses cost no proofs, apart from the blocks added for them.
    assert!(found >= 0.97 * found_in_all, "{found} of {found_in_all}");
    let gain = rates(runs, [Others::Idle; 2], GAIN, PROOF);
    assert!(gain.blocks / gain.runs < 12.0, "{gain:?}");
}

/// A workload with enough blocks leaves its time to the others. Each interval contains the truth at
/// its rate, including that of the cell with fewer samples.
#[test]
fn a_workload_that_settles_takes_no_more_samples_and_its_interval_is_as_honest() {
    let asks = [Workload::TcpStream, Workload::TcpRr].map(|w| Ask::new(Task::Steady(w)));
    let runs = 300;
    let (mut covered, mut early, mut seconds, mut in_all) = ([0.0; 2], 0.0, 0.0, 0.0);
    for seed in 0..runs {
        let mut noise = Noise(Pcg64::seed_from_u64(seed));
        let [here, peer] = [Others::Idle; 2].map(|others| Busy::new(others, &mut noise));
        let (factor, unrest) = (1.0, 6.0);
        let mut source =
            Simulated { clock: 0.0, here, peer, factor, attracted: 0.0, noise, unrest, taken: 0 };
        let plan = plan_of(&asks, seed, Rule::Background, PROOF);
        let subjects = [subject()];
        let mut log = CellLog::for_each(&plan, &subjects);
        let mut judge = Judge::new(plan.rule, &[], None);
        let rule = plan.stopping.rule().unwrap();
        let mut blocks = Blocks {
            plan: &plan,
            subjects: &subjects,
            stop: &AtomicBool::new(false),
            source: &mut source,
            judge: &mut judge,
            log: &mut log,
            observer: &mut Quiet,
        };
        let blocked = blocks.take(&rule);
        ratios::fill(&plan, &mut log.samples);
        for (at, truth) in [GREAT, factor].into_iter().enumerate() {
            let cell = plan
                .cells
                .iter()
                .position(|cell| cell.setting.is_some() && cell.ask == asks[at])
                .unwrap();
            let ratios: Vec<f64> = log.samples[cell].iter().filter_map(|s| s.ratio).collect();
            let took = log.settled[cell].unwrap_or(blocked.done);
            let blocks_of: std::collections::BTreeSet<u32> =
                log.samples[cell].iter().map(|sample| sample.block).collect();
            assert_eq!(blocks_of.len(), took as usize, "samples of the blocks that it took");
            let interval = rule.interval(took, &ratios).unwrap();
            covered[at] += f64::from(interval.low <= truth && truth <= interval.high);
            if asks[at].task.workload() == Workload::TcpStream {
                early += f64::from(took < blocked.done);
            }
        }
        seconds += source.clock;
        in_all += f64::from(blocked.done) * plan.cells.len() as f64 * (AROUND + SAMPLE);
    }
    let runs = runs as f64;
    for covered in covered {
        assert!(covered / runs >= 0.95 - error(0.05, runs), "{covered} of {runs}");
    }
    assert!(early > 0.9 * runs, "settled early in {early} of {runs}");
    assert!(seconds < 0.8 * in_all, "{seconds} of {in_all} s");
}

/// A machine without CPU time for the first samples, and for every third one.
struct Starving {
    first: u32,
    taken: u32,
}

impl Source for Starving {
    fn sample(&mut self, _cell: CellRef<'_>, _in_force: InForce, _said: &mut Said) -> Taken {
        self.taken += 1;
        let sent = u64::from(self.taken > self.first && !self.taken.is_multiple_of(3));
        Taken::Sample(Box::new(Sample {
            value: sent as f64,
            units: sent,
            seconds: SAMPLE,
            valid: sent > 0,
            path_proved: sent > 0,
            invalid_reason: (sent == 0).then(|| "nothing was sent".to_owned()),
            disturbance: Some(Disturbance::default()),
            ..Sample::default()
        }))
    }
}

#[test]
fn a_sample_in_which_nothing_was_sent_is_taken_once_more_and_gives_no_cell_up() {
    // None, or all of two blocks of three cells, each taken twice.
    for (first, blocks) in [(0, 0..20), (12, 2..20)] {
        let plan = plan(1, Rule::Background, TWENTY);
        let subjects = [subject()];
        let mut log = CellLog::for_each(&plan, &subjects);
        Blocks {
            plan: &plan,
            subjects: &subjects,
            stop: &AtomicBool::new(false),
            source: &mut Starving { first, taken: 0 },
            judge: &mut Judge::new(plan.rule, &plan.before, None),
            log: &mut log,
            observer: &mut Quiet,
        }
        .take(&plan.stopping.rule().unwrap());
        for samples in &log.samples {
            let valid = samples.iter().filter(|sample| sample.valid);
            let valid: Vec<u32> = valid.map(|sample| sample.block).collect();
            assert_eq!(valid, Vec::from_iter(blocks.clone()));
            assert!(samples.len() > 20, "none was without traffic");
        }
    }
}

/// Rests after each sample until the rest has been queried often enough.
struct Resting<'a> {
    /// Duration of a rest in ms, and how much each query takes of it.
    whole: u32,
    step: u32,
    left: &'a Cell<u32>,
}

impl Source for Resting<'_> {
    fn sample(&mut self, _cell: CellRef<'_>, _in_force: InForce, _said: &mut Said) -> Taken {
        self.left.set(self.whole);
        Taken::Sample(Box::new(Sample {
            value: 1.0,
            units: 1,
            seconds: SAMPLE,
            valid: true,
            path_proved: true,
            disturbance: Some(Disturbance::default()),
            ..Sample::default()
        }))
    }

    fn rest(&self) -> Duration {
        let left = self.left.get();
        self.left.set(left.saturating_sub(self.step));
        Duration::from_millis(left.into())
    }
}

/// Records callbacks, and how much of a rest was left.
struct RestRecorder<'a>(&'a Cell<u32>, Vec<(&'static str, u32)>);

impl Observer for RestRecorder<'_> {
    fn resting(&mut self, _rest: Duration) {
        self.1.push(("resting", self.0.get()));
    }

    fn set(&mut self, _cell: CellRef<'_>) -> Result<(), String> {
        self.1.push(("set", self.0.get()));
        Ok(())
    }

    fn sampling(&mut self, _cell: CellRef<'_>) {
        self.1.push(("sampling", self.0.get()));
    }
}

/// Settings change a second before the end, or at the start of a shorter rest.
#[test]
fn a_setting_is_changed_before_the_end_of_a_rest() {
    for (whole, step, left_at) in [(60, 20, [40, 20]), (1400, 700, [700, 0])] {
        let left = Cell::new(0);
        let mut recorder = RestRecorder(&left, Vec::new());
        let stopping = Stopping { blocks: 2, ..TWENTY };
        let plan = plan(1, Rule::Background, stopping);
        let subjects = [subject()];
        Blocks {
            plan: &plan,
            subjects: &subjects,
            stop: &AtomicBool::new(false),
            source: &mut Resting { whole, step, left: &left },
            judge: &mut Judge::new(plan.rule, &plan.before, None),
            log: &mut CellLog::for_each(&plan, &subjects),
            observer: &mut recorder,
        }
        .take(&stopping.rule().unwrap());
        let mut expected = vec![("set", 0), ("sampling", 0)];
        for _ in 1..2 * plan.cells.len() {
            let [resting, set] = left_at;
            expected.extend([("resting", resting), ("set", set), ("sampling", 0)]);
        }
        assert_eq!(recorder.1, expected);
    }
}

#[test]
fn a_steady_load_costs_nothing() {
    for level in [0.2, 0.36, 0.5, 0.8, 0.9] {
        let idle = rates(50, [Others::Idle; 2], GAIN, TWENTY);
        let busy = rates(50, [Others::Steady(level), Others::Idle], GAIN, TWENTY);
        assert!(busy.cost < 1.05 && busy.better == busy.runs, "{level}: {busy:?}");
        assert!(busy.width < idle.width * 1.3, "{level}: {busy:?}, idle {idle:?}");
    }
}

#[test]
fn rare_bursts_are_taken_out_and_do_not_widen_the_interval_much() {
    let rare = Others::Bursts { level: 0.8, on: 1.0, off: 15.0 };
    let idle = rates(100, [Others::Idle; 2], GAIN, TWENTY);
    let busy = rates(100, [rare, Others::Idle], GAIN, TWENTY);
    assert!(busy.width < idle.width * 1.3, "{busy:?}, idle {idle:?}");
    assert!(busy.cost < 1.4, "{busy:?}");
}

#[test]
fn a_change_that_others_answer_to_is_measured_with_their_answer() {
    let steady = [Others::Steady(0.4), Others::Idle];
    for attracted in [-0.2, 0.05, 0.15, 0.3] {
        let truth = GAIN * left(0.4 + attracted, 0.0) / left(0.4, 0.0);
        let covers = |seed: &u64| {
            let run = attracting(attracted, *seed, steady, GAIN, Rule::Background, TWENTY);
            let interval = run.interval.unwrap();
            interval.low <= truth && truth <= interval.high
        };
        let covered = (0..300).filter(covers).count() as f64;
        assert!(covered / 300.0 >= 0.95 - error(0.95, 300.0), "{attracted}: {covered} of 300");
    }
}

#[test]
fn a_strict_limit_leaves_nothing_where_the_background_finds_a_gain() {
    let limits = Limits { other_share: 0.1, ..Limits::LIFTED };
    let steady = [Others::Steady(0.5), Others::Idle];
    let strict = run(1, steady, 1.6, Rule::Strict(limits), TWENTY);
    assert_eq!(strict.interval, None);
    let interval = run(1, steady, 1.6, Rule::Background, TWENTY).interval.unwrap();
    assert!(interval.low > 1.4, "{interval:?}");
    // The result is the same on an idle machine.
    let idle = [Others::Idle; 2];
    assert!(run(1, idle, 1.6, Rule::Strict(limits), TWENTY).interval.is_some());
}

#[test]
fn a_load_that_begins_in_the_middle_is_said_and_becomes_the_background() {
    let run = run(3, [Others::From(20.0), Others::Idle], 1.0, Rule::Background, TWENTY);
    assert_eq!(run.blocked.notes.len(), 1, "{:?}", run.blocked.notes);
    assert!(run.blocked.notes[0].starts_with("from block 1"), "{:?}", run.blocked.notes);
    let background = run.judge.record();
    assert!((background.machine.other.level - 0.7).abs() < 0.05, "{background:?}");
}

#[test]
fn a_goal_that_noise_forbids_is_given_up_early_and_what_it_needs_is_said() {
    let both = [Others::Bursts { level: 0.95, on: 1.0, off: 1.0 }; 2];
    let stopping = Stopping { half_width: Some(0.01), max_blocks: 100, ..GOAL };
    let run = run(5, both, 1.0, Rule::Background, stopping);
    assert_eq!(run.blocked.ended, Ended::OutOfReach);
    assert!(run.blocked.done < 30, "{}", run.blocked.done);
    let mut blocked = run.blocked;
    blocked.block_time = Duration::from_secs(2);
    let plan = plan(1, Rule::Background, stopping);
    let notes = super::outlook::notes(&plan, &blocked, &run.judge.record(), &[]);
    let said = notes.iter().find(|note| note.contains("more at this load")).unwrap();
    assert!(said.contains("--max-blocks") && said.contains("--duration"), "{said}");
}
