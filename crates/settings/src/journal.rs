//! Keeps changes on disk, so that they can be undone, also after this process was killed or the
//! machine rebooted.
//!
//! An entry is written and synced before its change is made, marked as made afterwards, and removed
//! after the change has been undone. An entry without the mark belongs to a process that ended in
//! between, and only the setting shows whether its change was made. A lock keeps two processes from
//! making changes at once.
//!
//! A file that is not an entry of this version stays in place and is reported. It blocks nothing.
//! See `docs/src/design/journal.md`.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netstate::proc::read_value;
use nix::fcntl::Flock;

use crate::apply;
use crate::change::{Change, Setting};
use crate::identity;

mod directory;
mod entry;
mod error;
mod note;
mod trust;

use directory::{Directory, LONGEST};
pub use entry::{Entry, Until};
use entry::{Mark, Problem};
pub use error::JournalError;
pub use note::read_note;

/// Default directory.
pub const DIRECTORY: &str = "/var/lib/overlane/journal";
/// Default limit on waiting for another process that has the journal open.
const PATIENCE: Duration = Duration::from_secs(60);
/// Larger entry numbers are ignored, so that there is always a next one.
const LAST_ID: u64 = 1 << 40;
/// Directory of commands whose own directory cannot be used.
const ROOT: &str = "/";

/// Called with the name of each step. An error makes the step fail. For tests.
#[doc(hidden)]
pub type BeforeStep = Box<dyn Fn(&'static str) -> std::io::Result<()> + Send + Sync>;

/// Result of an undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undone {
    /// The earlier value was restored.
    Restored,
    /// The setting already had the earlier value: the change was never made, or a reboot or someone
    /// else undid it.
    AlreadyThere {
        /// Whether the machine rebooted since the change.
        rebooted: bool,
    },
    /// The namespace or device no longer exists, nor does the setting.
    Gone(String),
    /// The inverse command failed. But the process that ran the command was killed, or the machine
    /// rebooted, so there may have been nothing to undo.
    Unsure(String),
}

/// A file that this program cannot read as an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    pub path: PathBuf,
    /// Entry number, if its name has the form of an entry's name.
    pub id: Option<u64>,
    /// Fault of the file.
    pub problem: String,
    /// Recommended action, in words.
    pub remedy: &'static str,
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The file's creator chose the name: escape it.
        let (path, problem) = (self.path.to_string_lossy(), self.problem.escape_debug());
        write!(f, "{}: {problem}: {}", path.escape_debug(), self.remedy)
    }
}

#[derive(Debug, Default)]
pub struct Contents {
    /// Entries that can be undone, oldest first.
    pub entries: Vec<Entry>,
    /// Other files, by name.
    pub left: Vec<Left>,
}

/// Directory of the journal, locked against other processes until it is dropped.
#[derive(Debug)]
pub struct Journal {
    directory: Directory,
    _lock: Flock<File>,
}

impl Journal {
    /// Opens the journal. Waits up to a minute while another process has it.
    ///
    /// # Errors
    /// If the directory cannot be created or locked; [`JournalError::Untrusted`] if another user
    /// could write to it; [`JournalError::Locked`].
    pub fn open(directory: &Path) -> Result<Journal, JournalError> {
        Journal::open_within(directory, PATIENCE)
    }

    /// As [`Journal::open`], but waits without limit. For callers that undo changes which nothing
    /// else would undo.
    pub fn open_patiently(directory: &Path) -> Result<Journal, JournalError> {
        Journal::open_within(directory, Duration::MAX)
    }

    /// As [`Journal::open`], with another time limit.
    pub fn open_within(directory: &Path, wait: Duration) -> Result<Journal, JournalError> {
        Journal::open_stepwise(directory, wait, None)
    }

    /// As [`Journal::open`], with steps that fail. For tests.
    #[doc(hidden)]
    pub fn open_with(directory: &Path, before: BeforeStep) -> Result<Journal, JournalError> {
        Journal::open_stepwise(directory, PATIENCE, Some(before))
    }

    fn open_stepwise(
        path: &Path,
        wait: Duration,
        before: Option<BeforeStep>,
    ) -> Result<Journal, JournalError> {
        let directory = Directory::open(path, before)?;
        let locked = || JournalError::Locked { path: path.to_owned(), waited_s: wait.as_secs() };
        let lock = directory.lock("lock", wait)?.ok_or_else(locked)?;
        directory.sweep();
        Ok(Journal { directory, _lock: lock })
    }

    /// Returns all entries and other files.
    pub fn contents(&self) -> Result<Contents, JournalError> {
        let mut contents = Contents::default();
        let mut names = self.directory.names()?;
        // Lock files and unfinished files (`.new`) are no entries.
        names.retain(|name| Path::new(name).extension() == Some(OsStr::new("json")));
        names.sort();
        for name in names {
            let number = id_in(&name);
            let read = match self.directory.read(&name) {
                Err(what) => Err(Problem { what, remedy: Problem::ODD }),
                Ok(text) => Entry::parse(&name.to_string_lossy(), &text),
            };
            match read {
                Ok(entry) => contents.entries.push(entry),
                Err(Problem { what, remedy }) => {
                    let path = self.directory.file(&name);
                    contents.left.push(Left { path, id: number, problem: what, remedy });
                }
            }
        }
        // Names sort like their numbers only up to eight digits.
        contents.entries.sort_by_key(|entry| entry.id);
        Ok(contents)
    }

