//! The reason why this machine cannot build a mode, and the remedy.

use std::path::PathBuf;

/// Reason why a mode cannot be built here, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// The missing object by name: a program, a module, a privilege.
    pub reason: String,
    pub remedy: String,
    /// Whether root could probably build it. False if the kernel lacks something.
    pub needs_root: bool,
}

impl Unsupported {
    /// Something that the machine lacks for every user.
    pub fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Unsupported {
        Unsupported { reason: reason.into(), remedy: remedy.into(), needs_root: false }
    }

    /// Something that this user lacks the privilege for.
    pub fn without_root(reason: impl Into<String>, remedy: impl Into<String>) -> Unsupported {
        Unsupported { needs_root: true, ..Unsupported::new(reason, remedy) }
    }
}

/// `Ok`, or the reason why not.
pub type Supported = std::result::Result<(), Unsupported>;

/// Looks a program up in `PATH` and in the directories of daemons, which are often not in an
/// ordinary user's `PATH`.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    sys::program::find(program, &["/usr/sbin", "/sbin", "/usr/libexec/docker"])
}
