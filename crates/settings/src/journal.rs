//! Changes that were made, on disk, so that they can be taken back: also after
//! this process was killed, or the machine started anew.
//!
//! An entry is written and synced before its change is made, marked as made
//! afterwards, and removed after the change has been taken back. One that was
//! never marked is of a process that ended in between: whether its change was
//! made, only the setting tells. A lock keeps two processes from changing at once.
//!
//! A file that is no entry of this version is left where it is, and told of: it stands
//! in nobody's way. See `docs/src/design/journal.md`.

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
mod trust;

use directory::{Directory, LONGEST};
pub use entry::{Entry, Until};
use entry::{Mark, Problem};
pub use error::JournalError;

/// Where it is, unless told otherwise.
pub const DIRECTORY: &str = "/var/lib/overlane/journal";
/// How long another process may have the journal, unless asked for more patience.
const PATIENCE: Duration = Duration::from_secs(60);
/// Numbers beyond this are nobody's, so that there is always a next one.
const LAST_ID: u64 = 1 << 40;
/// Where commands are run whose own directory cannot be used.
const ROOT: &str = "/";

/// Called with the name of each step; an error makes the step fail. For tests.
#[doc(hidden)]
pub type Step = Box<dyn Fn(&'static str) -> std::io::Result<()> + Send + Sync>;

/// What became of an undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undone {
    /// The earlier value is there again.
    Restored,
    /// It was there already: the change had never been made, or a reboot or
    /// somebody else had taken it back.
    AlreadyThere {
        /// Since then the machine was started anew.
        rebooted: bool,
    },
    /// The namespace or device is gone, and its settings with it.
    Gone(String),
    /// The command that takes it back failed; but its maker was killed, or the machine
    /// started anew, so that there may have been nothing to take back.
    Unsure(String),
}

/// A file that is no entry which this program can take back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Path of the file.
    pub path: PathBuf,
    /// Its number, where its name is that of an entry.
    pub id: Option<u64>,
    /// What is wrong with it.
    pub problem: String,
    /// What to do about it, in words.
    pub remedy: &'static str,
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Whoever made it chose its name.
        let (path, problem) = (self.path.to_string_lossy(), self.problem.escape_debug());
        write!(f, "{}: {problem}: {}", path.escape_debug(), self.remedy)
    }
}

/// What is in the journal.
#[derive(Debug, Default)]
pub struct Contents {
    /// Entries that can be taken back, oldest first.
    pub entries: Vec<Entry>,
    /// Files that are none, by name.
    pub left: Vec<Left>,
}

/// Directory of the journal, locked against other processes until it is dropped.
#[derive(Debug)]
pub struct Journal {
    directory: Directory,
    _lock: Flock<File>,
}

impl Journal {
    /// Opens it, waiting up to a minute for whoever else has it.
    ///
    /// # Errors
    /// When the directory cannot be made or locked; [`JournalError::Untrusted`] where somebody
    /// else could write to it; [`JournalError::Locked`].
    pub fn open(directory: &Path) -> Result<Journal, JournalError> {
        Journal::open_within(directory, PATIENCE)
    }

