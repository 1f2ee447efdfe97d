//! Trend within a sequence of samples.

use std::fmt;

use super::describe::median;
use super::interval::StatsError;

/// Longest sequence without ties with an exact p-value.
const EXACT_UP_TO: usize = 60;
/// A trend is reported below this p-value. It is one in a hundred, not one in twenty, because a run
/// tests some hundred cells.
const REPORTED_BELOW: f64 = 0.01;

/// Trend over the order of samples: Mann-Kendall test and Theil-Sen slope.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trend {
    /// Number of values.
    pub samples: usize,
    /// Kendall's S: rising pairs − falling pairs.
    pub s: i64,
    /// Probability of an |S| at least this large if the order is random.
    pub p_value: f64,
    /// Theil-Sen slope: median over all pairs of the change per step, in the
    /// values' unit.
    pub slope: f64,
    /// slope × steps ÷ |median|: the drift from first to last sample, as a share (0.1: rises by a
    /// tenth). 0 if the median is 0.
    pub drift: f64,
}

impl Trend {
    /// Whether chance alone would produce this less than once in a hundred times. Impossible below
    /// six samples: five in order occur by chance once in 60.
    pub fn is_significant(&self) -> bool {
        self.p_value < REPORTED_BELOW
    }
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.drift < 0.0 { "falls" } else { "rises" };
        let percent = 100.0 * self.drift.abs();
        write!(f, "{verb} by {percent:.1}% over {} samples (Mann-Kendall ", self.samples)?;
        if self.p_value < 0.0001 {
            write!(f, "p < 0.0001)")
        } else {
            write!(f, "p = {:.4})", self.p_value)
        }
    }
}

/// Returns the trend of `values` in the order they were taken, evenly spaced.
///
/// The p-value is exact without ties up to 60 values. Otherwise it is the normal approximation with
/// the corrections for ties and continuity (M. Kendall, Rank Correlation Methods, 1975).
///
/// # Errors
/// [`StatsError::TooFew`] below three values, [`StatsError::NotFinite`].
pub fn trend(values: &[f64]) -> Result<Trend, StatsError> {
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(StatsError::NotFinite { index, value: values[index] });
    }
    let n = values.len();
    // Two values always have a trend.
    if n < 3 {
        return Err(StatsError::TooFew { what: "trend", got: n, needed: 3 });
    }
    let mut s = 0_i64;
    let mut slopes = Vec::with_capacity(n * (n - 1) / 2);
    for (i, first) in values.iter().enumerate() {
        for (step, second) in values[i + 1..].iter().enumerate() {
            s += (second > first) as i64 - ((second < first) as i64);
            slopes.push((second - first) / (step + 1) as f64);
        }
    }
    // Values of ±1e308 have an infinite difference; the median of such slopes is infinite, too.
    let slope = median(&slopes).unwrap_or(0.0);
    let centre = median(values).unwrap_or(0.0).abs();
    let drift = if centre > 0.0 { slope * (n - 1) as f64 / centre } else { 0.0 };
    Ok(Trend { samples: n, s, p_value: p_value(values, s), slope, drift })
}

fn p_value(values: &[f64], s: i64) -> f64 {
    let n = values.len();
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let ties: Vec<f64> = sorted.chunk_by(|a, b| a == b).map(|run| run.len() as f64).collect();
    if ties.len() == n && n <= EXACT_UP_TO {
        return exact_p_value(n, s);
    }
    let spread = |count: f64| count * (count - 1.0) * (2.0 * count + 5.0);
    let variance = (spread(n as f64) - ties.iter().map(|count| spread(*count)).sum::<f64>()) / 18.0;
    // All values are equal, or rises and falls balance.
    if variance <= 0.0 || s == 0 {
        return 1.0;
    }
    2.0 * normal_tail((s.abs() as f64 - 1.0) / variance.sqrt())
}

/// Returns P(|S| ≥ |s|) over all orders of `n` different values. S = pairs − 2 × inversions, and
/// inversions are the sum of independent uniform variables on 0..i for i = 0..n−1 (the positions of
/// an insertion sort).
fn exact_p_value(n: usize, s: i64) -> f64 {
    let pairs = n * (n - 1) / 2;
    let mut inversions = vec![0.0; pairs + 1];
    inversions[0] = 1.0;
    for places in 2..=n {
        let before = inversions.clone();
        let mut window = 0.0;
        for (count, probability) in inversions.iter_mut().enumerate() {
            window += before[count];
            if count >= places {
                window -= before[count - places];
            }
            *probability = window / places as f64;
        }
    }
    let at_least: f64 = inversions
        .iter()
        .enumerate()
        .filter(|(count, _)| (pairs as i64 - 2 * *count as i64).abs() >= s.abs())
        .map(|(_, probability)| probability)
        .sum();
    at_least.clamp(0.0, 1.0)
}

