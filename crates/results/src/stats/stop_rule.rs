//! The condition for ending a run: after a number of blocks; at the first interim analysis at which
//! every interval is narrow enough; or at the first at which the verdict on the change is certain.
//! Only this module decides it.

use super::decision::Decision;
use super::interval::{StatsError, ratio_interval, relative_half_width};
use super::proof::{self, WorkloadIntervals};
use super::sequential::SequentialPlan;
use crate::Interval;

/// Stop rule of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum StopRule {
    /// Stop after this many blocks, regardless of their figures.
    Blocks {
        /// Number of blocks of the run.
        blocks: u32,
        /// Coverage of every interval, 0..1.
        level: f64,
    },
    /// Stop at an interim analysis once every interval is narrow.
    Goal {
        /// Block counts and confidence of the interim analyses.
        sequential: SequentialPlan,
        /// Largest relative half-width of a narrow interval (0.05: ±5%).
        half_width: f64,
    },
    /// Stop at an interim analysis once more blocks would not change the verdict on the change
    /// (`proof.rs`).
    Proof {
        /// Block counts and confidence of the interim analyses.
        sequential: SequentialPlan,
    },
}

/// Figures of one cell so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// Ratios to the baseline of the same block.
    pub ratios: Vec<f64>,
    /// Ratios of CPU time per unit of work.
    pub demand: Vec<f64>,
    /// Whether it is a workload under the change on trial.
    pub on_trial: bool,
    /// Whether a ratio below 1 is better, as for latency.
    pub less_is_better: bool,
    /// Blocks after which it was no longer sampled: [`StopRule::settled`].
    pub settled: Option<u32>,
}

/// Interim analyses before a goal may be given up. The first one has the widest intervals.
const ANALYSES_BEFORE_GIVING_UP: usize = 2;
/// A goal that needs more than this many times the allowed blocks is given up. The first analyses
/// have the smallest share of the error, which makes their intervals up to 1.5 times as wide as the
/// last one's.
const FAR: f64 = 4.0;

/// Width of the intervals now, and its prediction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlook {
    /// Relative half-width of the widest interval (0.05: ±5%).
    pub widest: f64,
    /// Predicted width after the last block, if the noise stays: intervals narrow with the square
    /// root of the blocks.
    pub at_end: f64,
    /// Total blocks until the goal is reached, or until a first workload under the change on trial
    /// is statistically different; infinite if nothing points to a difference. `None` for other
    /// rules, and once a workload is proven better or worse.
    pub needed: Option<f64>,
}

impl StopRule {
    /// Creates a rule with a goal for the intervals' width, in at most `max_blocks` blocks.
    ///
    /// # Errors
    /// Errors of [`SequentialPlan::new`].
    pub fn goal(level: f64, half_width: f64, max_blocks: u32) -> Result<StopRule, StatsError> {
        Ok(StopRule::Goal { sequential: SequentialPlan::new(level, 2, max_blocks)?, half_width })
    }

    /// Creates a rule for changes on trial, in at most `max_blocks` blocks.
    ///
    /// # Errors
    /// Errors of [`SequentialPlan::new`].
    pub fn proof(level: f64, max_blocks: u32) -> Result<StopRule, StatsError> {
        Ok(StopRule::Proof { sequential: SequentialPlan::new(level, 2, max_blocks)? })
    }

    /// Returns the number of blocks after which every run stops.
    pub fn most_blocks(&self) -> u32 {
        match self {
            StopRule::Blocks { blocks, .. } => *blocks,
            StopRule::Goal { sequential, .. } | StopRule::Proof { sequential } => {
                sequential.last_analysis().blocks
            }
        }
    }

    /// Returns the block counts of interim analyses; empty if all blocks are always done.
    pub fn interim_analyses(&self) -> Vec<u32> {
        match self {
            StopRule::Blocks { .. } => Vec::new(),
            StopRule::Goal { sequential, .. } | StopRule::Proof { sequential } => {
                sequential.interim_analyses().iter().map(|analysis| analysis.blocks).collect()
            }
        }
    }

