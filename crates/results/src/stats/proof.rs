//! Judges the intervals of a change on trial: proven, certainly small, or open. Both the verdict on
//! a run and the decision to end it early come from here.
//!
//! Intervals come from a [`SequentialPlan`](super::SequentialPlan): together they cover the truth
//! at the plan's level, whatever the reason to stop at an interim analysis. So ending a trial early
//! causes no false proof.

use super::interval::relative_half_width;
use crate::Interval;

/// A trial ends once the change is certain to matter less than this factor in either direction.
/// More blocks could at most prove a negligible effect.
///
/// Predicting the last block's interval would end more trials without effect. But the first
/// intervals are as wide as their extreme ratios: under fluctuating load, such a rule gave up half
/// of the changes of 10% that all blocks prove (`measure/src/run/simulated.rs`).
pub const FELT: f64 = 1.05;
/// Share of a proven gain that other workloads must certainly not lose before the gain ends a
/// trial.
const OF_THE_GAIN: f64 = 0.25;
/// A gain counts as this much at most: however large it is, it never justifies an unseen loss of
/// more than a quarter of another workload's speed.
const MOST_GAIN: f64 = 1.0;

/// Intervals of one workload under the change, at an interim analysis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WorkloadIntervals {
    /// Ratio of throughput, or of latency inverted so that above 1 is better; `None` without one.
    pub worth: Option<Interval>,
    /// Ratio of CPU time per unit of work.
    pub demand: Option<Interval>,
}

/// Proof from a workload's intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proven {
    /// Higher throughput.
    More,
    /// Throughput is not statistically different, and CPU time per unit of work is lower.
    LessCpu,
    /// Lower throughput.
    Less,
}

/// Judges throughput. If it is not statistically different, judges the CPU time per unit of work,
/// which many changes save on a path limited by something else. Higher CPU time does not count
/// against a change, because spreading work over CPUs costs some.
pub fn proven(worth: &Interval, demand: Option<&Interval>) -> Option<Proven> {
    if worth.low > 1.0 {
        return Some(Proven::More);
    }
    if worth.high < 1.0 {
        return Some(Proven::Less);
    }
    // Throughput is not statistically different here.
    demand.filter(|demand| demand.high < 1.0).map(|_| Proven::LessCpu)
}

/// Returns which workloads need no more samples while the trial continues for the other ones: more
/// samples would change neither its verdict nor, by a noticeable amount, a figure.
///
/// This holds for a gain known with high precision, and for a workload that certainly loses little
/// of such a gain. A gain known less precisely stays open, because the allowed losses of other
/// workloads depend on it.
pub(super) fn settled(seen: &[WorkloadIntervals]) -> Vec<bool> {
    let is_close =
        |worth: Option<Interval>| worth.is_some_and(|w| relative_half_width(&w) < FELT - 1.0);
    let close = || seen.iter().filter(|one| is_close(one.worth));
    let most = gain(close());
    let of = |one: &WorkloadIntervals| {
        is_close(one.worth) && one.is_decided() || most > 0.0 && one.loses_little(most)
    };
    seen.iter().map(of).collect()
}

/// Returns the largest certain gain, as a share of the throughput; 0 without one.
fn gain<'a>(seen: impl Iterator<Item = &'a WorkloadIntervals>) -> f64 {
    seen.filter_map(|one| one.worth).map(|worth| worth.low - 1.0).fold(0.0, f64::max)
}

/// Whether more blocks would not change the verdict on the change. It is decided once a workload is
/// proven worse, or one is proven better and no other can lose a large part of that gain, or every
/// workload is decided.
///
/// A workload without an interval is open: its path may carry traffic on one side only, which
/// another test judges.
pub(super) fn is_decided(seen: &[WorkloadIntervals]) -> bool {
    // One workload that is proven worse decides against the change.
    if seen.iter().filter_map(|one| one.worth).any(|worth| worth.high < 1.0) {
        return true;
    }
    let gain = gain(seen.iter());
    (gain > 0.0 && seen.iter().all(|one| one.loses_little(gain)))
        || (!seen.is_empty() && seen.iter().all(WorkloadIntervals::is_decided))
}

