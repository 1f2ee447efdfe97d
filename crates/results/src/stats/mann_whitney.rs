//! Mann-Whitney U test, two-sided: whether two independent samples come from the same distribution.

use super::interval::StatsError;

/// Largest product of the two counts for which the distribution is computed exactly.
const EXACT_UP_TO: usize = 2500;

/// U of the first sample, and the probability of a U as far from its middle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MannWhitney {
    /// Number of pairs in which the first sample's value is larger; ties count ½.
    pub u: f64,
    /// Two-sided p-value: probability of a U as far from its middle or further if both samples come
    /// from one distribution.
    pub p_value: f64,
}

/// Compares two independent samples (H. Mann and D. Whitney, "On a test of
/// whether one of two random variables is stochastically larger than the
/// other", Annals of Mathematical Statistics 18, 1947).
///
/// The test is exact without ties if the product of the counts is at most 2500, such as 50 against
/// 50. Otherwise it is the normal approximation, with corrections for ties and continuity. R's
/// `wilcox.test` uses the same rule.
///
/// # Errors
/// [`StatsError::TooFew`] if a sample is empty, [`StatsError::NotFinite`].
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Result<MannWhitney, StatsError> {
    // Without values in both samples there is nothing to compare.
    if a.is_empty() || b.is_empty() {
        return Err(StatsError::TooFew { what: "Mann-Whitney test", got: 0, needed: 1 });
    }
    let mut all: Vec<(f64, bool)> =
        a.iter().map(|value| (*value, true)).chain(b.iter().map(|value| (*value, false))).collect();
    // NaN has no rank.
    if let Some(index) = all.iter().position(|(value, _)| !value.is_finite()) {
        return Err(StatsError::NotFinite { index, value: all[index].0 });
    }
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    // Rank sum of the first sample, with mean ranks for ties; Σ (t³ − t).
    let (mut ranks, mut ties, mut below) = (0.0, 0.0, 0);
    for equal in all.chunk_by(|x, y| x.0 == y.0) {
        let count = equal.len() as f64;
        let mean = below as f64 + 0.5 * (count + 1.0);
        ranks += mean * equal.iter().filter(|(_, first)| *first).count() as f64;
        ties += count.powi(3) - count;
        below += equal.len();
    }
    let (n, m) = (a.len() as f64, b.len() as f64);
    let u = ranks - 0.5 * n * (n + 1.0);
    // The exact distribution assumes no ties, and its cost grows with the product.
    let p_value = if ties == 0.0 && a.len() * b.len() <= EXACT_UP_TO {
        // Without ties U is an integer.
        let smaller = u.min(n * m - u).round() as usize;
        (2.0 * lower_tail(a.len(), b.len(), smaller)).min(1.0)
    } else {
        let total = n + m;
        let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
        let deviation = ((u - 0.5 * n * m).abs() - 0.5).max(0.0);
        if variance > 0.0 { two_sided_normal(deviation / variance.sqrt()) } else { 1.0 }
    };
    Ok(MannWhitney { u, p_value })
}

/// Returns the smallest p-value possible with `n` and `m` values: the p-value of samples that do
/// not overlap. Below it they can prove nothing.
pub fn smallest_p_value(n: usize, m: usize) -> f64 {
    // 2 ÷ (n+m over n), as a product that neither overflows nor underflows early.
    let mut p = 2.0;
    for i in 1..=n.min(m) {
        p *= i as f64 / (n.max(m) + i) as f64;
    }
    p.min(1.0)
}