/// Returns P(Z > z) for z ≥ 0, absolute error below 7.5e-8: Abramowitz and Stegun 26.2.17.
fn normal_tail(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let polynomial = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    polynomial * (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand_pcg::Pcg64;

    use super::*;

    #[test]
    fn p_values_are_those_of_the_printed_tables() {
        // Hollander and Wolfe, table A.30 (Kendall's K), both sides.
        for (n, s, expected) in
            [(4, 6, 0.0833), (5, 10, 0.0167), (6, 13, 0.0167), (8, 18, 0.0312), (10, 23, 0.0466)]
        {
            let got = exact_p_value(n, s);
            assert!((got - expected).abs() < 6e-4, "n {n} S {s}: {got}, table {expected}");
            assert_eq!(got, exact_p_value(n, -s));
        }
        assert!((exact_p_value(12, 0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn exact_and_approximate_p_values_meet() {
        for s in [100_i64, 301, 500] {
            let exact = exact_p_value(60, s);
            let variance: f64 = 60.0 * 59.0 * 125.0 / 18.0;
            let approximate = 2.0 * normal_tail((s as f64 - 1.0) / variance.sqrt());
            assert!((exact - approximate).abs() < 0.003, "S {s}: {exact} and {approximate}");
        }
    }

    #[test]
    fn a_drift_is_found_and_sized() {
        let mut rng = Pcg64::new(3, 5);
        let values: Vec<f64> = (0..20)
            .map(|step| {
                let noise = (rng.next_u64() as f64 / u64::MAX as f64 - 0.5) * 0.02;
                100.0 * (1.1 - 0.2 * f64::from(step) / 19.0 + noise)
            })
            .collect();
        let found = trend(&values).unwrap();
        assert!(found.is_significant() && found.s < 0, "{found:?}");
        assert!((found.drift + 0.2).abs() < 0.02, "{found:?}");
        assert!(found.to_string().starts_with("falls by 2"), "{found}");
    }

    #[test]
    fn one_outlier_is_no_drift() {
        let mut values: Vec<f64> = (0..12).map(|i| 100.0 + f64::from((i * 7) % 12)).collect();
        values[11] = 1000.0;
        let found = trend(&values).unwrap();
        assert!(!found.is_significant(), "{found:?}");
        // Least squares would report a rise of several times the median.
        assert!(found.drift.abs() < 0.15, "{found:?}");
    }

    #[test]
    fn random_order_is_called_a_trend_as_often_as_stated() {
        let mut rng = Pcg64::new(1, 2);
        let runs = 20_000;
        for n in [6, 12, 30] {
            let alarms = (0..runs)
                .filter(|_| {
                    let values: Vec<f64> = (0..n).map(|_| rng.next_u64() as f64).collect();
                    trend(&values).unwrap().is_significant()
                })
                .count();
            // 1% at most, plus 4 standard errors.
            assert!(alarms as f64 <= 0.0128 * f64::from(runs), "n {n}: {alarms} of {runs}");
        }
    }

    #[test]
    fn ties_and_constants_are_no_trend() {
        assert_eq!(trend(&[5.0; 10]).unwrap().p_value, 1.0);
        let steps: Vec<f64> = (0..20).map(|i| f64::from(i / 2)).collect();
        let found = trend(&steps).unwrap();
        assert!(found.is_significant(), "ties must not hide a real one: {found:?}");
        assert_eq!(trend(&[0.0, 0.0, 1.0, 0.0]).unwrap().drift, 0.0);
    }

    #[test]
    fn values_without_a_trend_are_an_error() {
        assert!(matches!(trend(&[1.0, 2.0]), Err(StatsError::TooFew { got: 2, .. })));
        assert!(matches!(
            trend(&[1.0, f64::NAN, 2.0]),
            Err(StatsError::NotFinite { index: 1, .. })
        ));
        let _ = trend(&[f64::MAX, -f64::MAX, f64::MAX, -f64::MAX]).unwrap();
    }
}
