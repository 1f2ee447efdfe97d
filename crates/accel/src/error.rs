/// Errors of the fast path.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed. Names the operation, the object and the errno.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// A request to the kernel's network stack failed (netlink, `/proc/net`).
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// The nftables rules could not be read.
    #[error(transparent)]
    Ruleset(#[from] ruleset::Error),
    /// The reconciler thread did not apply a request in time.
    #[error("the reconciler thread did not finish within {seconds} s: {expected}")]
    NotFollowed {
        /// The request.
        expected: &'static str,
        /// Time limit.
        seconds: u64,
    },
    /// The reconciler thread panicked before its first plan was in force. The panic message has the
    /// cause.
    #[error("the reconciler thread panicked")]
    ThreadEnded,
    /// More sandboxes than preloaded sets of programs, and the process is confined and can load no
    /// more.
    #[error("all {prepared} preloaded sets of programs for sandboxes are in use")]
    NoSpares {
        /// Number of preloaded sets.
        prepared: u16,
    },
    /// The process that finds sandboxes failed.
    #[error("find sandboxes: {problem}")]
    Finder {
        /// Cause.
        problem: String,
    },
    /// A BPF request failed in libbpf or the kernel.
    #[error("{operation} {object}: {problem}")]
    Bpf {
        operation: &'static str,
        /// Object of the operation.
        object: String,
        /// Cause.
        problem: String,
    },
}

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
