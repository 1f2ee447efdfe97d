//! What can go wrong with one setting.

use netstate::proc::ProcError;
use sys::errno::Errno;

/// Why a setting could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed; it names the operation and the object.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// A process that gives a setting of the machine back.
    #[error(transparent)]
    Guard(#[from] sys::guard::GuardError),
    /// A question to the kernel about the present value failed.
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// A file of `/proc`.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// What it is a setting of is not there any more.
    #[error("{object}: {reason}")]
    Gone {
        /// The setting and its namespace, in words.
        object: String,
        /// Namespace or device that is gone.
        reason: String,
    },
    /// What it is a setting of may not be the one that was changed.
    #[error("{object}: {reason}")]
    Unknown {
        /// The setting and its namespace, in words.
        object: String,
        /// What cannot be told.
        reason: String,
    },
    /// A command that failed, or could not be run.
    #[error("{command}: {status}{}", .said.as_ref().map(|said| format!(": {said}")).unwrap_or_default())]
    Command {
        /// The command as it was given to the shell.
        command: String,
        /// How it ended: exit code or signal, in words.
        status: String,
        /// The end of what it wrote to standard error.
        said: Option<String>,
    },
    /// A value that could not be put back.
    #[error("{object}: not changed, as {from} could not be put back: {reason}")]
    OneWay {
        /// The setting and its namespace, in words.
        object: String,
        /// The value there is.
        from: String,
        /// What the kernel would say to it.
        reason: String,
    },
    /// The setting is no longer what the change started from.
    #[error("{object}: is {got}, expected {expected}: somebody else has changed it meanwhile")]
    Changed {
        /// The setting and its namespace, in words.
        object: String,
        /// What it should have been.
        expected: String,
        /// Value that it has now.
        got: String,
    },
    /// The kernel took the value without an error, and did not keep it.
    #[error("{object}: set to {wanted}, reads {got}; taken back")]
    NotTaken {
        /// The setting and its namespace, in words.
        object: String,
        /// Value that was written.
        wanted: String,
        /// Value that was read back.
        got: String,
    },
    /// More than the device can have (`ethtool -g`, `-l`).
    #[error("{object}: {wanted} wanted, the device can have {most}")]
    TooMany {
        /// The setting and its namespace, in words.
        object: String,
        /// What was to be written.
        wanted: u32,
        /// The most that its driver names.
        most: u32,
    },
    /// Another form than expected.
    #[error("{object}: expected {expected}, got {got:?}")]
    Form {
        /// The setting and its namespace, in words.
        object: String,
        /// Form that was expected.
        expected: &'static str,
        /// Text that was read.
        got: String,
    },
}

impl Error {
    /// Whether the kernel has no such setting here.
    pub fn is_absent(&self) -> bool {
        matches!(self, Error::Proc(ProcError::Read(error)) if error.errno == Errno::ENOENT)
    }
}
