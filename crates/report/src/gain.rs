//! Compares a cell with another of the same run, block by block.

use std::cell::RefCell;
use std::collections::HashMap;

use results::stats::{SequentialPlan, ratio_interval};
use results::{Cell, Interval, Plan, Results};

use crate::work::is_time;

/// Returns median and interval of `better` ÷ `worse` within blocks, at the plan's level. For times
/// the quotient is inverted, so that above 1 is always better. `None` if fewer than two blocks have
/// a valid figure for both and a ratio.
pub(crate) fn gain(results: &Results, better: &Cell, worse: &Cell) -> Option<Interval> {
    let (of_better, of_worse) = (by_block(better), by_block(worse));
    let ratios: Vec<f64> = worse
        .samples
        .iter()
        .filter_map(|sample| {
            let (better_value, worse_value) =
                (*of_better.get(&sample.block)?, *of_worse.get(&sample.block)?);
            // A shorter time is better, so the quotient is inverted.
            let (above, below) = match is_time(better) {
                true => (worse_value, better_value),
                false => (better_value, worse_value),
            };
            // A block in which nothing arrived has no ratio.
            (below > 0.0).then_some(above / below)
        })
        .collect();
    let plan = &results.plan;
    let goal = &plan.confidence;
    // A run that could stop early spent its error over its interim analyses.
    let sequential = goal
        .looks
        .first()
        .zip(goal.looks.last())
        .and_then(|(first, last)| sequential_plan(goal.level, *first, *last));
    match sequential {
        // The interval must account for earlier interim analyses.
        Some(sequential) => sequential.interval(blocks(plan, better, worse), &ratios).ok(),
        None => ratio_interval(&ratios, goal.level).ok(),
    }
}

/// Returns the number of blocks with samples of both.
fn blocks(plan: &Plan, better: &Cell, worse: &Cell) -> u32 {
    let settled = [better, worse].into_iter().filter_map(|cell| cell.settled_after);
    settled.fold(plan.blocks_done, u32::min)
}

/// Returns the first valid value of each block.
fn by_block(cell: &Cell) -> HashMap<u32, f64> {
    let mut blocks = HashMap::new();
    for sample in cell.samples.iter().filter(|sample| sample.valid) {
        blocks.entry(sample.block).or_insert(sample.value);
    }
    blocks
}

/// Returns the plan of interim analyses, cached for a file because its cost is quadratic in the
/// blocks.
fn sequential_plan(level: f64, first: u32, max_blocks: u32) -> Option<SequentialPlan> {
    type Known = Option<((u64, u32, u32), Option<SequentialPlan>)>;
    thread_local! {
        static LAST: RefCell<Known> = const { RefCell::new(None) };
    }
    let key = (level.to_bits(), first, max_blocks);
    LAST.with_borrow_mut(|last| match last {
        Some((known, plan)) if *known == key => plan.clone(),
        _ => {
            let plan = SequentialPlan::new(level, first, max_blocks).ok();
            *last = Some((key, plan.clone()));
            plan
        }
    })
}
