//! What came from elsewhere: read within limits, shown without harm.
//!
//! - [`Plain`]: foreign text for one line of a terminal, a table or a page.
//! - [`lines()`], [`json()`], [`log()`]: whole outputs, at the last step before they
//!   are written. They catch what no field's own escape caught.
//! - [`csv_cell`]: a cell that no spreadsheet takes for a formula.
//! - [`bounded`]: JSON of at most so many bytes, values and levels, read as a stream.
//!
//! Nothing here knows what the text is about, and nothing depends on another crate.

#![forbid(unsafe_code)]

pub mod bounded;
mod plain;
mod spreadsheet;

pub use plain::{Plain, is_harmful, json, lines, log, plain};
pub use spreadsheet::csv_cell;
