//! Files that verbs read.

use std::path::Path;

use results::{ReadError, Results};

use crate::exit::Usage;

/// Reads a results file.
///
/// # Errors
/// What is wrong with it, as a usage error.
pub fn results_in(path: &Path) -> anyhow::Result<Results> {
    Results::read(path).map_err(|error| anyhow::Error::new(Usage(error.to_string())))
}

/// Reads a results file that is one of several.
///
/// # Errors
/// As [`results_in`], and which file it is.
pub fn results_in_one(path: &Path) -> anyhow::Result<Results> {
    Results::read(path).map_err(|error| {
        let named = matches!(error, ReadError::Io { .. } | ReadError::TooLarge { .. });
        let text = if named { error.to_string() } else { format!("{}: {error}", path.display()) };
        anyhow::Error::new(Usage(text))
    })
}
