//! Reasons why an external tool produced no measurement.

use std::time::Duration;

use crate::EngineError;

/// Maximum tool output in an error, characters.
const QUOTED: usize = 600;

/// Output in a format that the driver does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unexpected {
    /// The expected part.
    pub expected: String,
}

impl Unexpected {
    pub(super) fn new(expected: impl Into<String>) -> Unexpected {
        Unexpected { expected: expected.into() }
    }
}

/// Reason why an external tool produced no measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The tool does not support the load. Nothing was started.
    #[error("{reason}")]
    Unsupported {
        /// Name of the tool.
        tool: &'static str,
        /// The unsupported feature.
        reason: String,
    },
    /// An invalid argument, or a broken path, found by the built-in engine.
    #[error(transparent)]
    Path(#[from] EngineError),
    /// The kernel refused an operation that does not depend on the path.
    #[error(transparent)]
    Local(#[from] sys::Error),
    /// A program failed or ended too early.
    #[error("{command}: {status}{}", quote(.printed))]
    Failed {
        /// Command line of the program.
        command: String,
        /// Exit code or signal, as text.
        status: String,
        /// Its output.
        printed: String,
    },
    /// A program exceeded its time limit and was killed.
    #[error("{command} {what} within {limit:.1?}{}", quote(.printed))]
    Hung {
        /// Command line of the program.
        command: String,
        /// `did not end`, `does not listen on TCP port 7000`.
        what: String,
        /// Time limit.
        limit: Duration,
        /// Its output.
        printed: String,
    },
    /// The output has a format that this driver does not know.
    #[error("unexpected output of {version}: expected {expected}{}", quote(.printed))]
    Output {
        /// The tool's version, as printed.
        version: String,
        /// The expected part.
        expected: String,
        /// The output, in which `expected` is missing.
        printed: String,
    },
    /// The caller's stop flag ended the run.
    #[error("stopped")]
    Stopped,
}

/// Formats output for the end of a message, shortened.
fn quote(printed: &str) -> String {
    let printed = printed.trim();
    if printed.is_empty() {
        return "; it printed nothing".to_owned();
    }
    let mut text: String = printed.chars().take(QUOTED).collect();
    if text.len() < printed.len() {
        text.push('…');
    }
    format!("; it printed: {text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_quoted_on_one_line_and_cut() {
        assert_eq!(quote(" a\nb "), "; it printed: \"a\\nb\"");
        assert_eq!(quote("\n"), "; it printed nothing");
        let long = quote(&"ä".repeat(QUOTED + 1));
        assert!(long.ends_with("…\"") && long.len() < 3 * QUOTED, "{long}");
    }
}
