//! Confinement of long-running verbs after their setup.
//!
//! Each program gives up rights in two steps. The first, before its threads start, covers rights
//! that threads inherit: user, capabilities, Landlock. The second, once they run, is a seccomp
//! filter for all threads. An older kernel or a container may support less, so the program's
//! status reports the confinement in force. `docs/src/design/confinement.md` lists it by verb.

pub mod accel;
pub mod forwarding;
pub mod serving;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use sys::capability::{self, Capability};
use sys::identity::{self, Identity};
use sys::landlock::{Level, Restrictions, Stays};

use crate::notify;

/// Description of the confinement in force.
static IN_FORCE: Mutex<String> = Mutex::new(String::new());

/// Describes the confinement of this process: user, capabilities, Landlock, seccomp filter.
pub fn in_force() -> String {
    IN_FORCE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The rights that are left after the first step.
#[derive(Debug)]
pub struct Rights {
    identity: Option<Identity>,
    capabilities: Vec<Capability>,
    landlock: Level,
}

impl Rights {
    /// Gives up all capabilities and files, and switches to an unprivileged user.
    ///
    /// # Errors
    /// If the kernel refuses an operation that every kernel supports.
    pub fn none() -> sys::Result<Rights> {
        let restrictions = Restrictions::but(&[])?;
        capability::bound(&[])?;
        let identity = identity::become_unprivileged()?;
        capability::drop_all()?;
        // Memory holds tenants' packets: no core file, no debugger of the same user.
        undumpable();
        let landlock = restrictions.apply()?;
        Ok(Rights { identity: Some(identity), capabilities: Vec::new(), landlock })
    }

    /// Gives up all capabilities but these, and all files but read access below `reading`. With
    /// `None`, all files stay accessible.
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
            // Landlock permits ptrace access only to processes in the same domain.
            None => Level::None("it would hide other processes' namespaces"),
        };
        Ok(Rights { identity: None, capabilities, landlock })
    }

    /// Switches to an unprivileged user, but keeps these capabilities, TCP, and read access to
    /// `files` and everything below `reading`.
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
        // Otherwise the kernel drops all capabilities when the user changes.
        let _ = nix::sys::prctl::set_keepcaps(true);
        capability::bound(capabilities)?;
        let identity = identity::become_unprivileged()?;
        let capabilities = capability::keep(capabilities)?;
        undumpable();
        let landlock = restrictions.apply()?;
        Ok(Rights { identity: Some(identity), capabilities, landlock })
    }

    /// Records the confinement in force, including the filter.
    fn log(&self, filter: &str) {
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

/// Makes the process undumpable. Ignores errors: prctl only fails where dumps do not exist.
fn undumpable() {
    let _ = nix::sys::prctl::set_dumpable(false);
}

/// Connects to the service manager, which a confined process can no longer do.
pub fn prepare() -> anyhow::Result<()> {
    notify::connect()
}
