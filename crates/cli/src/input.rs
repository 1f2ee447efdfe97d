//! Files that verbs read.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use results::{LIMITS, ReadError, Results};

use crate::exit::Usage;
use crate::recording::Recording;

/// What `overlane report` shows.
pub enum Shown {
    /// Of a run.
    Results(Box<Results>),
    /// Of `overlane watch`.
    Recording(Recording),
}

/// How much of a file tells which kind it is, bytes.
const BEGINNING: usize = 64 << 10;

/// Opens a results file or a recording: of the one, all is read; of the other, nothing yet.
///
/// # Errors
/// What is wrong with a results file, as a usage error.
pub fn shown_in(path: &Path) -> anyhow::Result<Shown> {
    let failed = |source| ReadError::Io { path: path.to_owned(), source };
    let read = || {
        let file = File::open(path).map_err(failed)?;
        // Read once: it may be a pipe.
        let mut reader = BufReader::with_capacity(BEGINNING, file);
        if is_recording(reader.fill_buf().map_err(failed)?) {
            return Ok(Shown::Recording(Recording::of(reader, path)));
        }
        let bytes = LIMITS.read(reader).map_err(failed)?;
        let exceeded = |exceeded| ReadError::TooLarge { path: path.to_owned(), exceeded };
        LIMITS.check(&bytes).map_err(exceeded)?;
        Results::from_json(&bytes).map(|results| Shown::Results(Box::new(results)))
    };
    read().map_err(|error: ReadError| anyhow::Error::new(Usage(error.to_string())))
}

/// Whether a file that begins so is a recording: its first line is an interval, which has a
/// format, while results have a schema.
fn is_recording(beginning: &[u8]) -> bool {
    let line = beginning.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let has = |key: &[u8]| line.windows(key.len()).any(|bytes| bytes == key);
    has(b"\"format\"") && !has(b"\"schema\"")
}

/// Reads a results file that is one of several.
///
/// # Errors
/// What is wrong with it, and which file it is, as a usage error.
pub fn results_in_one(path: &Path) -> anyhow::Result<Results> {
    Results::read(path).map_err(|error| {
        let named = matches!(error, ReadError::Io { .. } | ReadError::TooLarge { .. });
        let text = if named { error.to_string() } else { format!("{}: {error}", path.display()) };
        anyhow::Error::new(Usage(text))
    })
}
