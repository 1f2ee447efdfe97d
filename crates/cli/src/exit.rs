//! How a verb ends: exit codes, and the error of wrong usage.

/// How a verb ended, when not with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything asked for was done.
    Done,
    /// Done in part; what failed was shown.
    Partly,
    /// Ended by Ctrl-C; what there was has been written.
    Interrupted,
    /// Another program's code (`lab exec`).
    Code(u8),
}

/// Wrong usage or bad input: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Makes a usage error naming the argument.
pub fn usage(argument: &str, problem: impl std::fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Usage(format!("{argument}: {problem}")))
}
