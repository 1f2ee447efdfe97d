//! Median ratio with confidence interval.

use super::bootstrap;
use super::describe::of_sorted;
use super::sign::SignInterval;
use super::student;
use crate::Interval;

/// Why a statistic cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StatsError {
    /// Too few values for the statistic.
    #[error("{what}: got {got} values, expected at least {needed}")]
    TooFew {
        /// The statistic.
        what: &'static str,
        /// Number of values given.
        got: usize,
        /// Fewest values required.
        needed: usize,
    },
    /// A value that cannot be a ratio: negative, infinite or NaN.
    #[error("ratio {index} is {value}, expected a finite number, 0 or more")]
    NotARatio {
        /// Index in the input, from 0.
        index: usize,
        /// Value at that index.
        value: f64,
    },
    /// A ratio to 0 is undefined.
    #[error("ratio of medians: the first median is 0, expected a number above 0")]
    ZeroMedian,
    /// A value that is not finite.
    #[error("value {index} is {value}, expected a finite number")]
    NotFinite {
        /// Index in the input, from 0.
        index: usize,
        /// Value at that index.
        value: f64,
    },
    /// Invalid coverage.
    #[error("confidence is {0}, expected a number above 0 and below 1 (0.95 for 95%)")]
    Confidence(f64),
    /// Invalid number of blocks.
    #[error("sequential plan: at most {max_blocks} blocks, expected at least {min_blocks}")]
    Blocks {
        /// Fewest blocks for an interim analysis.
        min_blocks: u32,
        /// Most blocks of the plan.
        max_blocks: u32,
    },
}

/// Returns the median of `ratios` with an interval that covers the true median ratio with
/// probability `confidence` (0..1, 0.95 for 95%) or more.
///
/// The interval is the percentile bootstrap of the median, but never narrower than the
/// order-statistic interval, whose coverage holds for every distribution of independent noise (see
/// `stats/sign.rs`).
///
/// Below 6 ratios at 95%, or 8 at 99%, even their whole range has a lower coverage. The interval is
/// then the range, widened to a t interval of the log ratios. Its coverage assumes that log ratios
/// are roughly symmetric; it is simulated in `tests/stats_coverage.rs`, not proved. If a ratio is 0
/// (nothing arrived in that block), which has no logarithm, the t interval of the ratios themselves
/// is used.
///
/// `confidence` in the result is the requested one. `low ≤ median ≤ high`, all finite and not
/// negative.
///
/// # Errors
/// [`StatsError::TooFew`] below two ratios, [`StatsError::NotARatio`] for the first value that is
/// negative or not finite, [`StatsError::Confidence`].
pub fn ratio_interval(ratios: &[f64], confidence: f64) -> Result<Interval, StatsError> {
    check_confidence(confidence)?;
    // An infinite or negative ratio comes from a damaged file: it would hide in a median.
    if let Some(index) = ratios.iter().position(|r| !r.is_finite() || *r < 0.0) {
        return Err(StatsError::NotARatio { index, value: ratios[index] });
    }
    // A single ratio has no spread.
    if ratios.len() < 2 {
        return Err(StatsError::TooFew { what: "ratio interval", got: ratios.len(), needed: 2 });
    }
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let (low, high) = match SignInterval::narrowest(n, confidence) {
        Some(interval) => {
            let (low, high) = interval.ends(&sorted);
            let rank = bootstrap::lower_rank(n, confidence);
            (low.min(sorted[rank - 1]), high.max(sorted[n - rank]))
        }
        None => {
            // A ratio of 0 has no logarithm.
            let (low, high) = if sorted[0] > 0.0 {
                log_t_interval(&sorted, confidence)
            } else {
                t_interval(&sorted, confidence)
            };
            (low.max(0.0).min(sorted[0]), high.max(sorted[n - 1]))
        }
    };
    let median = of_sorted(&sorted, 0.5);
    // √a·√b of equal values may exceed them by rounding.
    Ok(Interval { median, low: low.min(median), high: high.max(median), confidence, samples: n })
}

/// Returns the larger of the interval's two arms ÷ its median: 0.05 means "within ±5%".
pub fn relative_half_width(interval: &Interval) -> f64 {
    let arm = (interval.high - interval.median).max(interval.median - interval.low);
    // An interval from 0 to 0 has no width.
    if arm == 0.0 { 0.0 } else { arm / interval.median }
}

pub(super) fn check_confidence(confidence: f64) -> Result<(), StatsError> {
    if confidence > 0.0 && confidence < 1.0 {
        Ok(())
    } else {
        Err(StatsError::Confidence(confidence))
    }
}

/// Returns the t interval of the mean log, as ratios. Requires at least two values above 0.
fn log_t_interval(ratios: &[f64], confidence: f64) -> (f64, f64) {
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let (low, high) = t_interval(&logs, confidence);
    // As in `t_interval`, two ratios far apart can exceed the range of f64.
    (low.exp(), high.exp().min(f64::MAX))
}

