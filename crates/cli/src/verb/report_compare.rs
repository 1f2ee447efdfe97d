//! `overlane report compare`: shows proven differences between two runs, and can fail on them.

use report::Other;

use crate::exit::{Exit, Usage, usage};
use crate::input::results_in_one;
use crate::output::{Destination, print, print_json, print_raw, style};
use crate::report_args::Compare;

/// Exit code where a proven regression exceeds the limit.
const REGRESSION: u8 = 10;

/// Reads the files and prints the comparison.
///
/// # Errors
/// A usage error for a file that is not a results file, or files without common cells.
pub fn run(arguments: &Compare) -> anyhow::Result<Exit> {
    // Check the output before the work of reading the files.
    let html = arguments.html.as_deref();
    let html = html.map(|path| Destination::check_for("--html", path)).transpose()?;
    let fail_on = arguments.fail_on.as_deref().map(limit).transpose()?;
    let a = results_in_one(&arguments.a)?;
    let mut others = Vec::new();
    for path in &arguments.b {
        // One file at a time: each may be large.
        let b = results_in_one(path)?;
        let comparison = report::compare(&a, &b, fail_on);
        let name = path.display().to_string();
        let comparison = comparison.map_err(|error| {
            let which = if arguments.b.len() > 1 { format!("{name}: ") } else { String::new() };
            anyhow::Error::new(Usage(format!("{which}{error}")))
        })?;
        others.push(Other { name, comparison });
    }
    let failed = others.iter().any(|other| other.comparison.failed);
    let first = arguments.a.display().to_string();
    if let Some(html) = &html {
        html.write(report::compare_many_html(&first, &others))?;
    }
    match others.as_slice() {
        _ if arguments.markdown => print(&report::compare_many_markdown(&first, &others))?,
        _ if arguments.csv => print_raw(&report::compare_many_csv(&others))?,
        [Other { comparison, .. }] if arguments.json => print_json(comparison)?,
        _ if arguments.json => {
            print_json(&others.iter().map(|other| &other.comparison).collect::<Vec<_>>())?;
        }
        // With a file as output, print text only on request.
        _ if html.is_some() => {}
        [Other { comparison, .. }] => print(&report::compare_text(comparison, style()))?,
        _ => print(&report::compare_many_text(&first, &others, style()))?,
    }
    Ok(if failed { Exit::Code(REGRESSION) } else { Exit::Done })
}

/// Parses `5%` or `5` as a fraction.
pub fn limit(text: &str) -> anyhow::Result<f64> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        // The range check also rejects NaN.
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(usage("--fail-on", format!("expected 0% to 100%, got {text:?}"))),
    }
}
