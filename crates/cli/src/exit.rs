//! Exit codes of verbs, and the usage error.

pub use session::usage::{Usage, usage};

/// Outcome of a verb that did not fail with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    /// Done in part; failures were shown.
    Partly,
    /// Ended by Ctrl-C; partial results were written.
    Interrupted,
    /// A specific code, such as that of the command of `lab exec`.
    Code(u8),
}
