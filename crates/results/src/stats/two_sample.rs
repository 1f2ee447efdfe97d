//! Ratio of two independent samples' medians, with a bootstrap interval.

use super::describe::of_sorted;
use super::interval::{StatsError, check_confidence};
use crate::Interval;

/// Returns median of `b` ÷ median of `a`, with the percentile bootstrap's interval at `confidence`.
///
/// The bootstrap is exact, without random numbers. A resample's middle value is the i-th smallest
/// of the original with a binomial probability (see `stats/bootstrap.rs`). The middles of both
/// samples are independent, so every pair of values has a known weight. The cost is O(n log n),
/// mostly for sorting. With an even count, the middle value that makes the interval wider replaces
/// the mean of the two. `samples` in the result is the smaller count.
///
/// 0 is a valid value, but a ratio to a median of 0 is undefined. If both middles of a pair are 0,
/// it counts as the outermost ratio on either side.
///
/// Alone it is too narrow for few values; `overlane report compare` also requires
/// [`super::mann_whitney`] for a proof.
///
/// # Errors
/// [`StatsError::TooFew`] below two values in either sample, [`StatsError::NotARatio`] for the
/// first value that is negative or not finite, [`StatsError::ZeroMedian`] of `a`,
/// [`StatsError::Confidence`].
pub fn ratio_of_medians(a: &[f64], b: &[f64], confidence: f64) -> Result<Interval, StatsError> {
    check_confidence(confidence)?;
    let samples = a.len().min(b.len());
    // A single value has no spread.
    if samples < 2 {
        return Err(StatsError::TooFew { what: "ratio of medians", got: samples, needed: 2 });
    }
    let mut values = a.iter().chain(b).enumerate();
    if let Some((index, value)) = values.find(|(_, v)| !v.is_finite() || **v < 0.0) {
        return Err(StatsError::NotARatio { index, value: *value });
    }
    let sorted = |values: &[f64]| {
        // −0 would sort before 0.
        let mut sorted: Vec<f64> = values.iter().map(|value| value + 0.0).collect();
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    let (a, b) = (sorted(a), sorted(b));
    let median_a = of_sorted(&a, 0.5);
    // The ratio to 0 is undefined.
    if median_a == 0.0 {
        return Err(StatsError::ZeroMedian);
    }
    let median = of_sorted(&b, 0.5) / median_a;
    let tail = 0.5 * (1.0 - confidence);
    let (low_a, low_b) = (middles(a.len()), middles(b.len()));
    let (high_a, high_b) = (mirrored(low_a.clone()), mirrored(low_b.clone()));
    let low = weighted_quantile((&a, &high_a), (&b, &low_b), tail, Bound::Low);
    let high = weighted_quantile((&a, &low_a), (&b, &high_b), tail, Bound::High);
    let high = high.min(f64::MAX);
    Ok(Interval {
        median: median.min(f64::MAX),
        low: low.min(median),
        high: high.max(median.min(f64::MAX)),
        confidence,
        samples,
    })
}

/// Standard deviations of a middle value's rank beyond which nothing is computed: the tail of the
/// normal distribution there is 10⁻³².
const FAR: f64 = 12.0;

/// Returns for each i the probability that the (lower) middle value of a resample is the i-th
/// smallest.
///
/// That is P(B(n, i/n) ≥ middle) minus the same for i − 1. The rank's standard deviation is about
/// √n / 2, so only about √n ranks have a notable probability, and each sum has about √n terms that
/// count: O(n) steps in total.
fn middles(n: usize) -> Vec<f64> {
    let middle = n.div_ceil(2);
    // ln C(n, middle)
    let orders: f64 = (1..=middle).map(|j| ((n - middle + j) as f64 / j as f64).ln()).sum();
    let at_most = |i: usize| -> f64 {
        let far = FAR * 0.5 * (n as f64).sqrt();
        match i as f64 - middle as f64 {
            distance if i == 0 || distance < -far => 0.0,
            distance if i == n || distance > far => 1.0,
            _ => upper_tail(n, i as f64 / n as f64, middle, orders),
        }
    };
    let (mut weights, mut below) = (Vec::with_capacity(n), 0.0);
    for i in 1..=n {
        let reached = at_most(i);
        weights.push((reached - below).max(0.0));
        below = reached;
    }
    weights
}

/// Returns P(B(n, p) ≥ from), given ln C(n, from). 0 < p < 1.
fn upper_tail(n: usize, p: f64, from: usize, orders: f64) -> f64 {
    let odds = p / (1.0 - p);
    let mut term = (orders + from as f64 * p.ln() + (n - from) as f64 * (-p).ln_1p()).exp();
    let (mut sum, mut k) = (0.0, from);
    loop {
        step();
        sum += term;
        // Beyond the mean the terms decrease.
        if k == n || k as f64 > n as f64 * p && term < 1e-19 * sum {
            return sum;
        }
        term *= (n - k) as f64 / (k + 1) as f64 * odds;
        k += 1;
    }
}

fn mirrored(mut weights: Vec<f64>) -> Vec<f64> {
    weights.reverse();
    weights
}

/// The end of the interval to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Low,
    High,
}

