//! One chart of all figures of several files against the first one.

use results::Interval;

use super::Chart;
use super::bars::{Bars, Mark, Row, draw};
use super::scale::Kind;

/// Most rows of the chart. The tables below it have all figures.
const ROWS: usize = 150;

/// A figure of each file ÷ that of the first one.
pub(crate) struct Change {
    pub(crate) name: String,
    /// Index of the file, and the quotient.
    pub(crate) by_file: Vec<(usize, Interval)>,
}

/// Draws groups of figures; `files` names the files after the first one. `None` without any figure.
pub(crate) fn chart(
    title: String,
    files: Vec<String>,
    groups: Vec<(String, Vec<Change>)>,
) -> Option<Chart> {
    let mut rows = Vec::new();
    for (heading, changes) in groups {
        rows.push(Row::heading(heading));
        rows.extend(changes.into_iter().map(|change| {
            let mark = |(style, of): (usize, Interval)| Mark {
                style,
                at: of.median,
                ends: Some((of.low, of.high)),
            };
            let marks = change.by_file.into_iter().map(mark).collect();
            Row { name: change.name, marks, ..Row::default() }
        }));
    }
    rows.truncate(ROWS);
    let medians = || rows.iter().flat_map(|row| &row.marks).map(|mark| mark.at);
    medians().next()?;
    let (smallest, largest) = (medians().fold(1.0, f64::min), medians().fold(1.0, f64::max));
    let kind = if largest > 4.0 && largest / smallest > 8.0 { Kind::Log } else { Kind::Linear };
    let words = "÷ A; CPU time and latency inverted".to_owned();
    let bars = Bars { words, kind, mark: Some(1.0), legend: files, rows };
    Chart::new("compared", title, "Right of 1 is better than A.", draw(&bars))
}
