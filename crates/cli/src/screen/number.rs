//! Numbers in a few columns.

/// Formats a number in at most 5 characters. Negative or non-finite numbers become a dash.
pub fn short(value: f64) -> String {
    match value {
        v if !v.is_finite() || v < 0.0 => "-".to_owned(),
        0.0 => "0".to_owned(),
        v if v < 9.95 => format!("{v:.1}"),
        v if v < 9_999.5 => format!("{v:.0}"),
        v if v < 99_950.0 => format!("{:.1}k", v / 1e3),
        v if v < 9_999_500.0 => format!("{:.0}k", v / 1e3),
        v if v < 99_950_000.0 => format!("{:.1}M", v / 1e6),
        v if v < 9_999_500_000.0 => format!("{:.0}M", v / 1e6),
        v if v < 9_999_500_000_000.0 => format!("{:.0}G", v / 1e9),
        v => format!("{v:.0e}"),
    }
}

/// Formats nanoseconds as µs, in at most 5 characters below 10 s.
pub fn micros(ns: u64) -> String {
    match ns as f64 / 1000.0 {
        us if us < 999.95 => format!("{us:.1}"),
        us if us < 99_999.5 => format!("{us:.0}"),
        us => short(us),
    }
}

/// Formats a fraction as percent.
pub fn percent(share: f64) -> String {
    format!("{:.0}%", (100.0 * share).clamp(0.0, 100.0))
}

/// Converts bytes per second to Mbit/s.
pub fn megabits(bytes_per_s: f64) -> f64 {
    bytes_per_s * 8.0 / 1e6
}

/// Draws the last `width` values as block characters, scaled to their maximum.
pub fn blocks(values: &[Option<f64>], width: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values = &values[values.len().saturating_sub(width)..];
    // Scale to the visible values only.
    let most = values.iter().flatten().copied().fold(0.0, f64::max);
    let block = |value: f64| match value / most {
        // All values are zero.
        part if !part.is_finite() => BLOCKS[0],
        part => BLOCKS[(part * 7.0).round().clamp(0.0, 7.0) as usize],
    };
    let drawn: String = values.iter().map(|value| value.map_or(' ', block)).collect();
    format!("{drawn:>width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_wider_than_its_column() {
        let mut value = 1e-9;
        while value < 1e300 {
            for near in [value * 0.99999, value, value * 1.00001, value * 9.9996] {
                assert!(short(near).len() <= 5, "{near}: {}", short(near));
            }
            value *= 10.0;
        }
        for (value, shown) in [(0.0, "0"), (9.94, "9.9"), (9.96, "10"), (12_345.0, "12.3k")] {
            assert_eq!(short(value), shown);
        }
        for value in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(short(value), "-");
        }
        for ns in [0, 1, 999_949, 999_951, 99_999_000, 99_999_600, 9_000_000_000] {
            assert!(micros(ns).len() <= 5, "{ns}: {}", micros(ns));
        }
    }

    #[test]
    fn the_largest_of_the_last_values_is_highest() {
        assert_eq!(blocks(&[Some(9.0), Some(0.0), None, Some(4.0), Some(2.0)], 4), "▁ █▅");
        assert_eq!(blocks(&[Some(0.0), Some(0.0)], 4), "  ▁▁");
        assert_eq!(blocks(&[], 2), "  ");
        assert_eq!(blocks(&[Some(1.0)], 0), "");
    }
}
