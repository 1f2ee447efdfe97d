//! Changes on trial: made and undone repeatedly, and kept only on request.
//!
//! Each step goes through the [`Journal`], which is open only during the step, so that other
//! processes can use it. A separate lock distinguishes a running trial from one whose process was
//! killed, because the kernel releases the lock with the process. The next process that opens the
//! journal undoes the changes of a killed trial.

use std::fs::File;
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;

use crate::change::Change;
use crate::journal::{Entry, Journal, JournalError};

/// Changes that are tried together. Dropping it undoes them.
#[derive(Debug)]
pub struct Trial {
    directory: PathBuf,
    code: String,
    changes: Vec<Change>,
    /// Changes in effect, in the order in which they were made.
    made: Vec<Entry>,
    _lock: Flock<File>,
}

impl Trial {
    /// Starts a trial without changing anything, and undoes changes that an earlier trial left.
    ///
    /// # Errors
    /// [`JournalError::Busy`] while another trial uses this journal.
    pub fn begin(
        directory: &Path,
        code: &str,
        changes: Vec<Change>,
    ) -> Result<Trial, JournalError> {
        let journal = Journal::open(directory)?;
        let lock = journal.lock_trial()?.ok_or_else(|| JournalError::Busy(directory.to_owned()))?;
        // Otherwise changes left by an earlier trial would count as the host's own state.
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
    pub fn make(&mut self) -> Result<(), JournalError> {
        // Made twice, the earlier value of the second time would be the changed one.
        if self.is_made() {
            return Ok(());
        }
        let journal = Journal::open(&self.directory)?;
        for change in &self.changes {
            match journal.make_for(&self.code, change, None, true) {
                Ok(entry) => self.made.push(entry),
                Err(error) => {
                    // A change that stays in effect is worse than the change that failed.
                    self.take_back_in(&journal)?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Undoes the changes in reverse order, continuing after a failure.
    ///
    /// # Errors
    /// The first failure. The entry of a change that could not be undone stays in the journal.
    pub fn take_back(&mut self) -> Result<(), JournalError> {
        // Nothing is in effect, so there is nothing to undo.
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

    /// Ends the trial with the changes in effect, as entries that `undo` can undo. If the process
    /// is killed meanwhile, some changes are kept and the others undone.
    ///
    /// # Errors
    /// As [`Trial::make`], and if the journal cannot be written.
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
        // Callers that need the error call take_back. Failed entries stay in the journal.
        let _ = self.take_back();
    }
}
