//! Throw-away test hosts on one machine: namespaces, tenants behind them, the
//! wire between their NICs, and programs running inside.
//!
//! Nothing here has a name outside the process that made it. Namespaces are
//! held by descriptors and programs by an init process that ends with its
//! maker, so the kernel removes all of it when the process ends, however it
//! ends. The machine's own network is never touched.

#![forbid(unsafe_code)]

mod host;
mod offload;
mod privilege;
mod process;
mod setting;
mod standing;
mod wire;

pub use host::{Host, Tenant, mac};
pub use offload::{OFFLOAD_FEATURES, Offload};
pub use privilege::{Privileges, acquire};
pub use process::{Process, Processes};
pub use setting::{Applied, Setting};
pub use standing::{Standing, stands};
pub use wire::{NIC, Wire};

/// Anything that can fail while a testbed is built or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A namespace or other system call.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// A request to the kernel's network stack.
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// A setting under `/proc/sys`.
    #[error("set {path} to {value:?}: {error}")]
    Sysctl {
        /// The file.
        path: String,
        /// The value that was to be written.
        value: String,
        /// What came of it.
        error: std::io::Error,
    },
    /// A program that ended with a failure.
    #[error("{program}: {status}{}", if .output.is_empty() { String::new() } else { format!(": {}", .output.trim()) })]
    Program {
        /// The program and its arguments.
        program: String,
        /// How it ended.
        status: String,
        /// What it printed.
        output: String,
    },
    /// A short program that somebody killed: what it was asked is not known.
    #[error("{program}: killed by signal {signal}")]
    Killed {
        /// The program and its arguments.
        program: String,
        /// By what.
        signal: i32,
    },
    /// Something did not become ready in time.
    #[error("{what} was not ready within {seconds} s{}", if .seen.is_empty() { String::new() } else { format!(": {}", .seen.trim()) })]
    NotReady {
        /// What was waited for.
        what: String,
        /// For how long, s.
        seconds: f64,
        /// What was seen last.
        seen: String,
    },
    /// An offload profile that the devices would not take.
    #[error(
        "{device}: feature {feature} should be {wanted} under offload profile {profile}, the kernel reports {got}"
    )]
    Offload {
        /// Device.
        device: String,
        /// ethtool feature.
        feature: String,
        /// `on` or `off`.
        wanted: &'static str,
        /// Profile.
        profile: &'static str,
        /// What it is.
        got: &'static str,
    },
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Calls `ready` until it gives a value, at growing intervals, for at most `limit`.
///
/// # Errors
/// [`Error::NotReady`] with what `ready` saw last, or the error it gave.
pub fn poll<T>(
    what: &str,
    limit: std::time::Duration,
    mut ready: impl FnMut() -> Result<std::result::Result<T, String>>,
) -> Result<T> {
    let start = std::time::Instant::now();
    let mut pause = std::time::Duration::from_micros(200);
    loop {
        match ready()? {
            Ok(value) => return Ok(value),
            Err(seen) if start.elapsed() > limit => {
                return Err(Error::NotReady {
                    what: what.to_owned(),
                    seconds: limit.as_secs_f64(),
                    seen,
                });
            }
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(std::time::Duration::from_millis(20));
    }
}