impl WorkloadIntervals {
    /// Returns the proof for the workload.
    pub fn proven(&self) -> Option<Proven> {
        proven(self.worth.as_ref()?, self.demand.as_ref())
    }

    /// Whether the workload certainly does not lose a large part of another one's gain.
    fn loses_little(&self, gain: f64) -> bool {
        let loss = 1.0 + (OF_THE_GAIN * gain.min(MOST_GAIN)).max(FELT - 1.0);
        self.worth.is_some_and(|worth| worth.low > 1.0 / loss)
    }

    /// Whether more blocks would not change the verdict on this workload.
    fn is_decided(&self) -> bool {
        let WorkloadIntervals { worth: Some(worth), demand } = self else { return false };
        // Throughput decides; CPU time counts only where throughput is equal.
        if worth.low > 1.0 || worth.high < 1.0 {
            return true;
        }
        // Less CPU time proves nothing while the throughput may still turn out lower.
        worth.low > 1.0 / FELT
            && worth.high < FELT
            && demand.is_none_or(|demand| demand.high < 1.0 || demand.low > 1.0 / FELT)
    }

    /// Estimates the blocks until the throughput's interval excludes 1, if the median stays and the
    /// interval narrows with the square root of the blocks. Infinite if the median is 1, `None`
    /// without an interval.
    pub fn blocks_to_tell(&self, blocks: u32) -> Option<f64> {
        let worth = self.worth?;
        if worth.median == 0.0 {
            // 0 has no logarithm. The arm is the upper end itself, and the distance to 1 is 1.
            return Some(f64::from(blocks) * worth.high.powi(2));
        }
        let arm = match worth.median > 1.0 {
            true => worth.median / worth.low,
            false => worth.high / worth.median,
        };
        Some(f64::from(blocks) * (arm.ln() / worth.median.ln()).powi(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(low: f64, median: f64, high: f64) -> Interval {
        Interval { low, median, high, confidence: 0.95, samples: 10 }
    }

    fn seen(worth: Interval, demand: Option<Interval>) -> WorkloadIntervals {
        WorkloadIntervals { worth: Some(worth), demand }
    }

    const NOTHING: (f64, f64, f64) = (0.97, 1.001, 1.03);

    fn of((low, median, high): (f64, f64, f64)) -> WorkloadIntervals {
        seen(interval(low, median, high), None)
    }

    #[test]
    fn a_difference_is_decided_whatever_the_cpu_says() {
        let ends = [(1.01, 1.1, 1.2, Proven::More), (0.8, 0.9, 0.99, Proven::Less)];
        for (low, median, high, verdict) in ends {
            // More CPU time does not count against a change.
            for demand in [None, Some(interval(0.9, 1.3, 1.5)), Some(interval(0.7, 0.8, 0.9))] {
                let one = seen(interval(low, median, high), demand);
                assert_eq!((is_decided(&[one]), one.proven()), (true, Some(verdict)));
            }
        }
    }

    #[test]
    fn a_negligible_change_ends_the_trial_if_cpu_time_is_undecided() {
        let nothing = interval(0.97, 1.001, 1.03);
        for (demand, decided, verdict) in [
            (None, true, None),
            (Some(interval(0.96, 1.02, 1.2)), true, None),
            (Some(interval(0.8, 0.9, 0.97)), true, Some(Proven::LessCpu)),
            // Close to a proof of less CPU time.
            (Some(interval(0.9, 0.95, 1.01)), false, None),
        ] {
            let one = seen(nothing, demand);
            assert_eq!((is_decided(&[one]), one.proven()), (decided, verdict), "{demand:?}");
        }
    }

    #[test]
    fn a_run_continues_while_more_blocks_may_decide() {
        for open in [interval(0.99, 1.03, 1.06), interval(0.94, 0.98, 1.01)] {
            assert!(!is_decided(&[seen(open, None)]));
            assert!(!is_decided(&[seen(open, Some(interval(0.8, 0.9, 0.97)))]));
        }
        assert!(!is_decided(&[]));
    }

    #[test]
    fn a_gain_decides_once_no_other_can_lose_a_quarter_of_it() {
        let at_least = |gain: f64| of((1.0 + gain, 1.3 + gain, 1.5 + gain));
        // The other end may be anywhere.
        let loses = |factor: f64| of((1.0 / factor, 1.0, 1.4));
        for (gain, factor, decided) in [
            (0.5, 1.12, true),
            (0.5, 1.13, false),
            // Never stricter than a noticeable difference.
            (0.02, 1.049, true),
            (0.02, 1.051, false),
            // Never weaker than a gain of 100% allows.
            (9.0, 1.24, true),
            (9.0, 1.26, false),
        ] {
            for cells in [[at_least(gain), loses(factor)], [loses(factor), at_least(gain)]] {
                assert_eq!(is_decided(&cells), decided, "{gain} {factor}");
            }
        }
        let unknown = WorkloadIntervals { worth: None, demand: None };
        assert!(!is_decided(&[at_least(0.5), unknown]), "may carry on one side only");
        assert!(!is_decided(&[loses(1.1), loses(1.1)]), "nothing gained");
        // Less CPU time is no gain that ends a trial of several workloads.
        let cheaper = seen(interval(0.97, 1.0, 1.03), Some(interval(0.5, 0.6, 0.7)));
        assert!(!is_decided(&[cheaper, loses(1.1)]));
    }

    #[test]
    fn a_workload_settles_that_cannot_move_the_verdict_any_more() {
        let gain = of((1.58, 1.6, 1.62));
        let open = of((0.8, 1.0, 1.25));
        // Certainly loses less than 14%.
        let little = of((0.9, 1.0, 1.3));
        for (seen, expected) in [
            (vec![gain, open, little], vec![true, false, true]),
            // Too imprecise to bound the allowed losses of other workloads.
            (vec![of((1.3, 1.6, 1.9)), open, little], vec![false, false, false]),
            (vec![of(NOTHING), open], vec![true, false]),
            (vec![open, little], vec![false, false]),
            (vec![gain, WorkloadIntervals { worth: None, demand: None }], vec![true, false]),
        ] {
            assert_eq!(settled(&seen), expected, "{seen:?}");
        }
        // Its CPU time may still turn out lower.
        let cheaper = seen(interval(0.97, 1.0, 1.03), Some(interval(0.9, 0.95, 1.01)));
        assert_eq!(settled(&[cheaper, open]), [false, false]);
        // Nothing is open any more: the trial ends.
        assert!(is_decided(&[gain, little]));
    }

    #[test]
    fn one_that_is_worse_forbids_the_change_whatever_the_others_are() {
        let worse = of((0.8, 0.9, 0.99));
        for other in [of((1.4, 1.5, 1.6)), of((0.5, 1.0, 2.0)), of(NOTHING)] {
            assert!(is_decided(&[other, worse]) && is_decided(&[worse, other]));
        }
        assert!(is_decided(&[WorkloadIntervals { worth: None, demand: None }, worse]));
    }

    #[test]
    fn blocks_to_tell_grow_with_the_square_of_the_width() {
        let to_tell = |low, median, high| of((low, median, high)).blocks_to_tell(10).unwrap();
        let ten = to_tell(1.0, 1.1, 1.21);
        assert!((ten - 10.0).abs() < 1e-9, "{ten}");
        let wider = to_tell(1.0 / 1.1, 1.1, 1.331);
        assert!((wider - 40.0).abs() < 1e-9, "{wider}");
        assert_eq!(to_tell(0.9, 1.0, 1.1), f64::INFINITY);
        assert_eq!([to_tell(0.0, 0.0, 1.0), to_tell(0.0, 0.0, 2.0)], [10.0, 40.0]);
        let below = to_tell(0.8, 1.0 / 1.1, 1.0);
        assert!((below - 10.0).abs() < 1e-9, "{below}");
        assert_eq!(WorkloadIntervals { worth: None, demand: None }.blocks_to_tell(10), None);
    }
}