/// Returns the ratio y ÷ x at which the weights of all pairs up to it, ordered from one end, reach
/// `tail`. Values are sorted and not negative.
///
/// Pairs are not listed. Floats of at least 0 have the same order as their bits, so the ratio is
/// found by bisection: 64 times, the weight of all pairs up to a ratio is summed in one pass over
/// both samples. Rounding a quotient keeps the order of quotients.
fn weighted_quantile(
    (a, weights_a): (&[f64], &[f64]),
    (b, weights_b): (&[f64], &[f64]),
    tail: f64,
    end: Bound,
) -> f64 {
    // Far ranks have no weight.
    let kept = |values: &[f64], weights: &[f64]| -> Vec<(f64, f64)> {
        let pairs = values.iter().copied().zip(weights.iter().copied());
        pairs.filter(|(_, weight)| *weight > 1e-9).collect()
    };
    let (mut a, mut b) = (kept(a, weights_a), kept(b, weights_b));
    let (Some((first_a, last_a)), Some((first_b, last_b))) =
        (a.first().zip(a.last()), b.first().zip(b.last()))
    else {
        return 1.0;
    };
    let quotient = |y: f64, x: f64| match end {
        Bound::Low if y == 0.0 => 0.0,
        Bound::High if x == 0.0 => f64::INFINITY,
        _ => y / x,
    };
    let (lowest, highest) = (quotient(first_b.0, last_a.0), quotient(last_b.0, first_a.0));
    // From the low end a larger x admits more y, from the high end a smaller one.
    if end == Bound::High {
        a.reverse();
        b.reverse();
    }
    let reaches = |ratio: f64| {
        let within = |y: f64, x: f64| match end {
            Bound::Low => quotient(y, x) <= ratio,
            Bound::High => quotient(y, x) >= ratio,
        };
        let (mut taken, mut inside, mut seen) = (0, 0.0, 0.0);
        for (x, weight) in &a {
            while let Some((_, other)) = b.get(taken).filter(|(y, _)| within(*y, *x)) {
                step();
                inside += other;
                taken += 1;
            }
            step();
            seen += weight * inside;
        }
        seen >= tail
    };
    // The nearest ratio does not reach the tail; the furthest one does.
    let (mut short, mut far) = match end {
        Bound::Low => (lowest.to_bits(), highest.to_bits()),
        Bound::High => (highest.to_bits(), lowest.to_bits()),
    };
    if reaches(f64::from_bits(short)) {
        return f64::from_bits(short);
    }
    while short.abs_diff(far) > 1 {
        let middle = short.min(far) + short.abs_diff(far) / 2;
        if reaches(f64::from_bits(middle)) { far = middle } else { short = middle }
    }
    f64::from_bits(far)
}

