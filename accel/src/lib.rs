//! The fast path: an eBPF short cut beside a kernel bridge or routes with VXLAN devices.
//!
//! The kernel's own path stays as it is and is the truth. A packet is forwarded
//! here only where the outcome is the same; everything else goes on untouched.
//! [`plan`] decides from a snapshot of the kernel's state what may be taken and
//! why the rest may not, [`maps`] writes it into the BPF maps, a thread keeps both in
//! step with the kernel ([`daemon`]). Programs are attached by links that the kernel
//! removes with the process, however that ends.

#![forbid(unsafe_code)]

pub mod abi;
mod bpf;
mod counters;
pub mod daemon;
mod facts;
pub mod filter;
mod follow;
pub mod maps;
mod mirror;
pub mod plan;
pub mod reason;
pub mod routed;
mod sandbox;
mod space;
pub mod status;
mod trampoline;
mod way;

pub use daemon::{Accel, ROOM, Wanted, probe};
pub use status::Status;
pub use trampoline::{left_behind, remove_left_behind};

/// What can keep the fast path from starting.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// A request to the kernel's network stack.
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// A request to the kernel's BPF subsystem.
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

/// What a thread that has panicked held is as whole as it was.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