/// Returns P(U ≤ `at_most`) for `n` and `m` values without ties.
///
/// The number of orders with a given U is the coefficient of the Gaussian binomial
/// (n+m over n). That is Π (1 − qᵐ⁺ⁱ) ÷ (1 − qⁱ), i = 1..n. Each factor is one pass over
/// the coefficients. The passes work on probabilities, pass i scaled by i ÷ (m+i), so that
/// nothing overflows.
fn lower_tail(n: usize, m: usize, at_most: usize) -> f64 {
    let (n, m) = (n.min(m), n.max(m));
    let mut weights = vec![0.0_f64; n * m + 1];
    weights[0] = 1.0;
    for i in 1..=n {
        let top = i * m;
        for u in (m + i..=top).rev() {
            weights[u] -= weights[u - m - i];
        }
        for u in i..=top {
            weights[u] += weights[u - i];
        }
        let scale = i as f64 / (m + i) as f64;
        weights.iter_mut().take(top + 1).for_each(|weight| *weight *= scale);
    }
    weights.iter().take(at_most + 1).sum::<f64>().clamp(0.0, 1.0)
}

/// Returns P(|Z| > z) of the standard normal, z ≥ 0: 2·Q(z) by the continued fraction of Mills'
/// ratio for large z and by the series of Φ for small z (Abramowitz and Stegun, 26.2.14 and
/// 26.2.11).
fn two_sided_normal(z: f64) -> f64 {
    let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if z > 3.0 {
        let mut fraction = z;
        for k in (1..=60).rev() {
            fraction = z + f64::from(k) / fraction;
        }
        return 2.0 * density / fraction;
    }
    let (mut sum, mut term) = (0.0, z);
    let mut k = 1.0;
    while term > 1e-17 {
        sum += term;
        k += 2.0;
        term *= z * z / k;
    }
    (1.0 - 2.0 * density * sum).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::Rng;
    use rand_pcg::Pcg64;

    use super::*;

    #[track_caller]
    fn near(got: f64, expected: f64) {
        assert!((got / expected - 1.0).abs() < 1e-4, "{got}, expected {expected}");
    }

    #[test]
    fn exact_values_are_those_of_every_order() {
        // All ways to choose which 4 of 9 values are the first sample's.
        let (n, m) = (4, 5);
        let mut counts = vec![0_u32; n * m + 1];
        let mut orders = 0;
        for chosen in 0_u32..1 << (n + m) {
            if chosen.count_ones() as usize != n {
                continue;
            }
            let ranks: u32 = (0..9).filter(|i| chosen >> i & 1 == 1).map(|i| i + 1).sum();
            counts[ranks as usize - n * (n + 1) / 2] += 1;
            orders += 1;
        }
        let mut below = 0;
        for (u, count) in counts.iter().enumerate() {
            below += count;
            near(lower_tail(n, m, u), f64::from(below) / f64::from(orders));
            near(lower_tail(m, n, u), f64::from(below) / f64::from(orders));
        }
    }

    #[test]
    fn published_values() {
        // The example of Hollander and Wolfe that R's wilcox.test documents:
        // W = 35, one-sided p = 0.1272 (two-sided 0.2544).
        let at_term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let early = [1.15, 0.88, 0.90, 0.74, 1.21];
        let test = mann_whitney(&at_term, &early).unwrap();
        assert_eq!(test.u, 35.0);
        near(test.p_value, 0.254_412);
        // Tables: n = m = 8, U = 13 is the largest with p ≤ 0.05 two-sided.
        assert!(2.0 * lower_tail(8, 8, 13) <= 0.05 && 2.0 * lower_tail(8, 8, 14) > 0.05);
        // n = m = 20: 127.
        assert!(2.0 * lower_tail(20, 20, 127) <= 0.05 && 2.0 * lower_tail(20, 20, 128) > 0.05);
    }

    #[test]
    fn ties_are_corrected_for() {
        // By hand: ranks 1, 3, 3, 3, 5.5, 5.5, 7, 8; first sample's sum 13,
        // U = 3, variance 16/12·(9 − 30/56) = 11.286, z = (5 − ½)/3.359.
        let test = mann_whitney(&[1.0, 2.0, 2.0, 3.0], &[2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!(test.u, 2.5);
        near(test.p_value, two_sided_normal((8.0 - 2.5 - 0.5) / 11.285_714_f64.sqrt()));
        // All values are equal: no difference.
        assert_eq!(mann_whitney(&[1.0; 9], &[1.0; 7]).unwrap().p_value, 1.0);
    }

    #[test]
    fn normal_tail_is_that_of_the_tables() {
        for (z, p) in [
            (0.0, 1.0),
            (1.0, 0.317_310_5),
            (1.959_964, 0.05),
            (2.999_9, 0.002_700_7),
            (3.0, 0.002_699_8),
            (3.000_1, 0.002_698_9),
            (6.0, 1.973_175e-9),
        ] {
            near(two_sided_normal(z), p);
        }
    }

    #[test]
    fn approximation_joins_the_exact_distribution() {
        let (n, m) = (50_usize, 50_usize);
        let variance = (n * m * (n + m + 1)) as f64 / 12.0;
        for u in [850_u32, 1000, 1200] {
            let deviation = 0.5 * (n * m) as f64 - f64::from(u) - 0.5;
            let normal = two_sided_normal(deviation / variance.sqrt());
            let exact = 2.0 * lower_tail(n, m, u as usize);
            // The flatter tails of U make 6% at 2.75 standard deviations (Edgeworth).
            assert!((normal / exact - 1.0).abs() < 0.08, "{normal} against {exact}");
        }
    }

    #[test]
    fn smallest_p_value_is_that_of_samples_apart() {
        for (n, m) in [(1, 1), (3, 3), (4, 9), (20, 20)] {
            let a: Vec<f64> = (0..n).map(f64::from).collect();
            let b: Vec<f64> = (0..m).map(|i| f64::from(i) + 100.0).collect();
            near(smallest_p_value(n as usize, m as usize), mann_whitney(&a, &b).unwrap().p_value);
        }
    }

    #[test]
    fn false_alarms_are_as_rare_as_asked_and_a_shift_is_found() {
        let mut rng = Pcg64::new(3, 5);
        // Skewed noise: the test assumes no distribution.
        let mut sample = |n: usize, centre: f64| -> Vec<f64> {
            (0..n)
                .map(|_| {
                    let uniform = (rng.next_u64() as f64 + 0.5) / u64::MAX as f64;
                    centre * (1.0 - 0.04 * uniform.ln())
                })
                .collect()
        };
        for n in [8, 20, 60] {
            let (mut alarms, mut found) = (0, 0);
            for _ in 0..2000 {
                let a = sample(n, 1.0);
                alarms += u32::from(mann_whitney(&a, &sample(n, 1.0)).unwrap().p_value < 0.05);
                found += u32::from(mann_whitney(&a, &sample(n, 1.1)).unwrap().p_value < 0.05);
            }
            // 5% of 2000 is 100, with a standard deviation of 10.
            assert!(alarms < 135, "{alarms} of 2000 at {n}");
            assert!(found > 1900, "{found} of 2000 at {n}");
        }
    }

    #[test]
    fn files_that_cannot_be_compared_are_an_error() {
        assert!(matches!(mann_whitney(&[], &[1.0]), Err(StatsError::TooFew { .. })));
        let infinite = mann_whitney(&[1.0], &[1.0, f64::INFINITY]);
        assert!(matches!(infinite, Err(StatsError::NotFinite { index: 2, .. })));
    }

    proptest! {
        #[test]
        fn order_of_samples_and_values_does_not_matter(
            a in prop::collection::vec(0..30_u8, 1..20), b in prop::collection::vec(0..30_u8, 1..20),
        ) {
            let [a, b] = [a, b].map(|v| v.into_iter().map(f64::from).collect::<Vec<f64>>());
            let (one, other) = (mann_whitney(&a, &b).unwrap(), mann_whitney(&b, &a).unwrap());
            prop_assert!((one.p_value - other.p_value).abs() < 1e-12);
            prop_assert!((one.u + other.u - (a.len() * b.len()) as f64).abs() < 1e-9);
            prop_assert!((0.0..=1.0).contains(&one.p_value));
        }
    }
}