/// Counts loop steps, for tests.
fn step() {
    #[cfg(test)]
    tests::STEPS.with(|steps| steps.set(steps.get() + 1));
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand_pcg::Pcg64;

    use super::*;
    use crate::stats::median;
    use crate::stats::sign::binomial;

    thread_local! {
        pub(super) static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// The earlier algorithm: every probability by all its terms, every pair listed and sorted.
    /// O(n²).
    fn by_all_pairs(a: &[f64], b: &[f64], confidence: f64) -> (f64, f64) {
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
        let sorted = |values: &[f64]| {
            let mut sorted = values.to_vec();
            sorted.sort_by(f64::total_cmp);
            sorted
        };
        let (a, b) = (sorted(a), sorted(b));
        let quantile = |weights_a: &[f64], weights_b: &[f64], down: bool| {
            let kept = |values: &[f64], weights: &[f64]| -> Vec<(f64, f64)> {
                let pairs = values.iter().copied().zip(weights.iter().copied());
                pairs.filter(|(_, weight)| *weight > 1e-9).collect()
            };
            let (a, b) = (kept(&a, weights_a), kept(&b, weights_b));
            let outermost = if down { f64::INFINITY } else { 0.0 };
            let ratio = |y: f64, x: f64| if x == 0.0 && y == 0.0 { outermost } else { y / x };
            let mut ratios: Vec<(f64, f64)> = a
                .iter()
                .flat_map(|(x, v)| b.iter().map(move |(y, w)| (ratio(*y, *x), v * w)))
                .collect();
            ratios.sort_by(|x, y| if down { y.0.total_cmp(&x.0) } else { x.0.total_cmp(&y.0) });
            let mut seen = 0.0;
            let reached = ratios.iter().find(|(_, weight)| {
                seen += weight;
                seen >= 0.5 * (1.0 - confidence)
            });
            reached.or(ratios.last()).map_or(1.0, |(ratio, _)| *ratio)
        };
        let (low_a, low_b) = (middles(a.len()), middles(b.len()));
        let (high_a, high_b) = (mirrored(low_a.clone()), mirrored(low_b.clone()));
        (quantile(&high_a, &low_b, false), quantile(&low_a, &high_b, true))
    }

    #[test]
    fn equals_the_list_of_all_pairs() {
        let mut rng = Pcg64::new(5, 9);
        for (round, (n, m)) in
            [(2, 2), (2, 3), (3, 3), (4, 9), (5, 200), (20, 20), (31, 60), (150, 149), (400, 399)]
                .into_iter()
                .cycle()
                .take(180)
                .enumerate()
        {
            let mut values = |n: usize| -> Vec<f64> {
                // Many ties in every other round, values far apart in every third.
                let steps = if round % 2 == 0 { 1 << 20 } else { 5 };
                let scale = if round % 3 == 0 { 1e-200 } else { 1.0 };
                // In some rounds nothing arrived in a share of the blocks.
                let nothing = (round % 4) as u64 * 12;
                let value = |random: u64| match random >> 32 {
                    high if high % 100 < nothing => 0.0,
                    _ => (1.0 + (random % steps) as f64 / steps as f64) * scale,
                };
                (0..n).map(|_| value(rng.next_u64())).collect()
            };
            let (a, b) = (values(n), values(m));
            for confidence in [0.8, 0.95, 0.999] {
                let got = ratio_of_medians(&a, &b, confidence);
                if median(&a) == Some(0.0) {
                    assert_eq!(got, Err(StatsError::ZeroMedian));
                    continue;
                }
                let got = got.unwrap();
                let (low, high) = by_all_pairs(&a, &b, confidence);
                let expected = (low.min(got.median), high.max(got.median).min(f64::MAX));
                assert_eq!((got.low, got.high), expected, "{n} {m} {confidence}");
            }
        }
    }

    #[test]
    fn steps_grow_as_the_samples_do() {
        let steps = |n: usize| {
            let mut rng = Pcg64::new(1, 1);
            let mut values =
                || (0..n).map(|_| 1.0 + (rng.next_u64() % 1000) as f64).collect::<Vec<f64>>();
            let (a, b) = (values(), values());
            STEPS.with(|steps| steps.set(0));
            ratio_of_medians(&a, &b, 0.95).unwrap();
            STEPS.with(|steps| steps.get())
        };
        // All pairs of 20,000 values, and all terms of each probability, would be 4·10⁸ each.
        let (few, many) = (steps(20_000), steps(200_000));
        assert!(few < 300 * 20_000, "{few}");
        assert!(many < 12 * few, "{few} to {many}");
    }

    #[test]
    fn probabilities_are_the_binomial_sums() {
        for n in [1, 2, 3, 10, 101, 1000] {
            let weights = super::middles(n);
            // Weights below 1e-9 are left out; rounding is far below that.
            assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-10, "{n}");
            let middle = n.div_ceil(2);
            let mut below = 0.0;
            for (i, weight) in weights.iter().enumerate().take(n - 1) {
                let p = (i + 1) as f64 / n as f64;
                let reached: f64 = binomial(n, p).skip(middle).sum();
                assert!((weight - (reached - below)).abs() < 1e-10, "{n} {i}");
                below = reached;
            }
        }
    }

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
    fn a_path_that_stopped_carrying_traffic_has_a_ratio_of_0() {
        let ends = |a: &[f64], b: &[f64]| {
            let Interval { low, median, high, .. } = ratio_of_medians(a, b, 0.95).unwrap();
            [low, median, high]
        };
        assert_eq!(ends(&[1.0, 1.1, 1.2], &[0.0; 3]), [0.0; 3]);
        assert_eq!(ends(&[1.0; 9], &[-0.0, -0.0, -0.0, 1.0, 1.0]), [0.0, 0.0, 1.0]);
        // If the first may be 0, too, no ratio is too large.
        assert_eq!(ends(&[0.0, 1.0, 1.0], &[0.0, 1.0, 1.0]), [0.0, 1.0, f64::MAX]);
    }

    #[test]
    fn invalid_ratios_are_named() {
        assert!(matches!(
            ratio_of_medians(&[1.0], &[1.0; 3], 0.95),
            Err(StatsError::TooFew { .. })
        ));
        let negative = ratio_of_medians(&[1.0; 3], &[1.0, -1.0], 0.95);
        assert!(matches!(negative, Err(StatsError::NotARatio { index: 4, .. })));
        assert_eq!(
            ratio_of_medians(&[0.0, 0.0, 1.0], &[1.0; 3], 0.95),
            Err(StatsError::ZeroMedian)
        );
        assert!(matches!(
            ratio_of_medians(&[1.0; 3], &[1.0; 3], 2.0),
            Err(StatsError::Confidence(_))
        ));
    }
}
