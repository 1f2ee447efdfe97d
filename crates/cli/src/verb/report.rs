//! `overlane report`: a results file as tables, as a page with charts, as charts
//! alone.

use std::path::Path;

use crate::args::{Format, Report, ReportVerb};
use crate::exit::Exit;
use crate::input::results_in;
use crate::output::{Destination, Directory, print_results};
use crate::verb::report_compare;

/// Reads the file, and prints or writes what was asked for.
///
/// # Errors
/// A usage error for a file that is no results; what cannot be written.
pub fn run(arguments: &Report) -> anyhow::Result<Exit> {
    if let Some(ReportVerb::Compare(compare)) = &arguments.verb {
        return report_compare::run(compare);
    }
    // Where it goes is known to be writable before the file is read.
    let html = arguments.html.as_deref();
    let html = html.map(|path| Destination::check_for("--html", path)).transpose()?;
    let svg = arguments.svg.as_deref();
    let svg = svg.map(|path| Directory::check("--svg", path)).transpose()?;
    let results = results_in(arguments.file.as_deref().unwrap_or(Path::new("")))?;
    if let Some(html) = &html {
        html.write(report::html(&results))?;
    }
    if let Some(svg) = &svg {
        for chart in report::svg(&results) {
            svg.write(&chart.file_name(), &chart.svg)?;
        }
    }
    let format = match arguments {
        Report { format: Some(format), .. } => Some(*format),
        Report { json: true, .. } => Some(Format::Json),
        Report { markdown: true, .. } => Some(Format::Markdown),
        Report { csv: true, .. } => Some(Format::Csv),
        _ if html.is_some() || svg.is_some() => None,
        _ => Some(Format::Text),
    };
    if let Some(format) = format {
        print_results(&results, format)?;
    }
    Ok(Exit::Done)
}