/// Returns the t interval of the mean. Requires at least two values.
fn t_interval(values: &[f64], confidence: f64) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let quantile = student::two_sided_quantile(confidence, values.len() as u32 - 1);
    let arm = quantile * (variance / n).sqrt();
    // Two values far apart at a high confidence can exceed the range of f64. An infinite end could
    // not be written to a results file.
    (mean - arm, (mean + arm).min(f64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn twelve_ratios_give_the_third_from_either_end() {
        let ratios: Vec<f64> = (1..=12).map(f64::from).collect();
        let interval = ratio_interval(&ratios, 0.95).unwrap();
        assert_eq!((interval.low, interval.median, interval.high), (3.0, 6.5, 10.0));
        assert_eq!((interval.confidence, interval.samples), (0.95, 12));
    }

    #[test]
    fn five_ratios_at_95_percent_are_wider_than_their_range() {
        let ratios = [0.98, 0.99, 1.0, 1.01, 1.02];
        let interval = ratio_interval(&ratios, 0.95).unwrap();
        assert!(interval.low <= 0.98 && interval.high >= 1.02, "{interval:?}");
        let wide = ratio_interval(&ratios, 0.999).unwrap();
        assert!(wide.low < interval.low && wide.high > interval.high, "{wide:?}");
    }

    /// By hand: logs 0, ln 2, 2 ln 2; their variance is (ln 2)²; t of two degrees of freedom
    /// is 4.302653.
    #[test]
    fn the_t_interval_of_three_ratios_is_that_of_the_tables() {
        let (low, high) = log_t_interval(&[1.0, 2.0, 4.0], 0.95);
        let arm = 4.302_653 * std::f64::consts::LN_2 / 3.0_f64.sqrt();
        assert!((low - 2.0 * (-arm).exp()).abs() < 1e-5, "{low}");
        assert!((high - 2.0 * arm.exp()).abs() < 1e-4, "{high}");
    }

    /// By hand: the mean of 0 and 1 is ½, and so is its standard error; t of one degree of
    /// freedom is 12.7062.
    #[test]
    fn two_blocks_of_which_one_carried_nothing_have_an_interval() {
        let interval = ratio_interval(&[0.0, 1.0], 0.95).unwrap();
        assert_eq!((interval.low, interval.median), (0.0, 0.5));
        assert!((interval.high - 0.5 * 13.7062).abs() < 1e-3, "{interval:?}");
        // Their sum exceeds f64.
        let huge = ratio_interval(&[0.0, f64::MAX, f64::MAX], 0.95).unwrap();
        assert_eq!((huge.low, huge.high), (0.0, f64::MAX));
    }

    #[test]
    fn one_block_that_carried_nothing_of_twelve_moves_no_end() {
        let mut ratios: Vec<f64> = (1..=12).map(f64::from).collect();
        let with = |ratios: &[f64]| {
            let interval = ratio_interval(ratios, 0.95).unwrap();
            (interval.low, interval.median, interval.high)
        };
        let all = with(&ratios);
        ratios[0] = 0.0;
        assert_eq!(with(&ratios), all);
    }

    #[test]
    fn invalid_ratios_are_named() {
        for bad in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let error = ratio_interval(&[1.0, bad, 1.0], 0.95).unwrap_err();
            assert!(matches!(error, StatsError::NotARatio { index: 1, .. }), "{error}");
            assert!(error.to_string().contains("ratio 1"), "{error}");
        }
        assert_eq!(
            ratio_interval(&[1.0], 0.95),
            Err(StatsError::TooFew { what: "ratio interval", got: 1, needed: 2 })
        );
        for bad in [0.0, 1.0, 95.0, -0.1, f64::NAN] {
            assert!(matches!(ratio_interval(&[1.0; 9], bad), Err(StatsError::Confidence(_))));
        }
    }

    #[test]
    fn half_width_is_the_larger_arm() {
        let interval = Interval { median: 2.0, low: 1.9, high: 2.4, confidence: 0.95, samples: 12 };
        assert!((relative_half_width(&interval) - 0.2).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn ends_are_finite_and_enclose_the_median(
            ratios in prop::collection::vec(prop_oneof![Just(0.0), 1e-300..1e-290, 0.5..2.0, 1e300..1e308], 2..40),
            confidence in 0.01..0.9999_f64,
        ) {
            let interval = ratio_interval(&ratios, confidence).unwrap();
            prop_assert!(interval.low >= 0.0 && interval.high.is_finite());
            prop_assert!(interval.low <= interval.median && interval.median <= interval.high);
        }

        #[test]
        fn scaling_the_ratios_scales_the_interval(
            ratios in prop::collection::vec(prop_oneof![1 => Just(0.0), 4 => 0.2..5.0_f64], 2..40), factor in 0.1..10.0_f64,
        ) {
            let scaled: Vec<f64> = ratios.iter().map(|ratio| ratio * factor).collect();
            let (one, other) =
                (ratio_interval(&ratios, 0.95).unwrap(), ratio_interval(&scaled, 0.95).unwrap());
            for (a, b) in [(one.low, other.low), (one.median, other.median), (one.high, other.high)] {
                prop_assert!((a * factor - b).abs() <= 1e-9 * b, "{a} × {factor} against {b}");
            }
        }

        #[test]
        fn arbitrary_numbers_never_panic(
            ratios in prop::collection::vec(any::<f64>(), 0..20), confidence in any::<f64>(),
        ) {
            let _ = ratio_interval(&ratios, confidence);
        }
    }
}