    /// Returns the interval of ratios for a run that has done `blocks` blocks. Ratios that are all
    /// 0 (nothing arrived in any block) have the interval from 0 to 0.
    ///
    /// # Errors
    /// Errors of [`ratio_interval`]: too few ratios.
    pub fn interval(&self, blocks: u32, ratios: &[f64]) -> Result<Interval, StatsError> {
        if !ratios.is_empty() && carries_nothing(ratios) {
            // A single such ratio has an interval, too, because more blocks would not change it.
            let (confidence, samples) = (self.level(), ratios.len());
            return Ok(Interval { median: 0.0, low: 0.0, high: 0.0, confidence, samples });
        }
        match self {
            StopRule::Blocks { level, .. } => ratio_interval(ratios, *level),
            StopRule::Goal { sequential, .. } | StopRule::Proof { sequential } => {
                sequential.interval(blocks, ratios)
            }
        }
    }

    /// Returns the width of the intervals after `blocks` blocks; `None` while no cell has one.
    pub fn outlook(&self, blocks: u32, cells: &[Series]) -> Option<Outlook> {
        let with_ratios = || cells.iter().filter(|cell| !mostly_carries_nothing(&cell.ratios));
        // Settled cells get no narrower, so they count only if no other cell is left.
        let all_settled = with_ratios().all(|cell| cell.settled.is_some());
        let counting = with_ratios().filter(|cell| all_settled || cell.settled.is_none());
        let of = |cell: &Series| self.interval(cell.settled.unwrap_or(blocks), &cell.ratios).ok();
        let widths = counting.filter_map(of);
        let widest = widths.map(|interval| relative_half_width(&interval)).reduce(f64::max)?;
        let done = f64::from(blocks);
        let at_end = widest * (done / f64::from(self.most_blocks().max(blocks))).sqrt();
        let needed = match self {
            StopRule::Goal { half_width, .. } => Some(done * (widest / half_width).powi(2)),
            StopRule::Proof { .. } => {
                let seen = self.seen(blocks, cells);
                let proven = seen.iter().any(|one| one.proven().is_some());
                let to_tell = seen.iter().filter_map(|one| one.blocks_to_tell(blocks));
                // Nothing is left to wait for once a workload is proven.
                to_tell.reduce(f64::min).filter(|_| !proven)
            }
            StopRule::Blocks { .. } => None,
        };
        Some(Outlook { widest, at_end, needed })
    }

    /// Whether the goal is so far away that continuing is useless. Any reason to stop at an interim
    /// analysis keeps the coverage.
    fn is_out_of_reach(&self, blocks: u32, cells: &[Series]) -> bool {
        let StopRule::Goal { sequential, .. } = self else { return false };
        let analyses = sequential.interim_analyses();
        let at = analyses.iter().position(|analysis| analysis.blocks == blocks);
        // The first interim analyses have wide intervals: giving up then would be premature.
        if at.is_none_or(|at| at < ANALYSES_BEFORE_GIVING_UP || at + 1 == analyses.len()) {
            return false;
        }
        let most = f64::from(self.most_blocks());
        let needed = self.outlook(blocks, cells).and_then(|outlook| outlook.needed);
        needed.is_some_and(|needed| needed > FAR * most)
    }

    /// Returns the intervals of each workload under the change on trial.
    fn seen(&self, blocks: u32, cells: &[Series]) -> Vec<WorkloadIntervals> {
        let tried = cells.iter().filter(|cell| cell.on_trial);
        let seen = |cell: &Series| {
            // Use the interval of the analysis at which the cell settled: its ratios belong to no
            // other.
            let blocks = cell.settled.unwrap_or(blocks);
            let interval = |ratios: &[f64]| self.interval(blocks, ratios).ok();
            WorkloadIntervals {
                worth: interval(&cell.ratios).map(|ratio| ratio.worth(cell.less_is_better)),
                demand: interval(&cell.demand),
            }
        };
        tried.map(seen).collect()
    }

    /// Returns which cells under the change on trial need no more samples after `blocks` blocks
    /// although the trial continues: a value for each cell, false between interim analyses. Each
    /// analysis's interval is valid whatever ends sampling there, so a settled cell keeps the
    /// interval of that analysis.
    pub fn settled(&self, blocks: u32, cells: &[Series]) -> Vec<bool> {
        let mut settled = vec![false; cells.len()];
        // Other rules measure all cells until the end.
        let StopRule::Proof { sequential } = self else { return settled };
        if sequential.confidence_at(blocks).is_none() {
            return settled;
        }
        let tried = cells.iter().zip(&mut settled).filter(|(cell, _)| cell.on_trial);
        for ((_, settled), now) in tried.zip(proof::settled(&self.seen(blocks, cells))) {
            *settled = now;
        }
        settled
    }

