//! Compares a cell with another of the same run, block by block.

use std::cell::RefCell;
use std::collections::HashMap;

use results::stats::{SequentialPlan, ratio_interval};
use results::{Cell, Interval, Plan, Results, Sample};

use crate::work::is_time;

/// Returns median and interval of `better` ÷ `worse` within blocks, at the plan's level. For times
/// the quotient is inverted, so that above 1 is always better. `None` if fewer than two blocks have
/// a valid figure for both and a ratio.
pub(crate) fn gain(results: &Results, better: &Cell, worse: &Cell) -> Option<Interval> {
    // A shorter time is better, so the quotient is inverted.
    let (above, below) = if is_time(better) { (worse, better) } else { (better, worse) };
    quotient(results, above, below, |sample| Some(sample.value))
}

/// Returns median and interval of a figure of `above` ÷ that of `below` within blocks, at the plan's
/// level. `None` if fewer than two blocks have a valid figure for both.
pub(crate) fn quotient(
    results: &Results,
    above: &Cell,
    below: &Cell,
    figure: fn(&Sample) -> Option<f64>,
) -> Option<Interval> {
    let (of_above, of_below) = (by_block(above, figure), by_block(below, figure));
    let ratios: Vec<f64> = below
        .samples
        .iter()
        .filter_map(|sample| {
            let (above, below) = (*of_above.get(&sample.block)?, *of_below.get(&sample.block)?);
            // A block in which nothing arrived has no ratio.
            (below > 0.0).then_some(above / below)
        })
        .collect();
    let plan = &results.plan;
    let goal = &plan.confidence;
    // A run that could stop early spent its error over its interim analyses.
    let sequential = goal
        .interim_analyses
        .first()
        .zip(goal.interim_analyses.last())
        .and_then(|(first, last)| sequential_plan(goal.level, *first, *last));
    match sequential {
        // The interval must account for earlier interim analyses.
        Some(sequential) => sequential.interval(blocks(plan, above, below), &ratios).ok(),
        None => ratio_interval(&ratios, goal.level).ok(),
    }
}

/// Returns the number of blocks with samples of both.
fn blocks(plan: &Plan, above: &Cell, below: &Cell) -> u32 {
    let settled = [above, below].into_iter().filter_map(|cell| cell.settled_after);
    settled.fold(plan.blocks_done, u32::min)
}

/// Returns the first valid figure of each block.
fn by_block(cell: &Cell, figure: fn(&Sample) -> Option<f64>) -> HashMap<u32, f64> {
    let mut blocks = HashMap::new();
    for sample in cell.samples.iter().filter(|sample| sample.valid) {
        if let Some(value) = figure(sample) {
            blocks.entry(sample.block).or_insert(value);
        }
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
