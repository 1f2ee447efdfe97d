//! Charts: contents (one file each), drawing ([`lines`], [`bars`], [`timeline`], [`path`]), scales,
//! and labels that do not overlap.
//!
//! A chart is [`WIDTH`](svg::WIDTH) pixels wide, so that a phone shows it without shrinking its
//! text. On wider screens charts are placed side by side. Series differ by colour (Okabe and Ito's
//! palette, distinguishable with any colour vision), dash and marker.

mod bars;
mod clients;
mod compared;
mod cpu;
mod drop_point;
mod engines;
mod label;
mod latency;
mod lines;
mod load;
mod path;
mod published;
mod ratio;
mod recorded;
mod scale;
mod sizes;
mod svg;
mod timeline;

use std::collections::BTreeMap;

use results::{Cell, Results, Unit};

use crate::panel::name;
use crate::work::Work;

pub(crate) use compared::{Change, chart as of_changes};
pub(crate) use published::Published;
pub(crate) use recorded::{of_way, over_time};
pub(crate) use svg::WIDTH;

/// Colours, dashes and texts of every chart, light and dark.
pub(crate) const STYLE: &str = include_str!("style.css");

/// A drawn chart without the outer SVG element.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chart {
    /// Kind, as in the file name.
    pub(crate) slug: &'static str,
    /// Heading.
    pub(crate) title: String,
    /// Explanation for the reader.
    pub(crate) caption: String,
    body: String,
    height: f64,
}

impl Chart {
    fn new(
        slug: &'static str,
        title: String,
        caption: &str,
        drawn: Option<(String, f64)>,
    ) -> Option<Chart> {
        let (body, height) = drawn?;
        Some(Chart { slug, title, caption: caption.to_string(), body, height })
    }

    /// Returns the chart for a page that includes [`STYLE`].
    pub(crate) fn inline(&self) -> String {
        self.element("", "")
    }

    pub(crate) fn file(&self) -> String {
        let head = format!("<title>{}</title><style>{STYLE}</style>", svg::escaped(&self.title));
        let background = "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>";
        let sized = format!(" width=\"{WIDTH}\" height=\"{}\"", self.height);
        self.element(&sized, &(head + background)) + "\n"
    }

    fn element(&self, attributes: &str, head: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" \
             aria-label=\"{}\" viewBox=\"0 0 {WIDTH} {}\"{attributes}>{head}{}</svg>",
            svg::escaped(&format!("{}. {}", self.title, self.caption)),
            self.height,
            self.body
        )
    }
}

/// Charts of one kind, with a heading.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Section {
    /// Heading above the section's charts.
    pub(crate) title: &'static str,
    /// Explanation for the reader.
    pub(crate) words: &'static str,
    /// In the order of the tables.
    pub(crate) charts: Vec<Chart>,
}

/// Returns every chart of a run, in the order of the page. Empty sections are left out.
pub(crate) fn sections(results: &Results) -> Vec<Section> {
    let section = |title, words, charts| Section { title, words, charts };
    let all = vec![
        section(
            "Ratio to the baseline",
            "Median ratio to the baseline of the same block, with its interval. (A/A) is the \
             baseline measured again: the noise floor.",
            ratio::charts(results),
        ),
        section("Message sizes", "", sizes::charts(results)),
        section(
            "Latency percentiles",
            "All valid samples combined. Each step to the right leaves a tenth of the requests.",
            latency::charts(results),
        ),
        section(
            "CPU time by kind",
            "CPU time of all CPUs, both ends, per unit of work, in the valid samples. The load of \
             the idle machine is not subtracted here.",
            cpu::charts(results),
        ),
        section(
            "Time line",
            "Time of every CPU by kind, and rates of its interrupts and softirqs.",
            timeline::charts(results),
        ),
        section("NDR and PDR", "", drop_point::charts(results)),
        section("Response time against transactions", "", clients::charts(results)),
        section("Latency under load", "", load::charts(results)),
        section("Engines side by side", "", engines::charts(results)),
        section(
            "Paths, hop by hop",
            "From client to server. Each figure is the mean size of a packet as the device counts \
             it: above the MTU, GSO packets pass uncut. ▼ marks drops.",
            path::charts(results),
        ),
    ];
    all.into_iter().filter(|section| !section.charts.is_empty()).collect()
}

/// Returns published figures for comparison, if the plan has any.
pub(crate) fn published(results: &Results) -> Option<Published> {
    published::of(results)
}

/// Returns the modes in the order of the file, A/A after its baseline. The position decides a
/// series' colour in all charts.
fn modes(results: &Results) -> Vec<String> {
    distinct(results.cells.iter().map(name))
}

fn style_of(modes: &[String], cell: &Cell) -> usize {
    let name = name(cell);
    modes.iter().position(|mode| *mode == name).unwrap_or(0)
}

/// Returns `, offload full` if a run has several profiles.
fn offload_words(results: &Results, offload: &str) -> String {
    if results.plan.offload.len() > 1 {
        format!(", offload {}", crate::style::plain(offload))
    } else {
        String::new()
    }
}

/// Returns the offload profiles of the cells, in the order of the file.
fn offloads(results: &Results) -> Vec<&str> {
    distinct(results.cells.iter().map(|cell| cell.offload.name()))
}

/// Returns the shown cells, grouped and ordered by their work (from `of`) and offload profile.
fn groups<'a>(
    results: &'a Results,
    shown: impl Fn(&Cell) -> bool,
    of: impl Fn(&'a Cell) -> Work<'a>,
) -> Vec<(Work<'a>, &'a str, Vec<&'a Cell>)> {
    let order = offloads(results);
    let mut groups: BTreeMap<(Work<'a>, usize), Vec<&'a Cell>> = BTreeMap::new();
    for cell in results.cells.iter().filter(|cell| shown(cell)) {
        let place = order.iter().position(|offload| *offload == cell.offload.name()).unwrap_or(0);
        groups.entry((of(cell), place)).or_default().push(cell);
    }
    groups.into_iter().map(|((work, place), cells)| (work, order[place], cells)).collect()
}

/// Removes duplicates, keeping the order of first occurrence.
fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

/// Returns the smallest and largest value of the valid samples.
fn spread(cell: &Cell) -> Option<(f64, f64)> {
    let values = cell.samples.iter().filter(|sample| sample.valid).map(|sample| sample.value);
    values.fold(None, |ends, value| match ends {
        None => Some((value, value)),
        Some((low, high)) => Some((f64::min(low, value), f64::max(high, value))),
    })
}

/// Labels an axis for cell values in a unit.
fn unit_words(unit: Unit) -> String {
    match unit {
        Unit::Bits => "payload at the receiver, bit/s".to_string(),
        Unit::Microseconds => "median latency, µs".to_string(),
        unit => format!("{}s per second", unit.name().trim_end_matches("/s")),
    }
}
