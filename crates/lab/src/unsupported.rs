//! Why this machine cannot build a mode, and what would help.

use std::path::PathBuf;

/// Why a mode cannot be built here, and what would help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// What is missing, in words that name the object: a program, a module, a right.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
    /// Root could build it, as far as is known. What the kernel lacks, root would not
    /// have either.
    pub needs_root: bool,
}

impl Unsupported {
    /// What the machine lacks, whoever asks.
    pub fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Unsupported {
        Unsupported { reason: reason.into(), remedy: remedy.into(), needs_root: false }
    }

    /// What this user may not do.
    pub fn without_root(reason: impl Into<String>, remedy: impl Into<String>) -> Unsupported {
        Unsupported { needs_root: true, ..Unsupported::new(reason, remedy) }
    }
}

/// `Ok` or why not.
pub type Supported = std::result::Result<(), Unsupported>;

/// Looks a program up in `PATH` and where daemons are kept, which an ordinary
/// user's `PATH` leaves out.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    sys::program::find(program, &["/usr/sbin", "/sbin", "/usr/libexec/docker"])
}
