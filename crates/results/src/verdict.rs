//! Verdicts on a setting that was tried: each workload is better, worse, or not statistically
//! different.

use serde::Serialize;

use crate::cell::Cell;
use crate::interval::Interval;
use crate::names::Unit;
use crate::sample::Sample;
use crate::stats::{Proven, proven, separation_p_value};

/// Verdict on a setting, at the confidence of the run's intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// More throughput or transactions, or less latency at a load. If that is not statistically
    /// different, less CPU time per unit of work. Or the path carries traffic only with the
    /// setting.
    Better,
    /// Less throughput or transactions, or more latency; or the path carries traffic only without
    /// the setting.
    Worse,
    /// No difference is proven at this confidence.
    Undecided,
    /// No comparable samples.
    Unmeasured,
}

/// Verdict on one workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Judged {
    /// Index of the changed cell among the run's cells.
    pub cell: usize,
    /// Verdict on that workload.
    pub verdict: Verdict,
    /// How often each side carried the load, if there is no ratio because one side never did.
    pub carried: Option<Carried>,
    /// Ratio of CPU time per unit of work, if that proves the verdict.
    pub cpu: Option<Interval>,
}

/// How often the path carried the load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Carried {
    /// Samples as found, and how many of them carried the load.
    pub as_found: (usize, usize),
    /// Samples with the change, and how many of them carried the load.
    pub changed: (usize, usize),
    /// Probability of this split by chance alone (Fisher's exact test, two-sided).
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0, "maximum" = 1)))]
    pub p_value: f64,
}

/// Returns the number of blocks that prove a difference at this confidence (0..1), if one side
/// fails in all of them and the other in none.
pub fn blocks_to_prove(confidence: f64) -> usize {
    let proves = |blocks: &usize| separation_p_value(*blocks, *blocks) <= 1.0 - confidence;
    (1..64).find(proves).unwrap_or(64)
}

/// Judges every cell with a setting against the same path as found.
pub fn judge(cells: &[Cell], confidence: f64) -> Vec<Judged> {
    let tried = cells.iter().enumerate().filter(|(_, cell)| cell.setting.is_some());
    tried.map(|(at, cell)| judge_one(cells, at, cell, confidence)).collect()
}

fn judge_one(cells: &[Cell], at: usize, cell: &Cell, confidence: f64) -> Judged {
    if let Some(ratio) = worth(cell) {
        let demand = cell.service_demand.as_ref().and_then(|demand| demand.ratio);
        let (verdict, cpu) = decide(ratio, demand);
        return Judged { cell: at, verdict, carried: None, cpu };
    }
    let found = || cells.iter().filter(|other| is_as_found(cell, other));
    let last = |of: &mut dyn Iterator<Item = &Sample>| of.map(|sample| sample.block).max();
    // Count only blocks in which both sides were tried: a side that never works is given up.
    let until =
        last(&mut found().flat_map(|cell| &cell.samples)).min(last(&mut cell.samples.iter()));
    let count = |samples: &mut dyn Iterator<Item = &Sample>| {
        samples
            .filter(|sample| Some(sample.block) <= until)
            .fold((0, 0), |(all, proved), sample| {
                (all + 1, proved + usize::from(sample.path_proved))
            })
    };
    let as_found = count(&mut found().flat_map(|cell| &cell.samples));
    let changed = count(&mut cell.samples.iter());
    let (side, failed, worked) = match (as_found, changed) {
        ((a, 0), (b, proved)) if b == proved => (Verdict::Better, a, b),
        ((a, proved), (b, 0)) if a == proved => (Verdict::Worse, b, a),
        // Mixed results on a side allow no such test.
        _ => return Judged { cell: at, verdict: Verdict::Unmeasured, carried: None, cpu: None },
    };
    let p_value = separation_p_value(failed, worked);
    let verdict = if p_value <= 1.0 - confidence { side } else { Verdict::Undecided };
    let carried = Some(Carried { as_found, changed, p_value });
    Judged { cell: at, verdict, carried, cpu: None }
}

fn decide(worth: Interval, demand: Option<Interval>) -> (Verdict, Option<Interval>) {
    match proven(&worth, demand.as_ref()) {
        Some(Proven::More) => (Verdict::Better, None),
        Some(Proven::LessCpu) => (Verdict::Better, demand),
        Some(Proven::Less) => (Verdict::Worse, None),
        None => (Verdict::Undecided, None),
    }
}

/// Whether `other` is `cell` without its setting.
fn is_as_found(cell: &Cell, other: &Cell) -> bool {
    let key = |cell: &Cell| {
        let Cell { mtu, message_bytes, flows, outstanding, socket_buffer_bytes, .. } = *cell;
        (mtu, message_bytes, flows, outstanding, socket_buffer_bytes, cell.gso, cell.beside)
    };
    let names =
        |cell: &Cell| (cell.mode.clone(), cell.offload, cell.workload, cell.engine, cell.unit);
    // A load in percent is another rate on each path.
    let load = |cell: &Cell| {
        cell.offered
            .map(|offered| (offered.percent, offered.percent.map_or(offered.per_s, |_| 0.0)))
    };
    other.setting.is_none()
        && (key(cell), names(cell), load(cell)) == (key(other), names(other), load(other))
}

/// Whether a smaller value is better, as for latency at a load.
pub fn is_time(cell: &Cell) -> bool {
    cell.unit == Unit::Microseconds
}

/// Returns a cell's ratio, inverted for latency so that above 1 is always better.
pub fn worth(cell: &Cell) -> Option<Interval> {
    cell.ratio.map(|ratio| ratio.worth(is_time(cell)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_decides_before_cpu_time() {
        let interval = |low: f64, high: f64| {
            let median = f64::midpoint(low, high);
            Interval { median, low, high, confidence: 0.95, samples: 10 }
        };
        let (more, less, same) = (interval(1.1, 1.2), interval(0.8, 0.9), interval(0.9, 1.1));
        for (worth, demand, verdict, by_cpu) in [
            (more, Some(more), Verdict::Better, false),
            (less, Some(less), Verdict::Worse, false),
            (same, Some(less), Verdict::Better, true),
            (same, Some(more), Verdict::Undecided, false),
            (same, Some(same), Verdict::Undecided, false),
            (same, None, Verdict::Undecided, false),
        ] {
            let (decided, cpu) = decide(worth, demand);
            assert_eq!((decided, cpu.is_some()), (verdict, by_cpu), "{worth:?} {demand:?}");
        }
    }
}
