//! Interim analyses: when a run may stop, and the interval that is valid if it stopped because the
//! interval was narrow.
//!
//! Checking after every block and stopping at the first narrow interval selects runs whose noise
//! happened to be small, and their intervals miss the truth more often than stated. Here the blocks
//! of the interim analyses are fixed in advance, and the error probability is spent over them.
//!
//! The cost of each interim analysis is computed exactly. The number of ratios below their true
//! median after n blocks is a random walk with steps 0 and 1, whatever the noise. An
//! order-statistic interval misses exactly if that walk is outside its bounds there
//! (`stats/sign.rs`). So the probability that *any* interval misses is that of a random walk
//! leaving a known corridor, and is computed step by step below. It is kept at 1 − level at most.
//! Then the interval at which the run stopped covers at the level, for any reason to stop, with any
//! number of cells judged together.
//!
//! That rate holds over all runs. It cannot hold for the few that stop early by luck although the
//! noise is far too large for the goal, because no rule can recognise them. But at most 1 − level
//! of all runs are wrong.

use super::decision::Decision;
use super::interval::{StatsError, check_confidence, ratio_interval, relative_half_width};
use super::sign::SignInterval;
use crate::Interval;

/// Growth of the number of blocks between interim analyses. Intervals narrow with the square root
/// of the blocks, so more frequent analyses only spend error probability.
const GROWTH: f64 = 1.25;

/// An interim analysis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InterimAnalysis {
    /// Number of blocks done.
    pub blocks: u32,
    /// Confidence (0..1) for [`ratio_interval`] at this analysis. It is above the plan's level,
    /// because all analyses share one error probability.
    pub confidence: f64,
}

/// Interim analyses, fixed in advance, at which a run may stop.
#[derive(Debug, Clone, PartialEq)]
pub struct SequentialPlan {
    level: f64,
    analyses: Vec<InterimAnalysis>,
}

impl SequentialPlan {
    /// Plans interim analyses between `min_blocks` and `max_blocks` (the last one). Their intervals
    /// cover with probability `level` (0..1) wherever the run stops.
    ///
    /// The first analysis comes when an interval can be narrow enough to matter: at 95% with
    /// `max_blocks` 40, after 8 blocks. If `max_blocks` is too small for more than one, there is
    /// only the last one.
    ///
    /// # Errors
    /// [`StatsError::Confidence`]; [`StatsError::Blocks`] if `max_blocks` is below `min_blocks` or
    /// below 2.
    pub fn new(level: f64, min_blocks: u32, max_blocks: u32) -> Result<Self, StatsError> {
        check_confidence(level)?;
        if max_blocks < min_blocks.max(2) {
            return Err(StatsError::Blocks { min_blocks: min_blocks.max(2), max_blocks });
        }
        let mut analyses = Vec::new();
        let mut corridor = Corridor::new();
        let mut blocks = min_blocks.max(2);
        while blocks < max_blocks {
            // Spend error in proportion to the blocks done (Lan and DeMets 1983).
            let budget = (1.0 - level) * f64::from(blocks) / f64::from(max_blocks);
            match corridor.look(blocks, budget) {
                Some(interval) => {
                    analyses.push(InterimAnalysis {
                        blocks,
                        confidence: interval.coverage(blocks as usize),
                    });
                    let next = (f64::from(blocks) * GROWTH).ceil() as u32;
                    // Skip an analysis shortly before the last one.
                    let near = f64::from(next) * GROWTH.sqrt() > f64::from(max_blocks);
                    blocks = if near { max_blocks } else { next };
                }
                // Too few blocks for an interval within the budget: no analysis, and nothing spent.
                None => blocks += 1,
            }
        }
        let last = corridor.look(max_blocks, 1.0 - level);
        // Below 6 blocks at 95% there is no order-statistic interval and no earlier analysis
        // either, so the whole level is unspent.
        let confidence = last.map_or(level, |interval| interval.coverage(max_blocks as usize));
        analyses.push(InterimAnalysis { blocks: max_blocks, confidence });
        // A single analysis may use the whole level.
        if analyses.len() == 1 {
            analyses[0].confidence = level;
        }
        Ok(SequentialPlan { level, analyses })
    }

