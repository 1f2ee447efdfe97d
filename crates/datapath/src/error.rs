//! Errors of forwarding.

use crate::bridge_engine::Unavailable;

/// Why forwarding could not start, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed; it names the operation and the object.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// A question to the kernel's network stack.
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// Both ports of a bridge need as many queues.
    #[error("{left} has {left_queues} queues, {right} has {right_queues}: wanted as many")]
    Queues {
        /// Name of the first device.
        left: String,
        /// Queues of the first device.
        left_queues: usize,
        /// Name of the second device.
        right: String,
        /// Queues of the second device.
        right_queues: usize,
    },
    /// The engine asked for cannot run.
    #[error("engine {0}")]
    Unavailable(#[from] Unavailable),
    /// The endpoint's configuration is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The ports are not those of the endpoint's configuration.
    #[error("{device}: wanted {wanted}, got {got}")]
    Ports {
        /// Name of the TAP; `TAPs` where their number is wrong.
        device: String,
        /// What the configuration wants: a number of TAPs, or a name and its queues.
        wanted: String,
        /// The same of the ports that were passed.
        got: String,
    },
    /// GSO packets cannot be handed over whole, as the configuration insists.
    #[error("hand-over tunnel-gso: {0}")]
    HandOver(String),
    /// A guest's socket that cannot be.
    #[error(transparent)]
    Socket(SocketError),
    /// What is asked of a port that a guest's port cannot do.
    #[error("{port}: a guest's port has no {what}")]
    Guest {
        /// Path of the guest's socket.
        port: String,
        /// What was asked for.
        what: &'static str,
    },
    /// A device was removed while it was forwarded to or from.
    #[error("{0}: the device has been removed")]
    Vanished(String),
    /// A thread ended by a panic, which is a defect.
    #[error("a thread that forwards has panicked")]
    Panicked,
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not TOML, or has a key or value that is not known.
    #[error("{0}")]
    Text(String),
    /// A value that cannot be.
    #[error("{key}: {problem}")]
    Value {
        /// The key, with its network's VNI.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// Why there is no socket for a guest.
#[derive(Debug, thiserror::Error)]
#[error("vhost-user socket {path}: {reason}")]
pub struct SocketError {
    /// Where it was to be.
    pub path: String,
    /// What is wrong, and what was expected.
    pub reason: String,
}

impl From<SocketError> for Error {
    fn from(error: SocketError) -> Error {
        Error::Socket(error)
    }
}
