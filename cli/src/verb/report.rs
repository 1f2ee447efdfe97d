//! `overlane report`: a results file as a table, Markdown or CSV.

use measure::results::Results;

use crate::args::{Format, Report};
use crate::exit::{Exit, Usage};
use crate::output::print_results;

/// Reads the file and prints it.
pub fn run(arguments: &Report) -> anyhow::Result<Exit> {
    let results = Results::read(&arguments.file)
        .map_err(|error| anyhow::Error::new(Usage(format!("{error}"))))?;
    print_results(&results, if arguments.json { Format::Json } else { arguments.format })?;
    Ok(Exit::Done)
}
