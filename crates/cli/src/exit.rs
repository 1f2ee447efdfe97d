//! Exit codes of verbs, and the usage error.

/// Outcome of a verb that did not fail with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything was done.
    Done,
    /// Done in part; failures were shown.
    Partly,
    /// Ended by Ctrl-C; partial results were written.
    Interrupted,
    /// A specific code, such as that of the command of `lab exec`.
    Code(u8),
}

/// Wrong usage or bad input: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Builds a usage error that names the argument.
pub fn usage(argument: &str, problem: impl std::fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Usage(format!("{argument}: {problem}")))
}
