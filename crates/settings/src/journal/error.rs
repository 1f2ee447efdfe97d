//! Errors of the journal.

use std::path::PathBuf;

use crate::apply;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// An operation on a file failed.
    #[error("journal: {operation} {}: {error}", .path.display())]
    File {
        /// Operation that failed (`open`).
        operation: &'static str,
        /// File or directory that it was attempted on.
        path: PathBuf,
        error: std::io::Error,
    },
    /// An entry cannot be written.
    #[error("journal: {}: {problem}", .path.display())]
    Entry {
        /// Path of the entry's file.
        path: PathBuf,
        /// Fault of the entry.
        problem: String,
    },
    /// Another user could put a command there.
    #[error("journal: {}: {problem}; commands in it are not run", .path.display())]
    Untrusted {
        /// The directory, or a parent.
        path: PathBuf,
        /// Fault and remedy.
        problem: String,
    },
    /// Another process has kept it open for too long.
    #[error("journal: {}: in use by another overlane for {waited_s} s", .path.display())]
    Locked { path: PathBuf, waited_s: u64 },
    /// The change failed and could not be undone. Its entry stays.
    #[error("{error}; and not undone: {left}")]
    Left {
        /// Why the change failed.
        error: Box<JournalError>,
        /// Why it was not undone.
        left: Box<JournalError>,
    },
    /// A change was undone, but its entry could not be removed.
    #[error("{object}: undone; its entry stays: {error}")]
    Stays {
        /// The setting and its namespace, in words.
        object: String,
        /// Why the entry could not be removed.
        error: Box<JournalError>,
    },
    /// The setting could not be read or written.
    #[error(transparent)]
    Apply(#[from] apply::Error),
    /// Another trial is running. Two at a time would distort each other's measurements.
    #[error("another trial is running (its journal: {})", .0.display())]
    Busy(PathBuf),
}
