//! Distribution-free intervals for a median, from order statistics.
//!
//! For any distribution of noise, the number of `n` independent values below their true median is
//! binomial with p = ½. The interval from the `k`-th smallest to the `k`-th largest value misses
//! the median with probability 2·P(B(n, ½) < k). That is exact for a continuous distribution, and
//! an upper bound otherwise.
//!
//! For small `n` these levels are far apart (n = 8: 99.2%, 93.0%). An end that is the mean of two
//! neighbouring order statistics gives a level in between, without further assumptions:
//!
//! 1. Let exactly k values lie below the median m. The averaged lower end is above m only
//!    if the nearest of the n−k values above is further from m than the nearest of the k
//!    below. Call that probability p.
//! 2. Call q the same for the upper end of the mirrored case, which is as likely.
//! 3. As n−k ≥ k, p and q only grow when both nearest are taken out of k values.
//! 4. Then the two are opposite events, so p + q ≤ 1. The averaging costs at most half of
//!    the step to the next level.
//!
//! Source: O. Guilbaud, "Interval estimation of the median of a general distribution", Scandinavian
//! Journal of Statistics 6, 1979. The mean may be taken on any scale. It is geometric here, so that
//! the interval of 1/ratio is 1/interval.

/// Levels closer than this are equal, because the sums below are rounded.
const ROUNDING: f64 = 1e-12;

/// Interval from the `rank`-th smallest to the `rank`-th largest value, or half a rank further in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SignInterval {
    /// Rank of the ends; 1 for the whole range.
    pub(super) rank: usize,
    /// Whether the ends are means of the order statistics `rank` and `rank + 1`.
    pub(super) averaged: bool,
}

impl SignInterval {
    /// Returns the narrowest interval of `n` values that covers the median with at least
    /// `confidence`; `None` if even the whole range does not.
    pub(super) fn narrowest(n: usize, confidence: f64) -> Option<Self> {
        let points: Vec<f64> = binomial(n, 0.5).take(n / 2 + 1).collect();
        let mut best = None;
        // Probability that the interval of the current rank misses on one side.
        let mut miss = 0.0;
        for rank in 1..=n.div_ceil(2) {
            miss += points[rank - 1];
            // Higher ranks only cover less.
            if 1.0 - 2.0 * miss < confidence - ROUNDING {
                break;
            }
            best = Some(SignInterval { rank, averaged: false });
            if rank < n / 2 && 1.0 - 2.0 * miss - points[rank] >= confidence - ROUNDING {
                best = Some(SignInterval { rank, averaged: true });
            }
        }
        best
    }

    /// Returns the coverage, which holds for every distribution.
    pub(super) fn coverage(self, n: usize) -> f64 {
        let miss: f64 = binomial(n, 0.5).take(self.rank).sum();
        let step = binomial(n, 0.5).nth(self.rank).filter(|_| self.averaged);
        1.0 - 2.0 * miss - step.unwrap_or(0.0)
    }

    /// Returns both ends; `sorted` holds numbers of at least 0, and at least `2 × rank − 1` of
    /// them.
    pub(super) fn ends(self, sorted: &[f64]) -> (f64, f64) {
        let (low, high) = (self.rank - 1, sorted.len() - self.rank);
        if !self.averaged {
            return (sorted[low], sorted[high]);
        }
        let mean = |a: f64, b: f64| a.sqrt() * b.sqrt();
        (mean(sorted[low], sorted[low + 1]), mean(sorted[high], sorted[high - 1]))
    }
}

/// Returns P(B(n, p) = k) for k = 0, 1 … n, using logarithms because 2⁻ⁿ underflows above n = 1074.
/// 0 < p < 1.
pub(super) fn binomial(n: usize, p: f64) -> impl Iterator<Item = f64> {
    let odds = p.ln() - (-p).ln_1p();
    let mut log = n as f64 * (-p).ln_1p();
    (0..=n).map(move |k| {
        if k > 0 {
            log += ((n + 1 - k) as f64 / k as f64).ln() + odds;
        }
        log.exp()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_the_printed_tables() {
        // Hollander and Wolfe, Nonparametric Statistical Methods, sign intervals.
        for (n, rank, percent) in
            [(5, 1, 93.8), (6, 1, 96.9), (8, 1, 99.2), (8, 2, 93.0), (12, 3, 96.1), (20, 6, 95.9)]
        {
            let got = 100.0 * SignInterval { rank, averaged: false }.coverage(n);
            assert!((got - percent).abs() < 0.05, "n {n} rank {rank}: {got}, table {percent}");
        }
    }

    #[test]
    fn narrowest_is_the_last_level_that_still_covers() {
        let whole = |rank| Some(SignInterval { rank, averaged: false });
        let half = |rank| Some(SignInterval { rank, averaged: true });
        assert_eq!(SignInterval::narrowest(5, 0.95), None, "the range of 5 covers 93.75%");
        assert_eq!(SignInterval::narrowest(6, 0.95), whole(1));
        assert_eq!(SignInterval::narrowest(7, 0.95), whole(1));
        assert_eq!(SignInterval::narrowest(8, 0.95), half(1), "(99.2% + 93.0%) / 2");
        assert_eq!(SignInterval::narrowest(9, 0.95), whole(2));
        assert_eq!(SignInterval::narrowest(11, 0.95), half(2));
        assert_eq!(SignInterval::narrowest(12, 0.95), whole(3));
        assert_eq!(SignInterval::narrowest(7, 0.99), None);
        assert_eq!(SignInterval::narrowest(8, 0.99), whole(1));
        for n in 1..400 {
            for confidence in [0.8, 0.95, 0.99, 0.999] {
                if let Some(interval) = SignInterval::narrowest(n, confidence) {
                    assert!(interval.coverage(n) >= confidence - ROUNDING);
                    assert!(interval.rank <= n.div_ceil(2));
                    // A level used as the target finds its own interval again.
                    assert_eq!(
                        SignInterval::narrowest(n, interval.coverage(n)),
                        Some(interval),
                        "n {n}"
                    );
                }
            }
        }
    }

    #[test]
    fn large_counts_do_not_underflow() {
        let interval = SignInterval::narrowest(5000, 0.95).unwrap();
        // n/2 − 1.96·√n/2
        assert!(interval.rank.abs_diff(2431) <= 2, "rank {}", interval.rank);
    }
}
