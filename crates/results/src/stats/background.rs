//! Usual level and spread of a disturbance, learned over a run, and the bound above which a value
//! stands out.
//!
//! Both are robust. A few bursts move neither the median nor the median absolute deviation; a
//! permanent load moves the median once it fills half of the window. Only the last [`WINDOW`]
//! values count, so that a load that starts in the middle of a run becomes the background, and one
//! that ends is forgotten.

use std::collections::VecDeque;

use super::describe::median;

/// Number of values in the window: odd, so that the median is one of them.
pub const WINDOW: usize = 31;
/// Number of values before the spread is used; until then only the least allowance applies.
const ENOUGH: usize = 5;
/// A value this many spreads above the level stands out: one in 30 000 of normal noise.
const SPREADS: f64 = 4.0;
/// Standard deviation ÷ median absolute deviation, for normal noise.
const NORMAL: f64 = 1.4826;

/// Level and spread of the latest values of a share.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Background {
    recent: VecDeque<f64>,
}

impl Background {
    /// Adds a value, which may stand out. Ignores values that are not finite.
    pub fn learn(&mut self, value: f64) {
        // A share that is unknown must not become part of the background.
        if !value.is_finite() {
            return;
        }
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(value);
    }

    /// Median of the latest values; 0 before the first.
    pub fn level(&self) -> f64 {
        median(&self.values()).unwrap_or(0.0)
    }

    /// Standard deviation of the latest values, estimated from the median absolute deviation; 0
    /// before there are enough.
    pub fn spread(&self) -> f64 {
        // The deviation of a few values says nothing.
        if self.recent.len() < ENOUGH {
            return 0.0;
        }
        let level = self.level();
        let away: Vec<f64> = self.recent.iter().map(|value| (value - level).abs()).collect();
        NORMAL * median(&away).unwrap_or(0.0)
    }

    /// Returns the highest value that does not stand out. It is at least `least` above the level,
    /// because smaller excesses are not worth another sample.
    pub fn bound(&self, least: f64) -> f64 {
        self.level() + least.max(SPREADS * self.spread())
    }

    fn values(&self) -> Vec<f64> {
        self.recent.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(values: impl IntoIterator<Item = f64>) -> Background {
        let mut background = Background::default();
        values.into_iter().for_each(|value| background.learn(value));
        background
    }

    #[test]
    fn nothing_known_is_an_idle_machine() {
        let background = learned([]);
        assert_eq!(
            (background.level(), background.spread(), background.bound(0.1)),
            (0.0, 0.0, 0.1)
        );
        assert_eq!(learned([f64::NAN, f64::INFINITY]), background);
    }

    #[test]
    fn a_steady_load_is_no_disturbance_and_a_burst_on_it_is() {
        let steady = learned((0..20).map(|at| 0.5 + f64::from(at % 3) * 0.01));
        assert!((steady.level() - 0.51).abs() < 1e-12);
        assert!(steady.bound(0.1) > 0.6 && steady.bound(0.1) < 0.62, "{}", steady.bound(0.1));
    }

    #[test]
    fn bursts_do_not_raise_the_bound_that_finds_them() {
        let bursts = learned((0..30).map(|at| if at % 4 == 0 { 0.9 } else { 0.05 }));
        assert!((bursts.bound(0.1) - 0.15).abs() < 1e-9, "{}", bursts.bound(0.1));
    }

    #[test]
    fn a_load_that_comes_and_goes_all_the_time_is_the_background() {
        let swinging = learned((0..31).map(|at| f64::from(at * 7 % 31) / 31.0));
        assert!(swinging.bound(0.1) >= 1.0, "{}", swinging.bound(0.1));
    }

    #[test]
    fn a_load_that_stays_is_learned_within_the_window_and_forgotten() {
        let mut background = learned([0.0; WINDOW]);
        let mut standing_out = 0;
        while background.bound(0.1) < 0.6 {
            standing_out += 1;
            background.learn(0.6);
        }
        assert!(standing_out <= WINDOW / 2 + 1, "{standing_out}");
        (0..WINDOW).for_each(|_| background.learn(0.0));
        assert_eq!(background, learned([0.0; WINDOW]));
    }
}
