//! Text, Markdown and CSV from results. Nothing here measures, prints or reads
//! a clock: every function takes [`measure::results::Results`] and returns text.
//! (JSON is the results themselves, by serde.)
//!
//! - [`text`]: tables for a terminal, with what was not measured, warnings and
//!   the summary below.
//! - [`markdown`]: the same for a README or an issue.
//! - [`csv`]: one row per cell, every figure.
//! - [`summary`]: three sentences: what costs most, where super-packets are
//!   cut, what to try.
//!
//! Whatever a results file holds is shown as plain text: control characters,
//! which could drive a terminal, are replaced.

#![forbid(unsafe_code)]

mod csv;
mod detail;
mod engines;
mod gain;
mod machine;
mod markdown;
mod panel;
mod remark;
mod skb;
mod style;
mod summary;
mod text;
mod unit;
mod work;

pub use csv::csv;
pub use machine::machine_line;
pub use markdown::markdown;
pub use style::Style;
pub use summary::summary;
pub use text::text;
