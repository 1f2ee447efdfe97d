//! Changes that were made, on disk, so that they can be taken back: also after
//! this process was killed, or the machine started anew.
//!
//! An entry is written and synced before its change is made, marked as made
//! afterwards, and removed after the change has been taken back. One that was
//! never marked is of a process that ended in between: whether its change was
//! made, only the setting tells. A lock keeps two processes from changing at once.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use netstate::proc::read_value;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::apply;
use crate::change::{Change, Setting};

/// Where it is, unless told otherwise.
pub const DIRECTORY: &str = "/var/lib/overlane/journal";
/// Version of an entry's form.
const FORMAT: u32 = 1;

/// What went wrong with the journal itself, or with a change.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of it.
    #[error("journal: {operation} {path}: {error}")]
    File {
        /// What was attempted.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The answer.
        error: std::io::Error,
    },
    /// An entry that is none.
    #[error("journal: {path}: {problem}")]
    Entry {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The setting could not be read or written.
    #[error(transparent)]
    Apply(#[from] apply::Error),
    /// The setting is no longer what the change started from.
    #[error("{object}: is {got}, expected {expected}: somebody else has changed it meanwhile")]
    Changed {
        /// The setting.
        object: String,
        /// What it should have been.
        expected: String,
        /// What it is.
        got: String,
    },
    /// Two trials at a time would measure one another.
    #[error("another trial is running (its journal: {})", .0.display())]
    Busy(PathBuf),
    /// The kernel took the value without an error, and did not keep it.
    #[error("{object}: set to {wanted}, reads {got}; taken back")]
    NotTaken {
        /// The setting.
        object: String,
        /// What was written.
        wanted: String,
        /// What is there.
        got: String,
    },
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    format: u32,
    /// Its number; later changes have higher ones.
    pub id: u64,
    /// The check whose finding it was.
    pub code: String,
    /// The change.
    pub change: Change,
    /// Seconds since 1970.
    pub made_s: u64,
    /// `/proc/sys/kernel/random/boot_id`: a setting is gone with its boot.
    boot: String,
    /// The change was made, as far as its maker lived to see.
    pub made: bool,
    /// Seconds since 1970 after which it is to be taken back, unless confirmed.
    pub confirm_until_s: Option<u64>,
    /// Of a [`crate::trial::Trial`]: not to outlive it.
    #[serde(default)]
    pub trial: bool,
}

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

/// The journal, locked.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    _lock: Flock<File>,
}

