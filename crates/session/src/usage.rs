//! The error for wrong usage.

/// Wrong usage or bad input: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

pub fn usage(argument: &str, problem: impl std::fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Usage(format!("{argument}: {problem}")))
}
