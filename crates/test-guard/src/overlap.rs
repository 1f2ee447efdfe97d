//! Detects whether other guards of this machine ran at the same time.
//!
//! Each guard holds a share of a lock on the file `running`, and appends its test's name to the
//! file. The first guard that finds itself alone empties the file. A guard was alone for its whole
//! time if no other guard held the lock at its start and the file has only its own name at its end.
//! The lock is the machine's, not the run's: two clones may be tested at once. The kernel releases
//! it when a guard is killed.

use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Another directory for the locks: the guard's own tests use it.
const VARIABLE: &str = "OVERLANE_TEST_LOCKS";
const LOCKS: &str = "/run/test-guard";

/// The share that this guard holds.
pub struct Overlap {
    began_alone: bool,
    path: PathBuf,
    _share: Flock<File>,
}

impl Overlap {
    pub fn begin(test: &str) -> Result<Overlap> {
        let directory = std::env::var_os(VARIABLE).map_or_else(|| LOCKS.into(), PathBuf::from);
        std::fs::create_dir_all(&directory)?;
        // Guards begin one after the other: the lock on `running` cannot be turned from exclusive
        // to shared in one step, and no other guard may find it free in between.
        let gate = Flock::lock(open(&directory.join("gate"))?, FlockArg::LockExclusive);
        let _gate = gate.map_err(|(_, errno)| errno)?;
        let path = directory.join("running");
        let (began_alone, mut share) =
            match Flock::lock(open(&path)?, FlockArg::LockExclusiveNonblock) {
                Ok(share) => {
                    share.set_len(0)?;
                    share.relock(FlockArg::LockShared)?;
                    (true, share)
                }
                Err((file, Errno::EWOULDBLOCK)) => {
                    let share = Flock::lock(file, FlockArg::LockShared);
                    (false, share.map_err(|(_, errno)| errno)?)
                }
                Err((_, errno)) => return Err(errno.into()),
            };
        share.write_all(format!("{test}\n").as_bytes())?;
        Ok(Overlap { began_alone, path, _share: share })
    }

    /// Whether no other guard has run since this one began. If in doubt, others have.
    pub fn alone(&self) -> bool {
        let names = || std::fs::read_to_string(&self.path).map(|names| names.lines().count());
        self.began_alone && names().is_ok_and(|count| count == 1)
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new().append(true).read(true).create(true).open(path)
}