    fn level(&self) -> f64 {
        match self {
            StopRule::Blocks { level, .. } => *level,
            StopRule::Goal { sequential, .. } | StopRule::Proof { sequential } => {
                sequential.level()
            }
        }
    }

    /// Decides after `blocks` complete blocks from the figures of each cell so far. A cell without
    /// ratios does not count for a goal: it is a baseline, or it failed and always will. A cell
    /// that carries nothing in most blocks does not count either, because no interval is narrow
    /// relative to a median of 0.
    pub fn decide(&self, blocks: u32, cells: &[Series]) -> Decision {
        match self {
            StopRule::Blocks { blocks: all, .. } if blocks >= *all => Decision::LastBlock,
            StopRule::Blocks { .. } => Decision::Continue,
            // Between interim analyses nothing is judged, so nothing is computed.
            StopRule::Goal { sequential, .. } | StopRule::Proof { sequential }
                if sequential.confidence_at(blocks).is_none() =>
            {
                Decision::Continue
            }
            StopRule::Proof { .. } if blocks >= self.most_blocks() => Decision::LastBlock,
            StopRule::Proof { .. } if proof::is_decided(&self.seen(blocks, cells)) => {
                Decision::Decided
            }
            StopRule::Proof { .. } => Decision::Continue,
            StopRule::Goal { .. } if self.is_out_of_reach(blocks, cells) => Decision::OutOfReach,
            StopRule::Goal { sequential, half_width } => {
                let with_ratios = cells.iter().map(|cell| &cell.ratios);
                let with_ratios = with_ratios.filter(|ratios| !mostly_carries_nothing(ratios));
                // A cell with too few ratios has no interval yet, so the goal is not reached.
                let intervals: Result<Vec<Interval>, StatsError> =
                    with_ratios.map(|ratios| sequential.interval(blocks, ratios)).collect();
                sequential.decide(blocks, &intervals.unwrap_or_default(), *half_width)
            }
        }
    }
}

/// Whether no ratio is above 0.
fn carries_nothing(ratios: &[f64]) -> bool {
    ratios.iter().all(|ratio| *ratio == 0.0)
}

