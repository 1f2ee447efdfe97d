//! Changes on trial: made and taken back again and again, and kept only when asked.
//!
//! Each making and taking back goes through the [`Journal`], which is open for that
//! moment only, so that others may use it meanwhile. What tells a trial under way from
//! one whose process was killed is a lock of its own, which the kernel frees with the
//! process: whoever opens the journal next takes back what such a one has left.

use std::fs::File;
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;

use crate::change::Change;
use crate::journal::{Entry, Journal, JournalError};

/// Changes that are tried together; dropping it takes them back.
#[derive(Debug)]
pub struct Trial {
    directory: PathBuf,
    code: String,
    changes: Vec<Change>,
    /// Those in effect, in the order in which they were made.
    made: Vec<Entry>,
    _lock: Flock<File>,
}

impl Trial {
    /// Nothing is changed yet; what an earlier trial has left is taken back.
    ///
    /// # Errors
    /// [`JournalError::Busy`] while another one is running with this journal.
    pub fn begin(
        directory: &Path,
        code: &str,
        changes: Vec<Change>,
    ) -> Result<Trial, JournalError> {
        let journal = Journal::open(directory)?;
        let lock = journal.lock_trial()?.ok_or_else(|| JournalError::Busy(directory.to_owned()))?;
        // What an earlier trial has left would pass for the host's own state.
        for entry in journal.entries()?.iter().rev().filter(|entry| entry.trial) {
            journal.undo(entry)?;
        }
        let (directory, code) = (directory.to_owned(), code.to_owned());
        Ok(Trial { directory, code, changes, made: Vec::new(), _lock: lock })
    }

    /// Whether the changes are in effect.
    pub fn is_made(&self) -> bool {
        !self.made.is_empty()
    }

    /// Makes the changes, all or none.
    ///
    /// # Errors
    /// As [`Journal::make`].
    pub fn make(&mut self) -> Result<(), JournalError> {
        if self.is_made() {
            return Ok(());
        }
        let journal = Journal::open(&self.directory)?;
        for change in &self.changes {
            match journal.make_for(&self.code, change, None, true) {
                Ok(entry) => self.made.push(entry),
                Err(error) => {
                    // That a change is left in effect is worse news than the one that failed.
                    self.take_back_in(&journal)?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes them back, the last one first, all of them even where one fails.
    ///
    /// # Errors
    /// The first that failed; its entry stays in the journal.
    pub fn take_back(&mut self) -> Result<(), JournalError> {
        if !self.is_made() {
            return Ok(());
        }
        self.take_back_in(&Journal::open(&self.directory)?)
    }

    fn take_back_in(&mut self, journal: &Journal) -> Result<(), JournalError> {
        let mut first = Ok(());
        while let Some(entry) = self.made.pop() {
            first = first.and(journal.undo(&entry).map(drop));
        }
        first
    }

    /// Ends the trial with the changes in effect, as entries that `undo` takes back.
    /// A process killed in between keeps some and takes back others.
    ///
    /// # Errors
    /// As [`Trial::make`], and when the journal cannot be written.
    pub fn keep(mut self) -> Result<Vec<Entry>, JournalError> {
        self.make()?;
        let journal = Journal::open(&self.directory)?;
        for entry in &self.made {
            journal.keep(entry)?;
        }
        Ok(std::mem::take(&mut self.made))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // Whoever wants to know calls take_back; what fails stays in the journal.
        let _ = self.take_back();
    }
}
