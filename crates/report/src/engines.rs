//! Compares external load generators with the built-in engine, in words.

use results::{Cell, Interval, Results, Role};

use crate::style::plain;
use crate::unit::{self, bytes};

/// Returns a line for each cell that was measured by an external tool and by the built-in engine in
/// the same blocks.
pub(crate) fn engines(results: &Results) -> Vec<String> {
    // The A/A cell repeats the same path.
    let cells = results.cells.iter().filter(|cell| cell.role != Role::Aa);
    cells.filter_map(|cell| Some(line(cell, cell.tool.as_ref()?.ratio?))).collect()
}

fn line(cell: &Cell, ratio: Interval) -> String {
    format!(
        "{} in {}, {} messages, offload {}: {} {}",
        plain(&cell.mode),
        cell.workload,
        bytes(f64::from(cell.message_bytes)),
        cell.offload,
        cell.engine,
        verdict(ratio),
    )
}

/// Width of an interval, upper ÷ lower end, up to which it shows agreement.
const MOST_FOR_AGREEMENT: f64 = 1.5;

fn verdict(ratio: Interval) -> String {
    let Interval { median, low, high, confidence, .. } = ratio;
    let percent = confidence * 100.0;
    // A wide interval includes 1 because little is known, not because both agree.
    if low <= 1.0 && 1.0 <= high && high > low * MOST_FOR_AGREEMENT {
        let (low, high) = (unit::ratio(low), unit::ratio(high));
        return format!(
            "cannot tell whether it agrees with the built-in engine, interval {low} – {high} \
             ({percent:.0}%)"
        );
    }
    let verdict = if low > 1.0 {
        "measures more than the built-in engine"
    } else if high < 1.0 {
        "measures less than the built-in engine"
    } else {
        "agrees with the built-in engine"
    };
    format!("{verdict}, ratio {median:.2} ({low:.2} – {high:.2}, {percent:.0}%)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        let of =
            |low, high| verdict(Interval { median: 1.0, low, high, confidence: 0.95, samples: 9 });
        assert_eq!(of(0.99, 1.2), "agrees with the built-in engine, ratio 1.00 (0.99 – 1.20, 95%)");
        assert_eq!(
            of(0.03, 1.22),
            "cannot tell whether it agrees with the built-in engine, interval 0.030 – 1.22 (95%)"
        );
        assert!(of(1.01, 1.2).starts_with("measures more"));
        assert!(of(0.8, 0.99).starts_with("measures less"));
    }
}