/// Whether the median of the ratios is 0, or there is none.
fn mostly_carries_nothing(ratios: &[f64]) -> bool {
    let nothing = ratios.iter().filter(|ratio| **ratio == 0.0).count();
    ratios.is_empty() || nothing > ratios.len() - nothing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ratios: impl IntoIterator<Item = f64>) -> Series {
        Series { ratios: ratios.into_iter().collect(), ..Series::default() }
    }

    fn narrow(samples: usize) -> Series {
        of((0..samples).map(|at| 1.0 + at as f64 * 1e-4))
    }

    fn wide(samples: usize) -> Series {
        of((0..samples).map(|at| 1.0 + at as f64))
    }

    /// A change on trial after this many blocks, with these medians.
    fn tried(samples: u32, carried: f64, demand: f64) -> Series {
        let around = |middle: f64| {
            (0..samples).map(|at| middle * (1.0 + (f64::from(at % 5) - 2.0) * 0.02)).collect()
        };
        Series { ratios: around(carried), demand: around(demand), on_trial: true, ..of([]) }
    }

    #[test]
    fn a_number_of_blocks_is_that_number() {
        let rule = StopRule::Blocks { blocks: 5, level: 0.95 };
        assert_eq!((rule.most_blocks(), rule.interim_analyses()), (5, vec![]));
        assert_eq!(rule.decide(4, &[narrow(4)]), Decision::Continue);
        assert_eq!(rule.decide(5, &[wide(5)]), Decision::LastBlock);
    }

    #[test]
    fn a_goal_is_judged_at_its_looks_over_all_cells() {
        let rule = StopRule::goal(0.95, 0.05, 40).unwrap();
        let first = rule.interim_analyses()[0];
        let n = first as usize;
        assert_eq!(rule.most_blocks(), 40);
        assert_eq!(rule.decide(first, &[narrow(n), of([])]), Decision::GoalReached);
        assert_eq!(rule.decide(first + 1, &[narrow(n + 1)]), Decision::Continue, "no analysis");
        assert_eq!(rule.decide(first, &[narrow(n), wide(n)]), Decision::Continue);
        // One ratio makes no interval.
        assert_eq!(rule.decide(first, &[narrow(n), of([1.0])]), Decision::Continue);
        assert_eq!(rule.decide(first, &[]), Decision::Continue);
    }

    #[test]
    fn a_path_that_carries_nothing_has_a_ratio_of_zero_and_no_say() {
        for rule in
            [StopRule::Blocks { blocks: 5, level: 0.95 }, StopRule::goal(0.95, 0.05, 40).unwrap()]
        {
            let interval = rule.interval(5, &[0.0; 5]).unwrap();
            let zero = (interval.low, interval.median, interval.high);
            assert_eq!((zero, interval.confidence, interval.samples), ((0.0, 0.0, 0.0), 0.95, 5));
        }
        let rule = StopRule::goal(0.95, 0.05, 40).unwrap();
        let n = rule.interim_analyses()[0];
        let nothing = vec![0.0; n as usize];
        let cells = [narrow(n as usize), of(nothing.clone())];
        assert_eq!(rule.decide(n, &cells), Decision::GoalReached);
        // A cell that rarely carries anything does not count either.
        let seldom = |n: usize| of((0..n).map(|at| if at % 3 == 0 { 0.1 } else { 0.0 }));
        for analysis in rule.interim_analyses() {
            let cells = [narrow(analysis as usize), seldom(analysis as usize)];
            assert_eq!(rule.decide(analysis, &cells), Decision::GoalReached);
            assert!(rule.outlook(analysis, &cells).unwrap().widest < 0.01);
        }
        // A single block in which nothing arrived does not matter.
        let once: Vec<f64> =
            narrow(12).ratios.into_iter().map(|r| if r == 1.0 { 0.0 } else { r }).collect();
        let rule = StopRule::Blocks { blocks: 12, level: 0.95 };
        assert!(relative_half_width(&rule.interval(12, &once).unwrap()) < 0.01);
    }

    #[test]
    fn a_goal_that_is_far_out_of_reach_is_given_up_at_the_third_look_not_before() {
        let rule = StopRule::goal(0.95, 0.05, 40).unwrap();
        let analyses = rule.interim_analyses();
        let at = |analysis: usize, ratios: fn(usize) -> Series| {
            rule.decide(
                analyses[analysis],
                &[narrow(analyses[analysis] as usize), ratios(analyses[analysis] as usize)],
            )
        };
        assert_eq!([at(0, wide), at(1, wide)], [Decision::Continue; 2]);
        assert_eq!(at(2, wide), Decision::OutOfReach);
        assert_eq!(rule.decide(analyses[2] + 1, &[wide(14)]), Decision::Continue, "no analysis");
        // Close enough: ±10% for a goal of ±5%.
        let near = |samples: usize| of((0..samples).map(|at| 1.0 + (at % 5) as f64 * 0.05));
        assert_eq!(at(2, near), Decision::Continue);
        assert_eq!(rule.decide(40, &[wide(40)]), Decision::LastBlock, "is that, too");
        let blocks = StopRule::Blocks { blocks: 20, level: 0.95 };
        assert_eq!(blocks.decide(13, &[wide(13)]), Decision::Continue);
    }

    #[test]
    fn the_outlook_narrows_with_the_square_root_of_the_blocks() {
        let rule = StopRule::Blocks { blocks: 36, level: 0.95 };
        assert_eq!(rule.outlook(1, &[of([1.0]), of([])]), None);
        let outlook = rule.outlook(9, &[narrow(9), wide(9)]).unwrap();
        assert!((outlook.at_end - outlook.widest / 2.0).abs() < 1e-12, "{outlook:?}");
        assert_eq!(outlook.needed, None);
        let goal = StopRule::goal(0.95, 0.05, 40).unwrap();
        let outlook = goal.outlook(10, &[wide(10)]).unwrap();
        let expected = 10.0 * (outlook.widest / 0.05).powi(2);
        assert!((outlook.needed.unwrap() - expected).abs() < 1e-9, "{outlook:?}");
    }

    #[test]
    fn the_last_analysis_stops_and_reports_whether_the_goal_was_reached() {
        let rule = StopRule::goal(0.95, 0.05, 12).unwrap();
        assert_eq!(rule.decide(12, &[narrow(12)]), Decision::GoalReached);
        assert_eq!(rule.decide(12, &[wide(12)]), Decision::LastBlock);
        assert_eq!(rule.decide(12, &[of([])]), Decision::LastBlock);
        assert_eq!(rule.decide(12, &[narrow(12), of([1.0])]), Decision::LastBlock);
    }

    #[test]
    fn a_trial_ends_at_the_first_look_that_proves_it_and_not_between() {
        let rule = StopRule::proof(0.95, 20).unwrap();
        let analyses = rule.interim_analyses();
        let first = analyses[0];
        assert!(first < 10 && rule.most_blocks() == 20, "{analyses:?}");
        let aa = narrow(first as usize);
        for worth in [1.1, 0.9] {
            let cells = [of([]), aa.clone(), tried(first, worth, 1.0)];
            assert_eq!(rule.decide(first, &cells), Decision::Decided);
            assert_eq!(rule.decide(first + 1, &[tried(first + 1, worth, 1.0)]), Decision::Continue);
        }
        // A gain does not decide while another workload may lose; a loss does.
        let around_1 = (0..first).map(|at| 0.5 + f64::from(at) / f64::from(first));
        let open = Series { on_trial: true, ..of(around_1) };
        let mut changed = tried(first, 1.4, 1.0);
        assert_eq!(rule.decide(first, &[changed.clone(), open.clone()]), Decision::Continue);
        changed.less_is_better = true;
        assert_eq!(rule.decide(first, &[changed, open]), Decision::Decided);
        assert_eq!(rule.decide(first, &[aa]), Decision::Continue, "nothing on trial");
        assert_eq!(rule.decide(20, &[tried(20, 1.1, 1.0)]), Decision::LastBlock);
        let failed = Series { on_trial: true, ..Series::default() };
        assert_eq!(rule.decide(analyses[1], &[failed]), Decision::Continue, "no interval");
    }

    #[test]
    fn a_settled_workload_keeps_the_interval_of_its_look() {
        let rule = StopRule::proof(0.95, 30).unwrap();
        let analyses = rule.interim_analyses();
        let [first, second] = [analyses[0], analyses[1]];
        let gain = Series {
            on_trial: true,
            ..of((0..first).map(|at| 1.6 + 0.01 * f64::from(at) / f64::from(first)))
        };
        let open = |blocks: u32| {
            let spread = (0..blocks).map(|at| 0.6 + 0.8 * f64::from(at) / f64::from(blocks));
            Series { on_trial: true, ..of(spread) }
        };
        let baseline = of([]);
        let cells = [baseline.clone(), gain.clone(), open(first)];
        assert_eq!(rule.settled(first, &cells), [false, true, false]);
        assert_eq!(rule.settled(first + 1, &cells), [false; 3], "no analysis");
        let goal = StopRule::goal(0.95, 0.05, 30).unwrap();
        assert_eq!(goal.settled(goal.interim_analyses()[0], &cells), [false; 3]);
        // It stays settled.
        let gain = Series { settled: Some(first), ..gain };
        let cells = [baseline, gain.clone(), open(second)];
        assert_eq!(rule.settled(second, &cells), [false, true, false]);
        // A cell that settled at the third analysis.
        let third = analyses[2];
        let later = Series { settled: Some(third), on_trial: true, ..narrow(third as usize) };
        let [of_its_look, of_the_last] =
            [third, 30].map(|blocks| rule.interval(blocks, &later.ratios).ok());
        assert_ne!(of_its_look, of_the_last);
        assert_eq!(rule.seen(30, &[later])[0].worth, of_its_look);
        // The outlook covers only cells that still take samples.
        let alone = rule.outlook(second, &[open(second)]).unwrap();
        assert_eq!(rule.outlook(second, &cells).unwrap().widest, alone.widest);
        // Only settled cells are left: all count.
        assert!(rule.outlook(second, &cells[1..2]).is_some());
        let cells = [cells[1].clone(), tried(second, 1.0, 1.0)];
        assert_eq!(rule.decide(second, &cells), Decision::Decided);
    }

    #[test]
    fn a_trial_of_nothing_ends_when_it_is_known_to_be_nothing() {
        let rule = StopRule::proof(0.95, 20).unwrap();
        let first = rule.interim_analyses()[0];
        let at = |worth: f64, demand: f64| rule.decide(first, &[tried(first, worth, demand)]);
        assert_eq!(at(1.0, 1.0), Decision::Decided);
        assert_eq!(at(1.0, 0.9), Decision::Decided, "less CPU time is proven");
        assert_eq!(at(1.0, 0.975), Decision::Continue, "its CPU time may be");
        let needed = |worth| rule.outlook(10, &[tried(10, worth, 1.0)]).unwrap().needed;
        assert_eq!(needed(1.1), None, "proven");
        assert!(needed(1.015).is_some_and(|needed| (10.0..200.0).contains(&needed)));
        assert!(needed(1.0).is_some_and(|needed| needed > 1e6));
    }
}
