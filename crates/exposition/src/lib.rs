//! Pages for Prometheus, in its text format (0.0.4).
//!
//! - [`Page`]: metrics of one answer, their names begun with one prefix.
//! - [`Histogram`]: how often times were how long.
//! - [`Bounded`]: figures by label for at most so many labels, and one for all others.
//!
//! Nothing here serves a page, and nothing knows what is counted. Values of labels are shown
//! as plain text ([`foreign::plain`]), then escaped as the format wants it.

#![forbid(unsafe_code)]

mod bounded;
mod histogram;
mod page;
mod process;

pub use bounded::Bounded;
pub use histogram::Histogram;
pub use page::Page;
