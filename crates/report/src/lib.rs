//! Renders results, comparisons, diagnoses and recordings as text, Markdown, CSV, HTML and SVG.
//! Nothing here measures, prints or reads a clock: every function takes [`results::Results`],
//! [`doctor::Diagnosis`] or a [`Recording`] and returns text. (JSON is the serialized results.)
//!
//! - [`text`]: tables for a terminal, followed by unmeasured modes, warnings and
//!   the summary.
//! - [`markdown`]: the same for a README or an issue.
//! - [`csv`]: one row per cell, every figure.
//! - [`html`]: one page with charts, every sample, light, dark and printed.
//! - [`svg`]: the page's charts, one file each.
//! - [`compare`]: proven changes between two files.
//! - [`diagnosis_text`]: a diagnosis of `doctor`: paths, findings, unexamined objects.
//! - [`trial_text`]: the result of `try`.
//! - [`probe_text`]: the result of `probe`.
//! - [`recording_text`], [`recording_html`]: a recording of `watch`, in total and over time.
//! - [`summary`]: three sentences: the costliest mode, where GSO packets are
//!   cut, advice.
//!
//! All contents of a results file are shown as plain text: characters that could control a
//! terminal, end a line or change its direction are escaped (`style::plain`).

#![forbid(unsafe_code)]

mod beside;
mod chart;
mod compare;
mod csv;
mod csv_samples;
mod detail;
mod diagnosis;
mod ecn;
mod engines;
mod fault;
mod gain;
mod html;
pub mod listing;
mod machine;
mod markdown;
mod openmetrics;
mod page;
mod panel;
mod probe_text;
mod rebased;
mod recording;
mod recording_cpu;
mod recording_html;
mod recording_peer;
mod recording_text;
mod remark;
mod retransmits;
mod skb;
mod style;
mod summary;
mod svg_files;
mod text;
mod trial;
mod unit;
mod work;

pub use compare::{
    Basis, CompareError, Compared, Comparison, Figure, Judgement, Other, compare, compare_many_csv,
    compare_many_html, compare_many_markdown, compare_many_text, compare_text,
};
pub use csv::csv;
pub use csv_samples::csv_samples;
pub use diagnosis::{check_text, checks_text, diagnosis_text};
pub use html::html;
pub use machine::machine_line;
pub use markdown::markdown;
pub use openmetrics::openmetrics;
pub use probe_text::probe_text;
pub use rebased::{NoBaseline, rebased};
pub use recording::Recording;
pub use recording_html::recording_html;
pub use recording_text::recording_text;
pub use style::Style;
pub use summary::summary;
pub use svg_files::{ChartFile, svg};
pub use text::{not_measured, text};
pub use trial::{Trial, Tried, carried_words, judged_words, trial_text};
pub use unit::with_unit;
