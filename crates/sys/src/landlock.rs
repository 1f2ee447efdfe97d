//! Permanently drops access to files, TCP ports, abstract Unix sockets and signals (landlock(7)).
//!
//! This applies to the calling thread and to the threads and processes that it starts later. Open
//! descriptors stay usable. A restricted thread may no longer inspect other processes
//! (`/proc/PID/ns`, `/proc/PID/root`), because ptrace_may_access() asks Landlock too.
//!
//! Landlock does not restrict reading the metadata of a file, changing its mode or owner, Unix
//! sockets with a path, or sockets other than TCP.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope,
};
use nix::errno::Errno;

use crate::{Error, Result};

/// The newest ABI that this code uses; on an older kernel, the supported part applies.
const NEWEST: ABI = ABI::V6;

/// The access that remains to a directory or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stays {
    /// Reading files and listing directories.
    Reading,
    /// Reading this one file; if it does not exist, nothing is allowed.
    ReadingFile,
    /// Removing files from the directory and directories below it.
    Removing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Level {
    /// All restrictions of this kernel's version of Landlock (its ABI).
    Version(i32),
    /// Not enforced, with the reason.
    None(&'static str),
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Level::Version(version) => write!(f, "Landlock version {version}"),
            Level::None(why) => write!(f, "no Landlock ({why})"),
        }
    }
}

#[derive(Debug)]
pub struct Restrictions(RulesetCreated);

impl Restrictions {
    /// Restricts all access except this.
    ///
    /// # Errors
    /// If a directory cannot be opened, or the kernel refuses.
    pub fn but(stays: &[(&Path, Stays)]) -> Result<Restrictions> {
        Restrictions::of(stays, true)
    }

    /// Restricts access to files and processes; listening on TCP ports and connecting to them
    /// remain allowed.
    pub fn but_ports(stays: &[(&Path, Stays)]) -> Result<Restrictions> {
        Restrictions::of(stays, false)
    }

    fn of(stays: &[(&Path, Stays)], ports: bool) -> Result<Restrictions> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))
            .and_then(|ruleset| match ports {
                true => ruleset.handle_access(AccessNet::from_all(NEWEST)),
                false => Ok(ruleset),
            })
            .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
            .and_then(Ruleset::create)
            .map_err(|e| failed("landlock_create_ruleset", "Landlock", &e))?;
        for (path, stays) in stays {
            let name = || path.display().to_string();
            let errno = |e: &dyn std::error::Error| {
                let cause = e.source().and_then(|e| e.downcast_ref::<std::io::Error>());
                cause.and_then(std::io::Error::raw_os_error).map_or(Errno::ENOENT, Errno::from_raw)
            };
            let place = match PathFd::new(path) {
                Ok(place) => place,
                // The file may come later, and is then not readable.
                Err(e) if *stays == Stays::ReadingFile && errno(&e) == Errno::ENOENT => continue,
                Err(e) => return Err(Error::new("open", name(), errno(&e))),
            };
            let access: BitFlags<AccessFs> = match stays {
                Stays::Reading => AccessFs::ReadFile | AccessFs::ReadDir,
                Stays::ReadingFile => AccessFs::ReadFile.into(),
                Stays::Removing => AccessFs::RemoveFile.into(),
            };
            ruleset = ruleset
                .add_rule(PathBeneath::new(place.as_fd(), access))
                .map_err(|e| failed("landlock_add_rule", &name(), &e))?;
        }
        Ok(Restrictions(ruleset))
    }

    /// Enforces the restrictions and prevents gaining privileges by `execve`.
    ///
    /// # Errors
    /// If the kernel refuses for a reason other than not having Landlock.
    pub fn apply(self) -> Result<Level> {
        let status =
            self.0.restrict_self().map_err(|e| failed("landlock_restrict_self", "thread", &e))?;
        Ok(match (status.ruleset, status.landlock) {
            (
                RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced,
                LandlockStatus::Available { effective_abi, kernel_abi },
            ) => Level::Version(kernel_abi.unwrap_or(effective_abi as i32)),
            (_, LandlockStatus::NotEnabled) => Level::None("disabled in the kernel's lsm= list"),
            _ => Level::None("requires Linux 5.13 or later with Landlock"),
        })
    }
}

fn failed(operation: &'static str, object: &str, error: &RulesetError) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return Error::io(operation, object, error);
        }
        source = error.source();
    }
    Error::new(operation, format!("{object}: {error}"), Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_what_it_is_left() {
        let left = tempfile::tempdir().unwrap();
        let taken = tempfile::tempdir().unwrap();
        for directory in [&left, &taken] {
            std::fs::write(directory.path().join("file"), "text").unwrap();
        }
        let (left, taken) = (left.path().to_owned(), taken.path().to_owned());
        let restricted = std::thread::spawn({
            let (left, taken) = (left.clone(), taken.clone());
            move || {
                let level = Restrictions::but(&[(&left, Stays::Reading)]).unwrap().apply().unwrap();
                let read = [&left, &taken].map(|d| std::fs::read(d.join("file")).is_ok());
                let write = [&left, &taken].map(|d| std::fs::write(d.join("file"), "").is_ok());
                let bound = std::net::TcpListener::bind("127.0.0.1:0").is_ok();
                (level, read, write, bound)
            }
        });
        match restricted.join().unwrap() {
            (Level::Version(version), read, write, bound) => {
                assert_eq!((read, write), ([true, false], [false, false]));
                assert_eq!(bound, version < 4);
            }
            (Level::None(_), read, ..) => assert_eq!(read, [true; 2]),
        }
        assert_eq!(std::fs::read(taken.join("file")).unwrap(), b"text", "others may still");
    }
}
