//! One cell against another of the same run, block by block.

use measure::results::{Cell, Interval, Results, Sample};
use measure::stats::{SequentialPlan, ratio_interval};

use crate::work::is_time;

/// Median and interval of `better` ÷ `worse` within blocks, at the plan's
/// level; of times, the other way round, so that above 1 is better always. `None` where fewer than two blocks have a valid figure for both.
pub(crate) fn gain(results: &Results, better: &Cell, worse: &Cell) -> Option<Interval> {
    let value = |cell: &Cell, block: u32| {
        let usable = |sample: &&Sample| sample.valid && sample.block == block && sample.value > 0.0;
        cell.samples.iter().find(usable).map(|sample| sample.value)
    };
    let ratios: Vec<f64> = worse
        .samples
        .iter()
        .filter_map(|sample| Some(value(better, sample.block)? / value(worse, sample.block)?))
        .map(|ratio| if is_time(better) { 1.0 / ratio } else { ratio })
        .collect();
    let plan = &results.plan;
    let goal = &plan.confidence;
    // A run that could stop early spent its error over its looks.
    let sequential = goal
        .looks
        .first()
        .filter(|_| goal.half_width.is_some())
        .and_then(|first| SequentialPlan::new(goal.level, *first, plan.max_blocks).ok());
    match sequential {
        Some(sequential) => sequential.interval(plan.blocks_done, &ratios).ok(),
        None => ratio_interval(&ratios, goal.level).ok(),
    }
}
