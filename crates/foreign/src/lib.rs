//! Foreign data: read within limits and shown safely.
//!
//! - [`Plain`]: foreign text for one line of a terminal, a table or a page.
//! - [`lines()`], [`json()`], [`log()`]: whole outputs, as the last step before they are written.
//!   They catch characters that the escaping of a field has missed.
//! - [`csv_cell`]: a cell that spreadsheets do not take as a formula.
//! - [`bounded`]: JSON with limits on bytes, values and levels, read as a stream.
//! - [`metrics`]: pages for Prometheus, whose labels are foreign names.
//!
//! This crate does not know the meaning of the text and depends on none of our other crates.

#![forbid(unsafe_code)]

pub mod bounded;
pub mod metrics;
mod plain;
mod spreadsheet;

pub use plain::{Plain, is_harmful, json, lines, log, plain};
pub use spreadsheet::csv_cell;
