//! The ratio of two independent samples' medians, with a bootstrap interval.

use super::describe::of_sorted;
use super::interval::{StatsError, check_confidence};
use super::sign::binomial;
use crate::results::Interval;

/// Median of `b` ÷ median of `a`, with the percentile bootstrap's interval at
/// `confidence`.
///
/// The bootstrap is exact, without random numbers: a resample's middle value is
/// the i-th smallest of the original with a binomial probability (see
/// `stats/bootstrap.rs`), and both samples' middles are independent, so every
/// pair of values has a known weight. With an even count the middle value that
/// makes the interval wider stands for the mean of the two. `samples` in the
/// result is the smaller count.
///
/// Alone it is too narrow for few values; `overlane report compare` proves
/// nothing by it alone, but asks [`super::mann_whitney`] too.
///
/// # Errors
/// [`StatsError::TooFew`] below two values in either, [`StatsError::NotARatio`]
/// for the first that is not a finite number above 0, [`StatsError::Confidence`].
pub fn ratio_of_medians(a: &[f64], b: &[f64], confidence: f64) -> Result<Interval, StatsError> {
    check_confidence(confidence)?;
    let samples = a.len().min(b.len());
    if samples < 2 {
        return Err(StatsError::TooFew { what: "ratio of medians", got: samples, needed: 2 });
    }
    let mut values = a.iter().chain(b).enumerate();
    if let Some((index, value)) = values.find(|(_, v)| !v.is_finite() || **v <= 0.0) {
        return Err(StatsError::NotARatio { index, value: *value });
    }
    let sorted = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    let (a, b) = (sorted(a), sorted(b));
    let tail = 0.5 * (1.0 - confidence);
    let (low_a, high_a) = (middles(a.len()), mirrored(middles(a.len())));
    let (low_b, high_b) = (middles(b.len()), mirrored(middles(b.len())));
    let median = of_sorted(&b, 0.5) / of_sorted(&a, 0.5);
    // Largest first for the upper end.
    let low = weighted_quantile(&a, &high_a, &b, &low_b, tail, f64::total_cmp);
    let high = weighted_quantile(&a, &low_a, &b, &high_b, tail, |x, y| y.total_cmp(x));
    let high = high.min(f64::MAX);
    Ok(Interval {
        median: median.min(f64::MAX),
        low: low.min(median),
        high: high.max(median.min(f64::MAX)),
        confidence,
        samples,
    })
}

/// Probability that the (lower) middle value of a resample is the i-th smallest.
fn middles(n: usize) -> Vec<f64> {
    let middle = n.div_ceil(2);
    let at_most = |i: usize| -> f64 { binomial(n, i as f64 / n as f64).skip(middle).sum() };
    let cumulative: Vec<f64> = (0..=n)
        .map(|i| match i {
            0 => 0.0,
            i if i == n => 1.0,
            i => at_most(i),
        })
        .collect();
    cumulative.windows(2).map(|pair| (pair[1] - pair[0]).max(0.0)).collect()
}

fn mirrored(mut weights: Vec<f64>) -> Vec<f64> {
    weights.reverse();
    weights
}

fn weighted_quantile(
    a: &[f64],
    weights_a: &[f64],
    b: &[f64],
    weights_b: &[f64],
    tail: f64,
    order: impl Fn(&f64, &f64) -> std::cmp::Ordering,
) -> f64 {
    // Far orders carry nothing: leaving them out keeps the pairs few.
    let kept = |values: &[f64], weights: &[f64]| -> Vec<(f64, f64)> {
        let pairs = values.iter().copied().zip(weights.iter().copied());
        pairs.filter(|(_, weight)| *weight > 1e-9).collect()
    };
    let (a, b) = (kept(a, weights_a), kept(b, weights_b));
    let mut ratios: Vec<(f64, f64)> =
        a.iter().flat_map(|(x, v)| b.iter().map(move |(y, w)| (y / x, v * w))).collect();
    ratios.sort_by(|x, y| order(&x.0, &y.0));
    let mut seen = 0.0;
    let reached = ratios.iter().find(|(_, weight)| {
        seen += weight;
        seen >= tail
    });
    reached.or(ratios.last()).map_or(1.0, |(ratio, _)| *ratio)
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand_pcg::Pcg64;

    use super::*;
    use crate::stats::median;

    #[test]
    fn equals_resampling() {
        let mut rng = Pcg64::new(17, 3);
        for (n, m) in [(9, 15), (21, 7)] {
            let values = |n: usize, rng: &mut Pcg64| -> Vec<f64> {
                (0..n).map(|_| 1.0 + (rng.next_u64() % 10_000) as f64 / 1e5).collect()
            };
            let (a, b) = (values(n, &mut rng), values(m, &mut rng));
            let exact = ratio_of_medians(&a, &b, 0.95).unwrap();
            let mut ratios: Vec<f64> = (0..60_000)
                .map(|_| {
                    let mut draw = |from: &[f64]| {
                        let drawn: Vec<f64> = from
                            .iter()
                            .map(|_| from[(rng.next_u64() % from.len() as u64) as usize])
                            .collect();
                        median(&drawn).unwrap()
                    };
                    let below = draw(&a);
                    draw(&b) / below
                })
                .collect();
            ratios.sort_by(f64::total_cmp);
            for (end, share) in [(exact.low, 0.025), (exact.high, 0.975)] {
                let place = ratios.partition_point(|ratio| *ratio < end) as f64 / 60_000.0;
                let after = ratios.partition_point(|ratio| *ratio <= end) as f64 / 60_000.0;
                assert!(place < share + 0.003 && after > share - 0.003, "{place} {after} {share}");
            }
        }
    }

    #[test]
    fn swapping_the_samples_inverts_the_interval() {
        let (a, b) = ([1.0, 1.1, 1.2, 1.3, 1.5, 1.6], [2.0, 2.1, 2.3, 2.2, 1.9]);
        let (one, other) =
            (ratio_of_medians(&a, &b, 0.9).unwrap(), ratio_of_medians(&b, &a, 0.9).unwrap());
        assert!((one.low * other.high - 1.0).abs() < 1e-12);
        assert!((one.high * other.low - 1.0).abs() < 1e-12);
        assert!(one.low > 1.0 && one.low <= one.median && one.median <= one.high);
    }

    #[test]
    fn what_is_not_a_ratio_is_named() {
        assert!(matches!(
            ratio_of_medians(&[1.0], &[1.0; 3], 0.95),
            Err(StatsError::TooFew { .. })
        ));
        let zero = ratio_of_medians(&[1.0; 3], &[1.0, 0.0], 0.95);
        assert!(matches!(zero, Err(StatsError::NotARatio { index: 4, .. })));
        assert!(matches!(
            ratio_of_medians(&[1.0; 3], &[1.0; 3], 2.0),
            Err(StatsError::Confidence(_))
        ));
    }
}
