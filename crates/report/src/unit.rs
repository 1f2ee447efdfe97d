//! Formats figures for people: three digits and a unit.

use results::{Arrivals, Cell, Interval, Role, Unit};

/// A scale shared by the figures of one table, so that they can be compared at a glance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    divisor: f64,
    /// Unit with its prefix (`Gb/s`, `k/s`).
    pub(crate) label: &'static str,
}

impl Scale {
    /// For figures in `unit` (a cell's) up to `largest`.
    pub(crate) fn new(unit: Unit, largest: f64) -> Self {
        let labels = match unit {
            Unit::Bits => ["bit/s", "kb/s", "Mb/s", "Gb/s"],
            Unit::Microseconds => ["us", "ms", "s", "ks"],
            _ => ["1/s", "k/s", "M/s", "G/s"],
        };
        let step = [1e9, 1e6, 1e3].iter().position(|limit| largest >= *limit).map_or(0, |i| 3 - i);
        Scale { divisor: 1000_f64.powi(step as i32), label: labels[step] }
    }

    /// The figure on this scale, without the unit.
    pub(crate) fn number(self, value: f64) -> String {
        three_digits(value / self.divisor)
    }
}

/// A figure with its unit, on a scale of its own.
pub fn with_unit(value: f64, unit: Unit) -> String {
    let scale = Scale::new(unit, value);
    match unit {
        Unit::Bits | Unit::Microseconds => format!("{} {}", scale.number(value), scale.label),
        Unit::Datagrams | Unit::Transactions | Unit::Connections => {
            let thing = unit.name().trim_end_matches("/s");
            let prefix = scale.label.strip_suffix("/s").filter(|p| *p != "1").unwrap_or("");
            format!("{}{prefix} {thing}s/s", scale.number(value))
        }
    }
}

/// Larger numbers would break a table's layout.
const LONGEST: f64 = 1e7;

/// Formats three significant digits. Uses an exponent only for numbers too long for a column.
pub(crate) fn three_digits(value: f64) -> String {
    if value.abs() >= LONGEST {
        return format!("{value:.2e}");
    }
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v if v >= 0.09995 => 3,
        0.0 => 0,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// Formats a ratio: two decimals, or more digits if needed.
pub(crate) fn ratio(value: f64) -> String {
    match value {
        v if v >= LONGEST => format!("{v:.0e}"),
        v if v >= 99.5 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v >= 0.0995 || v == 0.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// Width of an interval, upper ÷ lower end, above which its median says nothing.
const TOO_WIDE: f64 = 10.0;

/// Returns whether an interval is so wide that its median is no figure.
pub(crate) fn is_too_wide(interval: &Interval) -> bool {
    interval.high > interval.low * TOO_WIDE
}

/// Formats the median of an interval of ratios; `?` if the interval is too wide for a figure.
pub(crate) fn of_interval(interval: &Interval) -> String {
    if is_too_wide(interval) { "?".to_string() } else { ratio(interval.median) }
}

/// Formats an interval of ratios.
pub(crate) fn range(interval: &Interval) -> String {
    format!("{} – {}", ratio(interval.low), ratio(interval.high))
}

/// Formats a cell's CPU time per unit as ratio to the baseline: `1` at the baseline, `–` if the
/// load's CPU time is unknown.
pub(crate) fn cpu_ratio(cell: &Cell) -> String {
    match (&cell.service_demand, cell.role) {
        (None, _) if cell.service_demand_reason.is_some() => "–".to_string(),
        (None, _) => String::new(),
        (Some(_), Role::Baseline) => "1".to_string(),
        (Some(demand), _) => demand.ratio.as_ref().map(of_interval).unwrap_or_default(),
    }
}

/// Share of the datagrams that arrived after one that was sent later.
pub(crate) fn reordered(arrivals: &Arrivals) -> f64 {
    arrivals.reordered as f64 / arrivals.received.max(1) as f64
}

/// A message's or skb's size.
pub(crate) fn bytes(size: f64) -> String {
    // Bytes are exact and short enough here.
    if size < 10_000.0 && size % 1024.0 != 0.0 || size < 1024.0 {
        return format!("{size:.0} B");
    }
    let kib = size / 1024.0;
    if kib.fract() == 0.0 || kib >= 99.95 {
        format!("{kib:.0} KiB")
    } else {
        format!("{kib:.1} KiB")
    }
}

pub(crate) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    match percent {
        p if p > 999.0 => ">999%".to_string(),
        p if p >= 9.95 => format!("{p:.0}%"),
        p if p >= 0.095 || p == 0.0 => format!("{p:.1}%"),
        p => format!("{p:.2}%"),
    }
}

/// Formats half the width of an interval: `±12%`, `>±999%`.
pub(crate) fn plus_minus(share: f64) -> String {
    match percent(share).strip_prefix('>') {
        Some(most) => format!(">±{most}"),
        None => format!("±{}", percent(share)),
    }
}

pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        for (value, shown) in [
            (16.123, "16.1"),
            (9.996, "10.0"),
            (1.0, "1.00"),
            (0.9996, "1.00"),
            (0.5, "0.500"),
            (123.4, "123"),
            (1.234e9, "1.23e9"),
            (99.96, "100"),
            (0.0123, "0.0123"),
            (0.0, "0"),
        ] {
            assert_eq!(three_digits(value), shown);
        }
    }

    #[test]
    fn scales_fit_the_largest_figure() {
        assert_eq!(Scale::new(Unit::Bits, 16e9).number(903e6), "0.903");
        assert_eq!(Scale::new(Unit::Bits, 16e9).label, "Gb/s");
        assert_eq!(Scale::new(Unit::Datagrams, 220e3).label, "k/s");
        assert_eq!(Scale::new(Unit::Transactions, 12.0).label, "1/s");
        assert_eq!(with_unit(11.3e9, Unit::Bits), "11.3 Gb/s");
        assert_eq!(with_unit(38_200.0, Unit::Transactions), "38.2k transactions/s");
        assert_eq!(with_unit(7.0, Unit::Connections), "7.00 connections/s");
    }

    #[test]
    fn half_a_width_has_one_sign() {
        assert_eq!(plus_minus(0.123), "±12%");
        assert_eq!(plus_minus(50.0), ">±999%");
    }

    #[test]
    fn an_interval_wider_than_a_factor_of_ten_is_no_figure() {
        let of = |median, low, high| {
            of_interval(&Interval { median, low, high, confidence: 0.95, samples: 9 })
        };
        assert_eq!(of(0.14, 0.03, 1.22), "?");
        assert_eq!(of(0.5, 0.0, 1.0), "?");
        assert_eq!(of(0.5, 0.15, 1.4), "0.50");
        // Nothing arrived in any block: that is a figure.
        assert_eq!(of(0.0, 0.0, 0.0), "0.00");
    }

    #[test]
    fn sizes_ratios_and_shares_are_short() {
        assert_eq!(bytes(1.0), "1 B");
        assert_eq!(bytes(65536.0), "64 KiB");
        assert_eq!(bytes(1500.0), "1500 B");
        assert_eq!(bytes(44_012.0), "43.0 KiB");
        assert_eq!(bytes(65507.0), "64.0 KiB");
        assert_eq!(
            (ratio(0.724), ratio(0.0432), ratio(12.34)),
            ("0.72".into(), "0.043".into(), "12.3".into())
        );
        assert_eq!(
            (percent(0.0123), percent(0.0004), percent(0.31)),
            ("1.2%".into(), "0.04%".into(), "31%".into())
        );
    }
}
