//! Maps figures to positions on an axis, and chooses its ticks.

use crate::unit::three_digits;

/// Mapping from figures to positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Equal steps of the figure.
    Linear,
    /// Equal factors of the figure.
    Log,
    /// Equal factors of 1 − p, for percentiles p in 0..1.
    Tail,
}

/// A range of figures mapped to a range of pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Maps figures `low` to `high` to pixels `from` to `to`. An invalid range (empty, or not above
    /// 0 on a log scale) is widened.
    pub(crate) fn new(kind: Kind, low: f64, high: f64, from: f64, to: f64) -> Scale {
        // An edited file may hold any numbers.
        let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
        let (mut low, mut high) = (finite(low), finite(high));
        match kind {
            Kind::Linear if high <= low => high = low + low.abs().max(1.0),
            Kind::Linear => {}
            Kind::Log => {
                // A log scale needs numbers above 0.
                low = low.max(1e-300);
                high = high.max(1e-299);
                if high <= low * 1.01 {
                    (low, high) = (low / 1.5, high.max(low) * 1.5);
                }
            }
            Kind::Tail => {
                // A tail scale never reaches 1, whose distance is infinite.
                low = low.clamp(0.0, 0.9);
                high = high.clamp(low + 0.05, 1.0 - 1e-9);
            }
        }
        Scale { kind, low, high, from, to }
    }

    fn spread(&self, value: f64) -> f64 {
        match self.kind {
            Kind::Linear => value,
            Kind::Log => value.max(1e-300).ln(),
            Kind::Tail => -(1.0 - value.min(1.0 - 1e-12)).ln(),
        }
    }

    /// Returns the position of a figure. Figures outside the range get the position of the nearest
    /// end.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let (low, high) = (self.spread(self.low), self.spread(self.high));
        let share = (self.spread(value) - low) / (high - low);
        // Figures outside the range may overflow to infinity.
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        self.from + share * (self.to - self.from)
    }

    /// Returns about `wanted` figures to mark, with labels.
    pub(crate) fn ticks(&self, wanted: usize) -> Vec<(f64, String)> {
        let values: Vec<f64> = match self.kind {
            Kind::Linear => linear(self.low, self.high, wanted),
            Kind::Log => log(self.low, self.high, wanted),
            Kind::Tail => [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999]
                .into_iter()
                .filter(|p| *p >= self.low && *p <= self.high + 1e-9)
                .collect(),
        };
        let label = |value: f64| match self.kind {
            Kind::Tail => format!("p{}", (value * 1e7).round() / 1e5),
            _ => short(value),
        };
        values.into_iter().map(|value| (value, label(value))).collect()
    }
}

/// Formats `0.5`, `20`, `1.5k`, `3M`: short enough for a tick.
pub(crate) fn short(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        v if (1e9..1e12).contains(&v) => (value / 1e9, "G"),
        v if (1e6..1e9).contains(&v) => (value / 1e6, "M"),
        v if (1e4..1e6).contains(&v) => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = three_digits(value);
    let text = match text.split_once('.') {
        Some((_, digits)) if !digits.contains('e') => {
            text.trim_end_matches('0').trim_end_matches('.')
        }
        _ => &text,
    };
    format!("{text}{suffix}")
}

/// Returns multiples of 1, 2 or 5 powers of ten.
fn linear(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let step = nice((high - low) / wanted.max(1) as f64);
    // A range too wide or too narrow for f64 has no steps.
    if !step.is_finite() || step <= 0.0 {
        return vec![low];
    }
    let first = (low / step - 1e-9).ceil();
    (0..=2 * wanted)
        .map(|i| (first + i as f64) * step)
        .take_while(|value| *value <= high + 1e-9 * step)
        .collect()
}

/// Returns the smallest of 1, 2 and 5 powers of ten that is not below `value`.
pub(crate) fn nice(value: f64) -> f64 {
    if !(value.is_finite() && value > 0.0) {
        return 0.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= value * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

/// Returns powers of ten, with their multiples by 2 and 5 if there is room.
fn log(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let decades = (last - first).max(1) as usize;
    let within = |value: &f64| *value >= low * 0.999 && *value <= high * 1.001;
    let digits: &[f64] = if decades * 3 <= wanted + 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    // Skip decades if there are more than ticks wanted.
    let every = decades.div_ceil(wanted.max(1)).max(1);
    (first..=last)
        .step_by(every)
        .flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)))
        .filter(within)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn places_are_even_in_the_kind_of_the_scale() {
        let linear = Scale::new(Kind::Linear, 0.0, 10.0, 100.0, 200.0);
        assert_eq!(
            (linear.place(0.0), linear.place(5.0), linear.place(99.0)),
            (100.0, 150.0, 200.0)
        );
        let log = Scale::new(Kind::Log, 1.0, 10_000.0, 0.0, 400.0);
        assert!((log.place(10.0) - 100.0).abs() < 1e-9 && (log.place(1000.0) - 300.0).abs() < 1e-9);
        let tail = Scale::new(Kind::Tail, 0.0, 0.9999, 0.0, 400.0);
        assert!((tail.place(0.9) - 100.0).abs() < 1e-6 && (tail.place(0.999) - 300.0).abs() < 1e-6);
        let down = Scale::new(Kind::Linear, 0.0, 1.0, 200.0, 0.0);
        assert_eq!(down.place(0.25), 150.0);
    }

    #[test]
    fn ticks_are_round_and_labelled() {
        let labels = |scale: Scale, wanted| -> Vec<String> {
            scale.ticks(wanted).into_iter().map(|(_, label)| label).collect()
        };
        let linear = |high| labels(Scale::new(Kind::Linear, 0.0, high, 0.0, 1.0), 5);
        assert_eq!(linear(1.25), ["0", "0.5", "1"]);
        assert_eq!(linear(9e9), ["0", "2G", "4G", "6G", "8G"]);
        assert_eq!(labels(Scale::new(Kind::Log, 1.0, 1e6, 0.0, 1.0), 4), ["1", "100", "10k", "1M"]);
        assert_eq!(
            labels(Scale::new(Kind::Log, 20.0, 700.0, 0.0, 1.0), 6),
            ["20", "50", "100", "200", "500"]
        );
        let tail = labels(Scale::new(Kind::Tail, 0.0, 0.9999, 0.0, 1.0), 6);
        assert_eq!(tail, ["p0", "p50", "p90", "p99", "p99.9", "p99.99"]);
    }

    proptest! {
        #[test]
        fn any_figures_have_places_and_few_ticks(
            low in any::<f64>(), high in any::<f64>(), value in any::<f64>(),
        ) {
            for kind in [Kind::Linear, Kind::Log, Kind::Tail] {
                let scale = Scale::new(kind, low, high, 10.0, 300.0);
                prop_assert!((10.0..=300.0).contains(&scale.place(value)), "{scale:?} {value}");
                let ticks = scale.ticks(5);
                prop_assert!(ticks.len() <= 16, "{ticks:?}");
            }
        }
    }
}
