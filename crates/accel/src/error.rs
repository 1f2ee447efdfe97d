//! The errors of this crate.

/// What can keep the fast path from starting.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call; it names the operation, the object and the errno.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// A request to the kernel's network stack (netlink, `/proc/net`).
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// Rules of nftables could not be read.
    #[error(transparent)]
    Ruleset(#[from] ruleset::Error),
    /// The thread that keeps the maps in step did not do what it was asked.
    #[error("the reconciler's thread: expected {expected} within {seconds} s")]
    NotFollowed {
        /// What it was to do.
        expected: &'static str,
        /// For how long it was waited.
        seconds: u64,
    },
    /// That thread ended before its first plan was in force; its panic says why.
    #[error("the reconciler's thread has ended by a panic")]
    ThreadEnded,
    /// Too many sandboxes for a process that loads no more programs.
    #[error("programs for {prepared} namespaces were prepared, and all are in use")]
    NoSpares {
        /// How many.
        prepared: u16,
    },
    /// The process that looks for sandboxes.
    #[error("look for sandboxes: {problem}")]
    Finder {
        /// What it says.
        problem: String,
    },
    /// A request to the kernel's BPF subsystem, by libbpf.
    #[error("{operation} {object}: {problem}")]
    Bpf {
        /// What was attempted.
        operation: &'static str,
        /// On what.
        object: String,
        /// What came of it.
        problem: String,
    },
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
