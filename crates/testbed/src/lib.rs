//! Throw-away test hosts on one machine: namespaces, tenants behind them, the wire between their
//! NICs, and programs inside.
//!
//! Invariants:
//! - Nothing has a name outside the process that created it.
//! - Descriptors keep namespaces alive. An init process, which ends with its creator, keeps
//!   programs alive. The kernel removes all of it when the process ends, by any cause.
//! - The machine's own network is never changed.

#![forbid(unsafe_code)]

mod host;
mod privilege;
mod process;
mod setting;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

pub use host::{Host, Tenant, mac};
pub use privilege::{Privileges, acquire};
pub use process::{Process, Processes};
pub use setting::Setting;
pub use settings::{Held, Offload};
pub use wire::{NIC, SECOND_NIC, Wire};

/// Errors while a testbed is built or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A namespace operation or another system call failed.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// A request to the kernel's network stack failed.
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// A varied setting could not be read, written or restored.
    #[error(transparent)]
    Setting(#[from] settings::apply::Error),
    /// A setting is malformed.
    #[error(transparent)]
    Proposal(#[from] settings::proposal::ProposalError),
    /// No host has the device of a varied setting.
    #[error("{setting}: no host has a device {device}")]
    NoDevice {
        /// The sysctl or attribute.
        setting: String,
        device: String,
    },
    /// A component did not start, or an external program did not create an expected object.
    #[error("{part}: {reason}")]
    NotStarted {
        /// The component and its host.
        part: String,
        reason: String,
    },
    /// There is no host of that name.
    #[error("no host {host}; hosts: {hosts}")]
    NoHost {
        /// Requested name.
        host: String,
        /// Names of the existing hosts.
        hosts: String,
    },
    /// A change would reach beyond a test host.
    #[error("{0}: belongs to the machine, not to a test host")]
    OfMachine(String),
    /// A sysctl could not be written.
    #[error("set {path} to {value:?}: {error}")]
    Sysctl {
        /// Path below `/proc/sys`.
        path: String,
        value: String,
        error: std::io::Error,
    },
    #[error("{program}: {status}{}", if .output.is_empty() { String::new() } else { format!(": {}", .output.trim()) })]
    Program {
        program: String,
        /// Exit code or signal, as text.
        status: String,
        /// Its output; may be empty.
        output: String,
    },
    /// A short program was killed, so its answer is unknown.
    #[error("{program}: killed by signal {signal}")]
    Killed { program: String, signal: i32 },
    /// Something did not become ready in time.
    #[error("{what} was not ready within {seconds} s{}", if .seen.is_empty() { String::new() } else { format!(": {}", .seen.trim()) })]
    NotReady {
        /// The object that was waited for.
        what: String,
        /// Time limit, seconds.
        seconds: f64,
        /// Last observation.
        seen: String,
    },
    /// The process was asked to stop; see [`set_cancel_flag`].
    #[error("interrupted while waiting for {what}")]
    Interrupted {
        /// The object that was waited for.
        what: String,
    },
    /// The device did not accept an offload profile.
    #[error(
        "{device}: feature {feature} should be {wanted} under offload profile {profile}, but the kernel reports {got}"
    )]
    Offload {
        device: String,
        /// Name of the feature in `ethtool -k`.
        feature: String,
        /// Value in the profile: `on` or `off`.
        wanted: &'static str,
        /// Name of the offload profile.
        profile: &'static str,
        /// Value that the kernel reports: `on` or `off`.
        got: &'static str,
    },
}

pub type Result<T> = std::result::Result<T, Error>;

/// Flag that ends every wait of this process.
static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes all waits of this process end once `stop` is set. Only the first call has an effect.
pub fn set_cancel_flag(stop: Arc<AtomicBool>) {
    let _ = STOP.set(stop);
}

/// Calls `ready` at growing intervals until it returns a value, for at most `limit`.
///
/// # Errors
/// [`Error::NotReady`] with the last observation of `ready`, [`Error::Interrupted`], or the
/// error that `ready` returned.
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
            // Stop at once: waits for Docker's programs can take seconds.
            Err(_) if STOP.get().is_some_and(|stop| stop.load(Ordering::Relaxed)) => {
                return Err(Error::Interrupted { what: what.to_owned() });
            }
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(std::time::Duration::from_millis(20));
    }
}