    /// Returns the coverage (0..1) of every interval at the end.
    pub fn level(&self) -> f64 {
        self.level
    }

    /// Returns the interim analyses in order: at least one, the last at `max_blocks`.
    pub fn interim_analyses(&self) -> &[InterimAnalysis] {
        &self.analyses
    }

    /// Returns the confidence to use when `blocks` blocks are done. `None` if there is no analysis
    /// here and the run continues regardless.
    pub fn confidence_at(&self, blocks: u32) -> Option<f64> {
        self.analyses
            .iter()
            .find(|analysis| analysis.blocks == blocks)
            .map(|analysis| analysis.confidence)
    }

    /// Returns median ratio and interval to report for a run that ended after `blocks` blocks. Its
    /// `confidence` is the plan's level.
    ///
    /// Between analyses (an interrupted run, independent of its values) the error reserved for the
    /// next one is used. `ratios` may be fewer than `blocks` if samples were discarded.
    ///
    /// # Errors
    /// Errors of [`ratio_interval`].
    pub fn interval(&self, blocks: u32, ratios: &[f64]) -> Result<Interval, StatsError> {
        let analysis = self.analyses.iter().find(|analysis| analysis.blocks >= blocks);
        let confidence = analysis.unwrap_or(self.last_analysis()).confidence;
        Ok(Interval { confidence: self.level, ..ratio_interval(ratios, confidence)? })
    }

    /// Returns the last analysis, at which every run stops.
    pub fn last_analysis(&self) -> &InterimAnalysis {
        // `new` creates at least one.
        &self.analyses[self.analyses.len() - 1]
    }

    /// Decides after `blocks` complete blocks. The goal is reached at an interim analysis if there
    /// are intervals and each has a [`relative_half_width`] of at most `half_width` (0.05: ±5%).
    /// The last analysis stops every run.
    pub fn decide(&self, blocks: u32, intervals: &[Interval], half_width: f64) -> Decision {
        let narrow = !intervals.is_empty()
            && intervals.iter().all(|interval| relative_half_width(interval) <= half_width);
        if narrow && self.confidence_at(blocks).is_some() {
            Decision::GoalReached
        } else if blocks >= self.last_analysis().blocks {
            Decision::LastBlock
        } else {
            Decision::Continue
        }
    }
}

/// Random walk of "ratios below their median", restricted to paths on which no interval has missed
/// so far.
struct Corridor {
    /// Probability of each count below, without a miss so far.
    inside: Vec<f64>,
    /// Bound on the probability of a miss at any analysis so far.
    spent: f64,
}

impl Corridor {
    fn new() -> Self {
        Corridor { inside: vec![1.0], spent: 0.0 }
    }

