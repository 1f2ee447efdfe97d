//! Exact percentile bootstrap of a median.
//!
//! A resample of `n` values draws each with probability 1/n. Its `m`-th smallest is at most the
//! `i`-th smallest of the original if at least `m` draws fall among the first `i`. That is a
//! binomial probability. The distribution over all nⁿ resamples therefore needs no random numbers
//! (B. Efron, "Bootstrap methods: another look at the jackknife", 1979, section 3).
//!
//! Alone it is too narrow for few values (n = 5 covers less than the range's 93.75%);
//! [`super::ratio_interval`] uses it only to widen an interval.

use super::sign::binomial;

/// Returns the rank (from 1) of the order statistic at the lower end of the percentile interval.
/// The upper end has the same rank from the top.
///
/// With even `n` a resample's median is the mean of its two middle values. The lower of them is
/// used here, so the interval is never narrower than the percentile bootstrap's. `n` ≥ 1.
pub(super) fn lower_rank(n: usize, confidence: f64) -> usize {
    let tail = 0.5 * (1.0 - confidence);
    let middle = n.div_ceil(2);
    // P(resample's middle value ≤ i-th smallest) grows with i.
    let (mut below, mut reached) = (0, n);
    while reached - below > 1 {
        let i = below + (reached - below) / 2;
        let p = i as f64 / n as f64;
        let at_most: f64 = binomial(n, p).skip(middle).sum();
        if at_most >= tail {
            reached = i;
        } else {
            below = i;
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand_pcg::Pcg64;

    use super::*;

    #[test]
    fn equals_resampling() {
        let mut rng = Pcg64::new(7, 11);
        let resamples = 40_000;
        for n in [5_usize, 8, 12, 25] {
            let mut middles: Vec<usize> = (0..resamples)
                .map(|_| {
                    let mut ranks: Vec<usize> =
                        (0..n).map(|_| (rng.next_u64() % n as u64) as usize + 1).collect();
                    ranks.sort_unstable();
                    ranks[n.div_ceil(2) - 1]
                })
                .collect();
            middles.sort_unstable();
            for confidence in [0.9, 0.95] {
                let place = (0.5 * (1.0 - confidence) * f64::from(resamples)) as usize;
                assert_eq!(lower_rank(n, confidence), middles[place], "n {n} at {confidence}");
            }
        }
    }
}
