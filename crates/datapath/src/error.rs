//! Errors of forwarding.

use crate::bridge_engine::Unavailable;

/// Forwarding could not start, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// The ports of a bridge have different numbers of queues.
    #[error(
        "{left} has {left_queues} queues, {right} has {right_queues}, expected the same number"
    )]
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
    /// The selected engine cannot run.
    #[error("engine {0}")]
    Unavailable(#[from] Unavailable),
    /// The endpoint's configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The ports do not match the endpoint's configuration.
    #[error("{device}: expected {wanted}, got {got}")]
    Ports {
        /// Name of the TAP; `TAPs` if their number is wrong.
        device: String,
        /// Expected by the configuration: a number of TAPs, or a name and its queues.
        wanted: String,
        /// The same for the ports that were passed.
        got: String,
    },
    /// The configuration demands to pass on GSO packets unsegmented, which is not possible.
    #[error("hand-over tunnel-gso: {0}")]
    HandOver(String),
    /// A guest's socket is not usable.
    #[error(transparent)]
    Socket(SocketError),
    /// A guest's port does not support the operation.
    #[error("{port}: a guest's port has no {what}")]
    Guest {
        /// Path of the guest's socket.
        port: String,
        /// The missing feature.
        what: &'static str,
    },
    /// A device was removed while in use.
    #[error("{0}: the device has been removed")]
    Vanished(String),
    /// A thread panicked, which is a defect.
    #[error("a forwarding thread has panicked")]
    Panicked,
}

pub type Result<T> = std::result::Result<T, Error>;

/// A configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not TOML, or has an unknown key or value.
    #[error("{0}")]
    Text(String),
    /// A value is invalid.
    #[error("{key}: {problem}")]
    Value {
        /// The key, with the VNI of its network.
        key: String,
        problem: String,
    },
}

/// A socket for a guest could not be created.
#[derive(Debug, thiserror::Error)]
#[error("vhost-user socket {path}: {reason}")]
pub struct SocketError {
    pub path: String,
    /// The problem and the expected value.
    pub reason: String,
}

impl From<SocketError> for Error {
    fn from(error: SocketError) -> Error {
        Error::Socket(error)
    }
}
