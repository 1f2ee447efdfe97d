//! Errors of reading and writing a setting.

use netstate::proc::ProcError;
use sys::errno::Errno;

/// Why a setting could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed; it names the operation and the object.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// The guard process of a machine setting failed.
    #[error(transparent)]
    Guard(#[from] sys::guard::GuardError),
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// A file of `/proc` could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// The setting's namespace or device no longer exists.
    #[error("{object}: {reason}")]
    Gone {
        /// The setting and its namespace, in words.
        object: String,
        /// The namespace or device that no longer exists.
        reason: String,
    },
    /// The setting's namespace or device may not be the one that was changed.
    #[error("{object}: {reason}")]
    Unknown {
        /// The setting and its namespace, in words.
        object: String,
        /// The unknown object or name.
        reason: String,
    },
    /// A command failed, or could not be run.
    #[error("{command}: {status}{}", .said.as_ref().map(|said| format!(": {said}")).unwrap_or_default())]
    Command {
        /// Command as passed to the shell.
        command: String,
        /// Exit code or signal, in words.
        status: String,
        /// Beginning of its standard error output.
        said: Option<String>,
    },
    /// The change could not be undone later, so it was not made.
    #[error("{object}: not changed, because {from} could not be restored: {reason}")]
    OneWay {
        /// The setting and its namespace, in words.
        object: String,
        /// Present value.
        from: String,
        /// Reason why the kernel would reject it.
        reason: String,
    },
    /// The setting no longer has the expected value.
    #[error("{object}: is {got}, expected {expected}: another process has changed it")]
    Changed {
        /// The setting and its namespace, in words.
        object: String,
        expected: String,
        /// Present value.
        got: String,
    },
    /// The kernel accepted the value without an error, but did not keep it.
    #[error("{object}: set to {wanted}, reads {got}; undone")]
    NotTaken {
        /// The setting and its namespace, in words.
        object: String,
        /// Value that was written.
        wanted: String,
        /// Value that was read back.
        got: String,
    },
    /// The value exceeds the device's limit (`ethtool -g`, `-l`).
    #[error("{object}: {wanted} requested, the device supports at most {most}")]
    TooMany {
        /// The setting and its namespace, in words.
        object: String,
        /// Requested value.
        wanted: u32,
        /// Limit reported by the driver.
        most: u32,
    },
    /// A value has an unexpected form.
    #[error("{object}: expected {expected}, got {got:?}")]
    Form {
        /// The setting and its namespace, in words.
        object: String,
        expected: &'static str,
        got: String,
    },
}

impl Error {
    /// Whether the setting does not exist here.
    pub fn is_absent(&self) -> bool {
        matches!(self, Error::Proc(ProcError::Read(error)) if error.errno == Errno::ENOENT)
    }
}