    /// Returns every entry, oldest first, without other files.
    pub fn entries(&self) -> Result<Vec<Entry>, JournalError> {
        Ok(self.contents()?.entries)
    }

    /// Makes a change after writing its entry. Undoes a change that has no effect or whose entry
    /// cannot be marked as made.
    ///
    /// # Errors
    /// [`apply::Error::Changed`] if the setting no longer has the value that was read;
    /// [`JournalError::File`] if the entry cannot be written, in which case nothing is changed;
    /// errors of the kernel; [`apply::Error::NotTaken`]; [`JournalError::Left`].
    pub fn make(
        &self,
        code: &str,
        change: &Change,
        confirm_until: Option<Until>,
    ) -> Result<Entry, JournalError> {
        self.make_for(code, change, confirm_until, false)
    }

    /// As [`Journal::make`], optionally for a trial.
    pub(crate) fn make_for(
        &self,
        code: &str,
        change: &Change,
        confirm_until: Option<Until>,
        trial: bool,
    ) -> Result<Entry, JournalError> {
        let change = &identity::pin(change)?;
        let mut directory = None;
        if change.setting == Setting::Command {
            directory =
                // If the directory is unknown or not UTF-8, commands run in `/`.
                std::env::current_dir().ok().and_then(|here| here.to_str().map(str::to_owned));
        } else {
            apply::check(change)?;
        }
        let mut entry = Entry {
            id: self.next_id()?,
            code: code.to_owned(),
            change: change.clone(),
            made_s: now_s(),
            boot: boot(),
            made: false,
            confirm_until,
            trial,
            directory,
            marks: true,
        };
        let file = self.put(&entry).inspect_err(|_| {
            // The file may exist although its change was never made.
            let _ = self.directory.remove(entry.name().as_ref());
        })?;
        let made = self
            .directory
            .step("change")
            .map_err(|error| self.file_error("change", &entry, error))
            .and_then(|()| Ok(apply::make(change, &entry.directory())?))
            // Without the mark it would look like a killed process's entry.
            .and_then(|()| self.directory.mark(&entry.name(), &file, Mark::Made.at(), b'1'));
        let error = match made {
            Ok(()) => {
                entry.made = true;
                return Ok(entry);
            }
            Err(error) => error,
        };
        match self.undo(&entry) {
            Ok(_) => Err(error),
            Err(left) => Err(JournalError::Left { error: Box::new(error), left: Box::new(left) }),
        }
    }

    /// Undoes a change and removes its entry.
    ///
    /// # Errors
    /// [`apply::Error::Changed`] if the setting has neither the new nor the earlier value;
    /// [`apply::Error::Unknown`] if the namespace or device may be another one; errors of the
    /// kernel. In these cases the entry stays. [`JournalError::Stays`] if only the entry could not
    /// be removed.
    pub fn undo(&self, entry: &Entry) -> Result<Undone, JournalError> {
        let undone = match &entry.change {
            change if change.setting == Setting::Command => self.take_back_command(entry)?,
            // The reboot reset all kernel settings. A value that is set now is someone else's.
            _ if entry.rebooted() => Undone::AlreadyThere { rebooted: true },
            change => match identity::sure(change).and_then(|()| apply::put_back(change)) {
                Ok(true) => Undone::Restored,
                Ok(false) => Undone::AlreadyThere { rebooted: false },
                // The kernel removed the setting with its namespace or device: nothing is left to
                // restore.
                Err(apply::Error::Gone { reason, .. }) => Undone::Gone(reason),
                Err(error) => return Err(error.into()),
            },
        };
        self.forget(entry).map_err(|error| {
            let object = entry.change.object();
            JournalError::Stays { object, error: Box::new(error) }
        })?;
        Ok(undone)
    }

    /// Runs the inverse of a command. Whether the command or its inverse took effect cannot be
    /// read: if either was interrupted, a failure proves nothing.
    fn take_back_command(&self, entry: &Entry) -> Result<Undone, JournalError> {
        let mut change = entry.change.clone();
        let known = entry.made && !entry.rebooted();
        if entry.rebooted() {
            match change.place.take() {
                // A command that belongs to no namespace runs in the caller's.
                None => {}
                Some(place) if place.first => change.place = identity::first_place(&place.label),
                Some(place) if place.cookie.is_none() => {
                    return Err(identity::unsure(&change, &place).into());
                }
                Some(_) => {
                    let reason = "its namespace is gone since the machine rebooted";
                    return Ok(Undone::Unsure(format!("{}: {reason}", entry.change.object())));
                }
            }
        } else {
            match identity::sure(&change) {
                // Without the namespace there is nothing left to undo.
                Err(apply::Error::Gone { reason, .. }) => return Ok(Undone::Gone(reason)),
                answer => answer?,
            }
        }
        if known {
            // If this process is killed from here on, the state is unknown. A disk that cannot be
            // written must not prevent the undo: both commands tolerate being run twice.
            let _ = self.set(entry, Mark::Made, false);
        }
        let step = self.directory.step("change back");
        step.map_err(|error| self.file_error("change back", entry, error))?;
        match apply::write_from(&change, &change.from, &entry.directory()) {
            Ok(()) => Ok(Undone::Restored),
            Err(apply::Error::Gone { reason, .. }) => Ok(Undone::Gone(reason)),
            Err(error) if known => {
                // This process has not been killed and the change is still in effect: restore the
                // mark.
                self.set(entry, Mark::Made, true)?;
                Err(error.into())
            }
            // There may have been nothing to undo, so the failure proves nothing and the entry is
            // removed.
            Err(error) => Ok(Undone::Unsure(error.to_string())),
        }
    }

