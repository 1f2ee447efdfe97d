//! What a verb that runs for long may still do once it is set up.
//!
//! Each program gives up in two steps. The first, before its threads are started, is for
//! what a thread inherits: user, capabilities, Landlock. The second, when they run, is a
//! filter of system calls for all of them. What is in force is told by the program's
//! status, since an older kernel or a container may have less of it;
//! `docs/src/design/confinement.md` lists it by verb.

pub mod accel;
pub mod forwarding;
pub mod serving;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use sys::capability::{self, Capability};
use sys::identity::{self, Identity};
use sys::landlock::{Level, Restrictions, Stays};

use crate::notify;

/// What is in force, in words.
static IN_FORCE: Mutex<String> = Mutex::new(String::new());

/// What is in force in this process, in words: user, capabilities, Landlock, filter.
pub fn in_force() -> String {
    IN_FORCE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// What was given up before the threads were started.
#[derive(Debug)]
pub struct Rights {
    identity: Option<Identity>,
    capabilities: Vec<Capability>,
    landlock: Level,
}

impl Rights {
    /// Gives up every capability and every file, and becomes another user.
    ///
    /// # Errors
    /// When the kernel refuses what every kernel does.
    pub fn none() -> sys::Result<Rights> {
        let restrictions = Restrictions::but(&[])?;
        capability::bound(&[])?;
        let identity = identity::become_unprivileged()?;
        capability::drop_all()?;
        // What is in memory is tenants': no core file, no debugger of the same user.
        undumpable();
        let landlock = restrictions.apply()?;
        Ok(Rights { identity: Some(identity), capabilities: Vec::new(), landlock })
    }

    /// Gives up every capability but these, and every file but those below `reading`, which
    /// can be read; all files stay where that is `None`.
    ///
    /// # Errors
    /// As [`Rights::none`].
    pub fn only(capabilities: &[Capability], reading: Option<&[&str]>) -> sys::Result<Rights> {
        let restrictions = match reading {
            Some(paths) => {
                let stays: Vec<_> =
                    paths.iter().map(|path| (Path::new(*path), Stays::Reading)).collect();
                Some(Restrictions::but(&stays)?)
            }
            None => None,
        };
        let capabilities = capability::keep(capabilities)?;
        undumpable();
        let landlock = match restrictions {
            Some(restrictions) => restrictions.apply()?,
            None => Level::None("it would hide other processes' namespaces"),
        };
        Ok(Rights { identity: None, capabilities, landlock })
    }

    /// Becomes another user, but keeps these capabilities, what is below `reading`, these
    /// files, and TCP.
    ///
    /// # Errors
    /// As [`Rights::none`].
    pub fn of_another(
        capabilities: &[Capability],
        reading: &[&'static str],
        files: &[&'static str],
    ) -> sys::Result<Rights> {
        let stay = |paths: &[&'static str], stays| -> Vec<(&Path, Stays)> {
            paths.iter().map(|path| (Path::new(*path), stays)).collect()
        };
        let stays = [stay(reading, Stays::Reading), stay(files, Stays::ReadingFile)].concat();
        let restrictions = Restrictions::but_ports(&stays)?;
        // Else they would go with the user.
        let _ = nix::sys::prctl::set_keepcaps(true);
        capability::bound(capabilities)?;
        let identity = identity::become_unprivileged()?;
        let capabilities = capability::keep(capabilities)?;
        undumpable();
        let landlock = restrictions.apply()?;
        Ok(Rights { identity: Some(identity), capabilities, landlock })
    }

    /// Tells what is in force, with the filter.
    fn told(&self, filter: &str) {
        let capabilities = match self.capabilities.as_slice() {
            [] => "no capabilities".to_owned(),
            some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        };
        let user = match &self.identity {
            Some(identity) => identity.to_string(),
            None => format!("user {}", nix::unistd::geteuid()),
        };
        let text = format!("{user}, {capabilities}, {}, {filter}", self.landlock);
        *IN_FORCE.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

/// Best effort: where it cannot be said, there is no such thing.
fn undumpable() {
    let _ = nix::sys::prctl::set_dumpable(false);
}

/// Opens what a confined program cannot open any more, but has a use for.
///
/// # Errors
/// When the service manager's socket cannot be connected to.
pub fn prepare() -> anyhow::Result<()> {
    notify::connect()
}
