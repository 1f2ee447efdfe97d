//! Files, TCP ports, abstract Unix sockets and signals given up for good (landlock(7)).
//!
//! It holds for the calling thread and for the threads and processes that it starts
//! afterwards. What is open already stays usable. A thread that is restricted may no longer
//! look at other processes (`/proc/PID/ns`, `/proc/PID/root`): ptrace_may_access() asks
//! Landlock, too.
//!
//! Not restricted by Landlock: looking at a file's metadata, changing mode and owner, Unix
//! sockets that have a file, sockets of other kinds than TCP.

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

/// The newest that this is written for; an older kernel does what it can.
const NEWEST: ABI = ABI::V6;

/// What stays possible below a directory, or with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stays {
    /// To read files and list directories.
    Reading,
    /// To read this one file; where it is missing, nothing stays.
    ReadingFile,
    /// To remove files from directories below it.
    Removing,
}

/// How much of it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Level {
    /// Everything that this kernel's version of Landlock (its ABI) has.
    Version(i32),
    /// Not in force, and why.
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

/// Restrictions that are prepared.
#[derive(Debug)]
pub struct Restrictions(RulesetCreated);

impl Restrictions {
    /// Everything but these.
    ///
    /// # Errors
    /// When a directory cannot be opened, or the kernel refuses.
    pub fn but(stays: &[(&Path, Stays)]) -> Result<Restrictions> {
        Restrictions::of(stays, true)
    }

    /// Of files and processes; TCP ports can be listened at and connected to.
    ///
    /// # Errors
    /// As [`Restrictions::but`].
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

    /// Puts them in force, and forbids to gain rights by `execve`.
    ///
    /// # Errors
    /// When the kernel refuses for another reason than not having Landlock.
    pub fn apply(self) -> Result<Level> {
        let status =
            self.0.restrict_self().map_err(|e| failed("landlock_restrict_self", "thread", &e))?;
        Ok(match (status.ruleset, status.landlock) {
            (
                RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced,
                LandlockStatus::Available { effective_abi, kernel_abi },
            ) => Level::Version(kernel_abi.unwrap_or(effective_abi as i32)),
            (_, LandlockStatus::NotEnabled) => Level::None("not enabled: lsm= of the kernel"),
            _ => Level::None("Linux 5.13 or later with Landlock needed"),
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