impl Journal {
    /// Opens it, waiting for whoever else has it.
    ///
    /// # Errors
    /// When the directory cannot be made or locked.
    pub fn open(directory: &Path) -> Result<Journal, Error> {
        let failed =
            |operation| move |error| Error::File { operation, path: directory.to_owned(), error };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed("create"))?;
        let file = lock_file(&directory.join("lock"))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| failed("lock")(std::io::Error::from(errno)))?;
        Ok(Journal { directory: directory.to_owned(), _lock: lock })
    }

    /// Every entry, oldest first.
    ///
    /// # Errors
    /// When a file cannot be read, or is no entry of this version.
    pub fn entries(&self) -> Result<Vec<Entry>, Error> {
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |error| Error::File { operation, path, error }
        };
        let mut all = Vec::new();
        for file in fs::read_dir(&self.directory).map_err(failed("list", &self.directory))? {
            let path = file.map_err(failed("list", &self.directory))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = fs::read_to_string(&path).map_err(failed("read", &path))?;
            let entry: Entry = serde_json::from_str(&text)
                .map_err(|e| Error::Entry { path: path.clone(), problem: e.to_string() })?;
            if entry.format != FORMAT {
                let problem = format!("format {}, this program reads {FORMAT}", entry.format);
                return Err(Error::Entry { path, problem });
            }
            all.push(entry);
        }
        all.sort_by_key(|entry| entry.id);
        Ok(all)
    }

    /// Makes a change: journal first. A change that does not take is taken back.
    ///
    /// # Errors
    /// [`Error::Changed`] when the setting is no longer what was read; what the
    /// kernel answers; [`Error::NotTaken`].
    pub fn make(
        &self,
        code: &str,
        change: &Change,
        confirm_until_s: Option<u64>,
    ) -> Result<Entry, Error> {
        self.make_for(code, change, confirm_until_s, false)
    }

    /// As [`Journal::make`], maybe for a trial.
    pub(crate) fn make_for(
        &self,
        code: &str,
        change: &Change,
        confirm_until_s: Option<u64>,
        trial: bool,
    ) -> Result<Entry, Error> {
        if change.setting != Setting::Command {
            let now = apply::read(change)?;
            if !now.is(&change.from) {
                return Err(Error::Changed {
                    object: change.object(),
                    expected: change.from.clone(),
                    got: now.to_string(),
                });
            }
            apply::can_be_taken_back(change)?;
        }
        let id = self.entries()?.last().map_or(1, |last| last.id + 1);
        let mut entry = Entry {
            format: FORMAT,
            id,
            code: code.to_owned(),
            change: change.clone(),
            made_s: now_s(),
            boot: boot(),
            made: false,
            confirm_until_s,
            trial,
        };
        self.store(&entry)?;
        let read = || match change.setting {
            Setting::Command => Ok(None),
            _ => apply::read(change).map(Some),
        };
        match apply::write(change, &change.to).and_then(|()| read()) {
            Ok(got) if got.as_ref().is_none_or(|got| got.is(&change.to)) => {
                entry.made = true;
                self.store(&entry)?;
                Ok(entry)
            }
            Ok(got) => {
                self.undo(&entry)?;
                let (object, wanted) = (change.object(), change.to.clone());
                let got = got.map_or_else(String::new, |got| got.to_string());
                Err(Error::NotTaken { object, wanted, got })
            }
            Err(error) => {
                self.undo(&entry)?;
                Err(error.into())
            }
        }
    }

    /// Takes a change back, and forgets it.
    ///
    /// # Errors
    /// [`Error::Changed`] when the setting is neither what the change made it nor
    /// what it was before; what the kernel answers. The entry then stays.
    pub fn undo(&self, entry: &Entry) -> Result<Undone, Error> {
        let change = &entry.change;
        if change.setting == Setting::Command {
            return self.undo_command(entry);
        }
        let undone = match apply::read(change) {
            Ok(now) if now.is(&change.from) => {
                Undone::AlreadyThere { rebooted: entry.boot != boot() }
            }
            Ok(now) if now.is(&change.to) => {
                apply::write(change, &change.from)?;
                let got = apply::read(change)?;
                if !got.is(&change.from) {
                    return Err(Error::Changed {
                        object: change.object(),
                        expected: change.from.clone(),
                        got: got.to_string(),
                    });
                }
                Undone::Restored
            }
            Ok(now) => {
                return Err(Error::Changed {
                    object: change.object(),
                    expected: change.to.clone(),
                    got: now.to_string(),
                });
            }
            Err(apply::Error::Gone { reason, .. }) => Undone::Gone(reason),
            Err(error) => return Err(error.into()),
        };
        self.forget(entry)?;
        Ok(undone)
    }

    /// Runs the command that takes another one back. Whether one of the two has done
    /// its work nobody can read: where either was interrupted, a failure says nothing.
    fn undo_command(&self, entry: &Entry) -> Result<Undone, Error> {
        let known = entry.made && entry.boot == boot();
        if known {
            // From here on nobody knows, should this process be killed.
            self.store(&Entry { made: false, ..entry.clone() })?;
        }
        let undone = match apply::write(&entry.change, &entry.change.from) {
            Ok(()) => Undone::Restored,
            Err(apply::Error::Gone { reason, .. }) => Undone::Gone(reason),
            Err(error) if known => {
                self.store(entry)?;
                return Err(error.into());
            }
            Err(error) => Undone::Unsure(error.to_string()),
        };
        self.forget(entry)?;
        Ok(undone)
    }

    /// Removes an entry and leaves its setting as it is.
    ///
    /// # Errors
    /// When its file cannot be removed.
    pub fn forget(&self, entry: &Entry) -> Result<(), Error> {
        let path = self.file(entry.id);
        let failed = |operation| {
            let path = path.clone();
            move |error| Error::File { operation, path, error }
        };
        fs::remove_file(&path).map_err(failed("remove"))?;
        self.sync()
    }

    /// Lets a change stay that was to be taken back unless confirmed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn confirm(&self, entry: &Entry) -> Result<(), Error> {
        self.store(&Entry { confirm_until_s: None, ..entry.clone() })
    }

    /// Entries that must be taken back now: of makers and trials that died, and
    /// those that nobody has confirmed in time. Latest first.
    ///
    /// # Errors
    /// As [`Journal::entries`].
    pub fn overdue(&self) -> Result<Vec<Entry>, Error> {
        let now = now_s();
        let mut all = self.entries()?;
        let trial_runs = self.trial_runs()?;
        all.retain(|entry| {
            !entry.made
                || entry.trial && !trial_runs
                || entry.confirm_until_s.is_some_and(|until| until <= now)
        });
        all.reverse();
        Ok(all)
    }

    /// Lets a trial's change stay.
    pub(crate) fn keep(&self, entry: &Entry) -> Result<(), Error> {
        self.store(&Entry { trial: false, ..entry.clone() })
    }

    /// Whether a trial is running, whose entries are its own.
    ///
    /// # Errors
    /// When its lock cannot be asked for.
    pub fn trial_runs(&self) -> Result<bool, Error> {
        Ok(self.lock_trial()?.is_none())
    }

    /// The lock that a trial holds for as long as it lives; `None` while another does.
    pub(crate) fn lock_trial(&self) -> Result<Option<Flock<File>>, Error> {
        let path = self.directory.join("trial");
        match Flock::lock(lock_file(&path)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(lock)),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => {
                Err(Error::File { operation: "lock", path, error: std::io::Error::from(errno) })
            }
        }
    }

    fn file(&self, id: u64) -> PathBuf {
        self.directory.join(format!("{id:08}.json"))
    }

    /// Whole or not at all, and on the disk when it returns.
    fn store(&self, entry: &Entry) -> Result<(), Error> {
        let path = self.file(entry.id);
        let new = path.with_extension("new");
        let failed = |operation| {
            let path = path.clone();
            move |error| Error::File { operation, path, error }
        };
        let text = serde_json::to_vec_pretty(entry)
            .map_err(|e| Error::Entry { path: path.clone(), problem: e.to_string() })?;
        let mut file = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&new)
            .map_err(failed("create"))?;
        file.write_all(&text).map_err(failed("write"))?;
        file.sync_all().map_err(failed("sync"))?;
        fs::rename(&new, &path).map_err(failed("rename"))?;
        self.sync()
    }

    fn sync(&self) -> Result<(), Error> {
        let path = self.directory.clone();
        File::open(&path).and_then(|directory| directory.sync_all()).map_err(|error| Error::File {
            operation: "sync",
            path,
            error,
        })
    }
}

fn lock_file(path: &Path) -> Result<File, Error> {
    fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| Error::File { operation: "open", path: path.to_owned(), error })
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
pub fn seconds_from_now(seconds: u64) -> u64 {
    now_s().saturating_add(seconds)
}
