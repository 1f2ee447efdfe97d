//! `overlane report`: shows a results file as tables, an HTML page or charts, and a recording of
//! `watch` as text or an HTML page.

use std::io::BufRead;
use std::path::Path;

use crate::args::Format;
use crate::exit::{Exit, usage};
use crate::input::{Shown, shown_in};
use crate::output::{Destination, Directory, columns, print_folded, print_results};
use crate::recording::Recording;
use crate::report_args::{Report, ReportVerb};
use crate::verb::report_compare;

/// Reads the file, and prints or writes the requested formats.
///
/// # Errors
/// A usage error for a file that is neither results nor a recording; an output that cannot be
/// written.
pub fn run(arguments: &Report) -> anyhow::Result<Exit> {
    if let Some(ReportVerb::Compare(compare)) = &arguments.verb {
        return report_compare::run(compare);
    }
    // Check the outputs before the work of reading the file.
    let html = arguments.html.as_deref();
    let html = html.map(|path| Destination::check_for("--html", path)).transpose()?;
    let svg = arguments.svg.as_deref();
    let svg = svg.map(|path| Directory::check("--svg", path)).transpose()?;
    let results = match shown_in(arguments.file.as_deref().unwrap_or(Path::new("")))? {
        Shown::Results(results) => match &arguments.baseline {
            None => results,
            Some(mode) => {
                let rebased = report::rebased(*results, mode);
                Box::new(rebased.map_err(|error| usage("--baseline", error))?)
            }
        },
        Shown::Recording(recording) => return of_recording(recording, arguments, html),
    };
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
        // With files as output, print text only on request.
        _ if html.is_some() || svg.is_some() => None,
        _ => Some(Format::Text),
    };
    if let Some(format) = format {
        print_results(&results, format)?;
    }
    Ok(Exit::Done)
}

/// Shows a recording of `watch`.
fn of_recording(
    mut recording: Recording<impl BufRead>,
    arguments: &Report,
    html: Option<Destination>,
) -> anyhow::Result<Exit> {
    let cannot =
        |argument| Err(usage(argument, "a recording of watch supports only text and --html"));
    match arguments {
        Report { baseline: Some(_), .. } => return cannot("--baseline"),
        Report { svg: Some(_), .. } => return cannot("--svg"),
        Report { markdown: true, .. } => return cannot("--markdown"),
        Report { csv: true, .. } => return cannot("--csv"),
        // The recording is already JSON, and `watch FILE --json` prints it.
        Report { json: true, .. } => return cannot("--json"),
        Report { format: Some(format), .. } if *format != Format::Text => {
            return cannot("--format");
        }
        _ => {}
    }
    let mut summed_up = report::Recording::default();
    while let Some(snapshot) = recording.next()? {
        summed_up.add(&snapshot);
    }
    if let Some(html) = &html {
        html.write(report::recording_html(&summed_up))?;
    }
    if html.is_none() || arguments.format.is_some() {
        print_folded(&report::recording_text(&summed_up, columns()))?;
    }
    Ok(Exit::Done)
}