    /// As [`Journal::open`], waiting for as long as it takes: for those who take back
    /// what nobody else will.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_patiently(directory: &Path) -> Result<Journal, JournalError> {
        Journal::open_within(directory, Duration::MAX)
    }

    /// As [`Journal::open`], with another patience.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_within(directory: &Path, wait: Duration) -> Result<Journal, JournalError> {
        Journal::open_stepwise(directory, wait, None)
    }

    /// As [`Journal::open`], with steps that fail. For tests.
    ///
    /// # Errors
    /// As [`Journal::open`].
    #[doc(hidden)]
    pub fn open_with(directory: &Path, before: Step) -> Result<Journal, JournalError> {
        Journal::open_stepwise(directory, PATIENCE, Some(before))
    }

    fn open_stepwise(
        path: &Path,
        wait: Duration,
        before: Option<Step>,
    ) -> Result<Journal, JournalError> {
        let directory = Directory::open(path, before)?;
        let locked = || JournalError::Locked { path: path.to_owned(), waited_s: wait.as_secs() };
        let lock = directory.lock("lock", wait)?.ok_or_else(locked)?;
        directory.sweep();
        Ok(Journal { directory, _lock: lock })
    }

    /// Everything in it.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn contents(&self) -> Result<Contents, JournalError> {
        let mut contents = Contents::default();
        let mut names = self.directory.names()?;
        // The locks, and what is being written (`.new`), are no entries.
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
        contents.entries.sort_by_key(|entry| entry.id);
        Ok(contents)
    }

    /// Every entry, oldest first, without what is none.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn entries(&self) -> Result<Vec<Entry>, JournalError> {
        Ok(self.contents()?.entries)
    }

    /// Makes a change: journal first. A change that does not take is taken back, as is one
    /// that cannot be marked as made.
    ///
    /// # Errors
    /// [`apply::Error::Changed`] when the setting is no longer what was read;
    /// [`JournalError::File`] when the entry cannot be written: nothing is changed then; what the
    /// kernel answers; [`apply::Error::NotTaken`]; [`JournalError::Left`].
    pub fn make(
        &self,
        code: &str,
        change: &Change,
        confirm_until: Option<Until>,
    ) -> Result<Entry, JournalError> {
        self.make_for(code, change, confirm_until, false)
    }

    /// As [`Journal::make`], maybe for a trial.
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
                // Where it cannot be told, or is no text, commands run in `/`.
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
            // It may be there by name: of a change that was never made.
            let _ = self.directory.remove(entry.name().as_ref());
        })?;
        let made = self
            .directory
            .step("change")
            .map_err(|error| self.file_error("change", &entry, error))
            .and_then(|()| Ok(apply::make(change, &entry.directory())?))
            // One that is not marked would be taken for a killed process's.
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

    /// Takes a change back, and forgets it.
    ///
    /// # Errors
    /// [`apply::Error::Changed`] when the setting is neither what the change made it
    /// nor what it was before; [`apply::Error::Unknown`] when the namespace or device may be
    /// another one; what the kernel answers. The entry then stays. [`JournalError::Stays`] when
    /// only the entry does.
    pub fn undo(&self, entry: &Entry) -> Result<Undone, JournalError> {
        let undone = match &entry.change {
            change if change.setting == Setting::Command => self.take_back_command(entry)?,
            // What the kernel keeps it has lost; a value that is there now is another's.
            _ if entry.rebooted() => Undone::AlreadyThere { rebooted: true },
            change => match identity::sure(change).and_then(|()| apply::put_back(change)) {
                Ok(true) => Undone::Restored,
                Ok(false) => Undone::AlreadyThere { rebooted: false },
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

    /// Runs the command that takes another one back. Whether one of the two has done
    /// its work nobody can read: where either was interrupted, a failure says nothing.
    fn take_back_command(&self, entry: &Entry) -> Result<Undone, JournalError> {
        let mut change = entry.change.clone();
        let known = entry.made && !entry.rebooted();
        if entry.rebooted() {
            match change.place.take() {
                None => {}
                Some(place) if place.first => change.place = identity::first_place(&place.label),
                Some(place) if place.cookie.is_none() => {
                    return Err(identity::unsure(&change, &place).into());
                }
                Some(_) => {
                    let reason = "its namespace is gone since the machine was started anew";
                    return Ok(Undone::Unsure(format!("{}: {reason}", entry.change.object())));
                }
            }
        } else {
            match identity::sure(&change) {
                Err(apply::Error::Gone { reason, .. }) => return Ok(Undone::Gone(reason)),
                answer => answer?,
            }
        }
        if known {
            // From here on nobody knows, should this process be killed. A disk that
            // cannot be written to must not keep the host as it is: both commands bear
            // being run twice.
            let _ = self.set(entry, Mark::Made, false);
        }
        let step = self.directory.step("change back");
        step.map_err(|error| self.file_error("change back", entry, error))?;
        match apply::write_from(&change, &change.from, &entry.directory()) {
            Ok(()) => Ok(Undone::Restored),
            Err(apply::Error::Gone { reason, .. }) => Ok(Undone::Gone(reason)),
            Err(error) if known => {
                // This process lives to see that the change still stands: it is marked as
                // before.
                self.set(entry, Mark::Made, true)?;
                Err(error.into())
            }
            // There may have been nothing to take back. A failure that says nothing keeps no
            // entry.
            Err(error) => Ok(Undone::Unsure(error.to_string())),
        }
    }

    /// Removes an entry and leaves its setting as it is.
    ///
    /// # Errors
    /// When its file cannot be removed.
    pub fn forget(&self, entry: &Entry) -> Result<(), JournalError> {
        self.directory.remove(entry.name().as_ref())
    }

    /// Lets a change stay that was to be taken back unless confirmed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn confirm(&self, entry: &Entry) -> Result<(), JournalError> {
        self.set(entry, Mark::Waits, false)
    }

    /// Entries that must be taken back now: of makers and trials that died, and
    /// those that nobody has confirmed in time. Latest first.
    ///
    /// # Errors
    /// As [`Journal::entries`].
    pub fn overdue(&self) -> Result<Vec<Entry>, JournalError> {
        let mut all = self.entries()?;
        let trial_runs = self.trial_runs()?;
        all.retain(|entry| !entry.made || entry.trial && !trial_runs || entry.is_late());
        all.reverse();
        Ok(all)
    }

    /// Lets a trial's change stay.
    pub(crate) fn keep(&self, entry: &Entry) -> Result<(), JournalError> {
        self.set(entry, Mark::Trial, false)
    }

    /// Whether a trial is running, whose entries are its own.
    ///
    /// # Errors
    /// When its lock cannot be asked for.
    pub fn trial_runs(&self) -> Result<bool, JournalError> {
        Ok(self.lock_trial()?.is_none())
    }

    /// The lock that a trial holds for as long as it lives; `None` while another does.
    pub(crate) fn lock_trial(&self) -> Result<Option<Flock<File>>, JournalError> {
        self.directory.lock("trial", Duration::ZERO)
    }

    /// A number that no file has.
    fn next_id(&self) -> Result<u64, JournalError> {
        let names = self.directory.names()?;
        let known = names.iter().filter_map(|name| id_in(name)).filter(|id| *id < LAST_ID);
        Ok(known.max().unwrap_or(0) + 1)
    }

    fn put(&self, entry: &Entry) -> Result<File, JournalError> {
        let problem =
            |problem| JournalError::Entry { path: self.directory.file(entry.name()), problem };
        let text = entry.text().map_err(problem)?;
        // What could not be read again would never be taken back.
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
        // One of before has no places for marks: it is written anew.
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
    /// Where its commands are run: where its maker was, unless others could put another
    /// program there by now.
    fn directory(&self) -> PathBuf {
        let made_in = self.directory.as_ref().map(PathBuf::from);
        let trusted = made_in.filter(|directory| trust::open(directory, false).is_ok());
        trusted.unwrap_or_else(|| PathBuf::from(ROOT))
    }
}

/// The number in an entry's name.
fn id_in(name: &OsStr) -> Option<u64> {
    let stem = name.to_str()?.strip_suffix(".json")?;
    stem.bytes().all(|byte| byte.is_ascii_digit()).then(|| stem.parse().ok())?
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Empty where there is no `/proc`: then every boot looks alike, and only the
/// setting's value counts.
fn boot() -> String {
    read_value("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// A time from now, as entries have it.
pub fn seconds_from_now(seconds: u64) -> Until {
    Until::after(seconds)
}
