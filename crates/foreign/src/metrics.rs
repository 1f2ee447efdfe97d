//! Pages for Prometheus in its text format (0.0.4).
//!
//! - [`Page`]: the metrics of one answer, whose names start with a common prefix.
//! - [`Histogram`]: a histogram of durations.
//! - [`Bounded`]: figures by label for a limited number of labels, and a sum for all others.
//!
//! This module does not serve pages and does not know what is counted. Label values are shown as
//! plain text ([`crate::plain`]) and then escaped as the format requires.

mod bounded;
mod histogram;
mod page;
mod process;

pub use bounded::Bounded;
pub use histogram::Histogram;
pub use page::Page;
