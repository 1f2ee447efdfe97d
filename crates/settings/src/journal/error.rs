//! What can go wrong with the journal.

use std::path::PathBuf;

use crate::apply;

/// What went wrong with the journal itself, or with a change.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file of it.
    #[error("journal: {operation} {}: {error}", .path.display())]
    File {
        /// Operation that failed (`open`).
        operation: &'static str,
        /// File or directory that it was attempted on.
        path: PathBuf,
        /// Error of that operation.
        error: std::io::Error,
    },
    /// An entry that cannot be written.
    #[error("journal: {}: {problem}", .path.display())]
    Entry {
        /// Path of the entry's file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Somebody else could put a command there.
    #[error("journal: {}: {problem}; what is in it is not run", .path.display())]
    Untrusted {
        /// The directory, or one on the way to it.
        path: PathBuf,
        /// Who could, and what would help.
        problem: String,
    },
    /// Another process has had it for too long.
    #[error("journal: {}: another overlane has it since {waited_s} s", .path.display())]
    Locked {
        /// Directory of the journal.
        path: PathBuf,
        /// Seconds waited.
        waited_s: u64,
    },
    /// The change failed, and what it has done was not taken back: its entry stays.
    #[error("{error}; and not taken back: {left}")]
    Left {
        /// Why the change was given up.
        error: Box<JournalError>,
        /// Why it was not taken back.
        left: Box<JournalError>,
    },
    /// A change was taken back, and its entry could not be removed.
    #[error("{object}: taken back; its entry stays: {error}")]
    Stays {
        /// The setting and its namespace, in words.
        object: String,
        /// Why the entry could not be removed.
        error: Box<JournalError>,
    },
    /// The setting could not be read or written.
    #[error(transparent)]
    Apply(#[from] apply::Error),
    /// Two trials at a time would measure one another.
    #[error("another trial is running (its journal: {})", .0.display())]
    Busy(PathBuf),
}
