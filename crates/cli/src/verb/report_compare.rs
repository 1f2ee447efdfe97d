//! `overlane report compare`: shows proven differences between two runs, and can fail on them.

use crate::args::Compare;
use crate::exit::{Exit, Usage, usage};
use crate::input::results_in_one;
use crate::output::{print, print_json, style};

/// Exit code where a proven regression exceeds the limit.
const REGRESSION: u8 = 10;

/// Reads both files and prints the comparison.
///
/// # Errors
/// A usage error for a file that is not a results file, or two files without common cells.
pub fn run(arguments: &Compare) -> anyhow::Result<Exit> {
    let fail_on = arguments.fail_on.as_deref().map(limit).transpose()?;
    let (a, b) = (results_in_one(&arguments.a)?, results_in_one(&arguments.b)?);
    let comparison = report::compare(&a, &b, fail_on)
        .map_err(|error| anyhow::Error::new(Usage(error.to_string())))?;
    if arguments.json {
        print_json(&comparison)?;
    } else {
        print(&report::compare_text(&comparison, style()))?;
    }
    Ok(if comparison.failed { Exit::Code(REGRESSION) } else { Exit::Done })
}

/// Parses `5%` or `5` as a fraction.
fn limit(text: &str) -> anyhow::Result<f64> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        // The range check also rejects NaN.
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(usage("--fail-on", format!("expected 0% to 100%, got {text:?}"))),
    }
}