    /// Removes an entry without changing its setting.
    pub fn forget(&self, entry: &Entry) -> Result<(), JournalError> {
        self.directory.remove(entry.name().as_ref())
    }

    /// Keeps a change that would be undone unless confirmed.
    pub fn confirm(&self, entry: &Entry) -> Result<(), JournalError> {
        self.set(entry, Mark::Waits, false)
    }

    /// Returns the entries to undo now: entries of killed processes and trials, and entries whose
    /// confirmation is overdue. Latest first.
    pub fn overdue(&self) -> Result<Vec<Entry>, JournalError> {
        let mut all = self.entries()?;
        let trial_runs = self.trial_runs()?;
        all.retain(|entry| !entry.made || entry.trial && !trial_runs || entry.is_late());
        all.reverse();
        Ok(all)
    }

    /// Keeps a trial's change.
    pub(crate) fn keep(&self, entry: &Entry) -> Result<(), JournalError> {
        self.set(entry, Mark::Trial, false)
    }

    /// Whether a trial is running, which then owns the trial entries.
    pub fn trial_runs(&self) -> Result<bool, JournalError> {
        Ok(self.lock_trial()?.is_none())
    }

    /// Takes the lock that a trial holds during its life; `None` while another trial holds it.
    pub(crate) fn lock_trial(&self) -> Result<Option<Flock<File>>, JournalError> {
        self.directory.lock("trial", Duration::ZERO)
    }

    /// Returns an unused entry number.
    fn next_id(&self) -> Result<u64, JournalError> {
        let names = self.directory.names()?;
        // Count unreadable entries, too, so that no number is used twice.
        let known = names.iter().filter_map(|name| id_in(name)).filter(|id| *id < LAST_ID);
        Ok(known.max().unwrap_or(0) + 1)
    }

    fn put(&self, entry: &Entry) -> Result<File, JournalError> {
        let problem =
            |problem| JournalError::Entry { path: self.directory.file(entry.name()), problem };
        let text = entry.text().map_err(problem)?;
        // An entry too large to be read could never be undone.
        if text.len() >= LONGEST {
            return Err(problem(format!("{} bytes, an entry has at most {LONGEST}", text.len())));
        }
        self.directory.put(&entry.name(), &text)
    }

    fn set(&self, entry: &Entry, mark: Mark, to: bool) -> Result<(), JournalError> {
        let name = entry.name();
        if entry.marks {
            let file = self.directory.reopen(&name)?;
            return self.directory.mark(&name, &file, mark.at(), b'0' + u8::from(to));
        }
        // An entry of an earlier version has no places for marks: write it in the new form.
        let mut entry = Entry { marks: true, ..entry.clone() };
        match mark {
            Mark::Made => entry.made = to,
            Mark::Waits => entry.confirm_until = entry.confirm_until.filter(|_| to),
            Mark::Trial => entry.trial = to,
        }
        self.put(&entry).map(drop)
    }

    fn file_error(
        &self,
        operation: &'static str,
        entry: &Entry,
        error: std::io::Error,
    ) -> JournalError {
        JournalError::File { operation, path: self.directory.file(entry.name()), error }
    }
}

impl Entry {
    /// Returns the directory for its commands: the original one, unless another user could have put
    /// a program there.
    fn directory(&self) -> PathBuf {
        let made_in = self.directory.as_ref().map(PathBuf::from);
        let trusted = made_in.filter(|directory| trust::open(directory, false).is_ok());
        // A directory that others can write to could hold a forged program.
        trusted.unwrap_or_else(|| PathBuf::from(ROOT))
    }
}

/// Returns the number in an entry's name.
fn id_in(name: &OsStr) -> Option<u64> {
    let stem = name.to_str()?.strip_suffix(".json")?;
    stem.bytes().all(|byte| byte.is_ascii_digit()).then(|| stem.parse().ok())?
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the boot ID, or an empty text without `/proc`. Then all boots look the same, and only
/// the setting's value counts.
fn boot() -> String {
    read_value("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Returns a deadline from now, as entries store it.
pub fn seconds_from_now(seconds: u64) -> Until {
    Until::after(seconds)
}
