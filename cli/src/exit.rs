//! Exit codes, and how an error becomes one.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

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

/// Prints an error and gives the process's exit code.
pub fn report(result: anyhow::Result<Exit>) -> ExitCode {
    match result {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Partly) => ExitCode::FAILURE,
        Ok(Exit::Interrupted) => ExitCode::from(130),
        Ok(Exit::Code(code)) => ExitCode::from(code),
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done about a closed standard error.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            if error.downcast_ref::<Usage>().is_some() {
                ExitCode::from(2)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Whether the reader of our output went away (`overlane … | head`).
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
