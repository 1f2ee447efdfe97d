//! Why a driven tool gave nothing to measure.

use std::time::Duration;

use crate::EngineError;

/// Most of a tool's output that an error quotes, characters.
const QUOTED: usize = 600;

/// Output of another form than the driver knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unexpected {
    /// What should have been there.
    pub expected: String,
}

impl Unexpected {
    pub(super) fn new(expected: impl Into<String>) -> Unexpected {
        Unexpected { expected: expected.into() }
    }
}

/// Why a driven tool gave nothing to measure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The tool cannot do that; nothing was started.
    #[error("{reason}")]
    Unsupported {
        /// Name of the program that was run.
        tool: &'static str,
        /// What the tool cannot do, in words.
        reason: String,
    },
    /// An argument, or the path, which was tried with the built-in engine first.
    #[error(transparent)]
    Path(#[from] EngineError),
    /// The kernel refused something that does not depend on the path.
    #[error(transparent)]
    Local(#[from] sys::Error),
    /// A program ended when it should not have, or with a failure.
    #[error("{command}: {status}{}", quote(.printed))]
    Failed {
        /// Command line of the program.
        command: String,
        /// How it ended: exit code or signal, in words.
        status: String,
        /// What it had printed.
        printed: String,
    },
    /// A program did not do its part in time, and was killed.
    #[error("{command} {what} within {limit:.1?}{}", quote(.printed))]
    Hung {
        /// Command line of the program.
        command: String,
        /// `did not end`, `does not listen on TCP port 7000`.
        what: String,
        /// How long it was waited for.
        limit: Duration,
        /// What it had printed.
        printed: String,
    },
    /// It printed something else than this driver knows.
    #[error("{version} printed something else than expected, {expected}{}", quote(.printed))]
    Output {
        /// The tool's version, as it prints it.
        version: String,
        /// What should have been there.
        expected: String,
        /// Output in which `expected` is missing.
        printed: String,
    },
    /// Ended by the caller's stop flag.
    #[error("stopped")]
    Stopped,
}

/// What was printed, shortened, for the end of a message.
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