    /// Continues to `blocks` and takes the narrowest interval that keeps the error spent so far
    /// within `budget`. `None` and nothing spent if there is none.
    fn look(&mut self, blocks: u32, budget: f64) -> Option<SignInterval> {
        let n = blocks as usize;
        while self.inside.len() <= n {
            let mut next = vec![0.0; self.inside.len() + 1];
            for (below, probability) in self.inside.iter().enumerate() {
                next[below] += 0.5 * probability;
                next[below + 1] += 0.5 * probability;
            }
            self.inside = next;
        }
        let mut best = None;
        let mut miss = 0.0;
        for rank in 1..=n / 2 {
            miss += self.inside[rank - 1] + self.inside[n + 1 - rank];
            // Higher ranks only miss more often.
            if self.spent + miss > budget {
                break;
            }
            best = Some((SignInterval { rank, averaged: false }, miss));
            // Averaged ends miss in at most half of the cases one step further in. The argument of
            // `stats/sign.rs` holds for every path of signs and its mirror image, so also for the
            // remaining paths.
            let half = 0.5 * (self.inside[rank] + self.inside[n - rank]);
            if rank < n / 2 && self.spent + miss + half <= budget {
                best = Some((SignInterval { rank, averaged: true }, miss + half));
            }
        }
        let (interval, cost) = best?;
        self.spent += cost;
        for below in 0..interval.rank {
            self.inside[below] = 0.0;
            self.inside[n - below] = 0.0;
        }
        Some(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_ordered_and_end_at_the_last_block() {
        for level in [0.9, 0.95, 0.99] {
            for max_blocks in 2..120 {
                let plan = SequentialPlan::new(level, 5.min(max_blocks), max_blocks).unwrap();
                let blocks: Vec<u32> =
                    plan.interim_analyses().iter().map(|analysis| analysis.blocks).collect();
                assert!(blocks.is_sorted_by(|a, b| a < b), "{blocks:?}");
                assert_eq!(blocks.last(), Some(&max_blocks));
                assert!(
                    plan.interim_analyses()
                        .iter()
                        .all(|analysis| analysis.confidence >= level - 1e-9)
                );
            }
        }
    }

    #[test]
    fn forty_blocks_at_95_percent() {
        let plan = SequentialPlan::new(0.95, 5, 40).unwrap();
        let blocks: Vec<u32> =
            plan.interim_analyses().iter().map(|analysis| analysis.blocks).collect();
        assert_eq!(blocks, [8, 10, 13, 17, 22, 28, 35, 40]);
        assert_eq!(plan.confidence_at(9), None);
        assert!(plan.confidence_at(8).unwrap() > 0.99);
        // The last analysis is nearly as good as a fixed run of 40 blocks (96.2%).
        assert!(plan.confidence_at(40).unwrap() < 0.985);
    }

    #[test]
    fn too_few_blocks_for_looks_give_one_at_the_plain_level() {
        for max_blocks in [2, 5, 6] {
            let plan = SequentialPlan::new(0.95, 2, max_blocks).unwrap();
            assert_eq!(
                plan.interim_analyses(),
                [InterimAnalysis { blocks: max_blocks, confidence: 0.95 }]
            );
        }
    }

    #[test]
    fn a_plan_that_cannot_be_is_an_error() {
        assert_eq!(
            SequentialPlan::new(0.95, 10, 8),
            Err(StatsError::Blocks { min_blocks: 10, max_blocks: 8 })
        );
        assert!(SequentialPlan::new(0.95, 0, 1).is_err());
        assert!(SequentialPlan::new(95.0, 5, 40).is_err());
    }

    #[test]
    fn stops_only_at_looks_and_only_when_all_are_narrow() {
        let plan = SequentialPlan::new(0.95, 5, 40).unwrap();
        let narrow = Interval { median: 1.0, low: 0.97, high: 1.03, confidence: 0.95, samples: 8 };
        let wide = Interval { high: 1.06, ..narrow };
        assert_eq!(plan.decide(8, &[narrow, narrow], 0.05), Decision::GoalReached);
        assert_eq!(plan.decide(9, &[narrow], 0.05), Decision::Continue, "9 is not an analysis");
        assert_eq!(plan.decide(8, &[narrow, wide], 0.05), Decision::Continue);
        assert_eq!(plan.decide(8, &[], 0.05), Decision::Continue);
        assert_eq!(plan.decide(40, &[wide], 0.05), Decision::LastBlock, "ends every run");
    }

    #[test]
    fn reported_confidence_is_the_level_and_the_interval_is_wider_than_a_fixed_run() {
        let plan = SequentialPlan::new(0.95, 5, 40).unwrap();
        let ratios: Vec<f64> = (1..=22).map(|i| 1.0 + f64::from(i) / 1000.0).collect();
        let planned = plan.interval(22, &ratios).unwrap();
        let fixed = ratio_interval(&ratios, 0.95).unwrap();
        assert_eq!(planned.confidence, 0.95);
        assert!(planned.low < fixed.low && planned.high > fixed.high);
        // Interrupted after 20 of 40: uses the error of the analysis at 22.
        let interrupted = plan.interval(20, &ratios[..20]).unwrap();
        let next = ratio_interval(&ratios[..20], plan.confidence_at(22).unwrap()).unwrap();
        assert_eq!((interrupted.low, interrupted.high), (next.low, next.high));
    }
}
