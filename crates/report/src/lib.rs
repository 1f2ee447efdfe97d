//! Text, Markdown, CSV, HTML and SVG from results, comparisons of two, diagnoses, recordings.
//! Nothing here measures, prints or reads a clock: every function takes
//! [`results::Results`], [`doctor::Diagnosis`] or a [`Recording`] and returns text.
//! (JSON is the results themselves, by serde.)
//!
//! - [`text`]: tables for a terminal, with what was not measured, warnings and
//!   the summary below.
//! - [`markdown`]: the same for a README or an issue.
//! - [`csv`]: one row per cell, every figure.
//! - [`html`]: one page with charts, every sample, light, dark and printed.
//! - [`svg`]: the page's charts, a file each.
//! - [`compare`]: what changed for certain between two files.
//! - [`diagnosis_text`]: what `doctor` found: paths, findings, what was not looked at.
//! - [`trial_text`]: what `try` came to.
//! - [`recording_text`], [`recording_html`]: what `watch` recorded, summed up and over time.
//! - [`summary`]: three sentences: what costs most, where GSO packets are
//!   cut, what to try.
//!
//! Whatever a results file holds is shown as plain text: characters that could drive a
//! terminal, end a line or turn its direction are shown as escapes (`style::plain`).

#![forbid(unsafe_code)]

mod chart;
mod compare;
mod csv;
mod detail;
mod diagnosis;
mod engines;
mod fault;
mod gain;
mod html;
pub mod listing;
mod machine;
mod markdown;
mod page;
mod panel;
mod recording;
mod recording_cpu;
mod recording_html;
mod recording_peer;
mod recording_text;
mod remark;
mod skb;
mod style;
mod summary;
mod svg_files;
mod text;
mod trial;
mod unit;
mod work;

pub use compare::{
    Basis, CompareError, Compared, Comparison, Figure, Verdict, compare, compare_text,
};
pub use csv::csv;
pub use diagnosis::{check_text, checks_text, diagnosis_text};
pub use html::html;
pub use machine::machine_line;
pub use markdown::markdown;
pub use recording::Recording;
pub use recording_html::recording_html;
pub use recording_text::recording_text;
pub use style::Style;
pub use summary::summary;
pub use svg_files::{ChartFile, svg};
pub use text::text;
pub use trial::{Trial, Tried, carried_words, judged_words, trial_text};
