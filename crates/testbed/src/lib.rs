//! Throw-away test hosts on one machine: namespaces, tenants behind them, the
//! wire between their NICs, and programs running inside.
//!
//! Invariants:
//! - Nothing here has a name outside the process that made it.
//! - Descriptors hold namespaces. An init process, which ends with its maker, holds
//!   programs. The kernel removes all of it when the process ends, by any cause.
//! - The machine's own network is never touched.

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

/// Anything that can fail while a testbed is built or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A namespace or other system call.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// A request to the kernel's network stack.
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// A varied setting could not be read, written or restored.
    #[error(transparent)]
    Setting(#[from] settings::apply::Error),
    /// What is asked for as a setting.
    #[error(transparent)]
    Proposal(#[from] settings::proposal::ProposalError),
    /// No host has the device of a varied setting.
    #[error("{setting}: no host has a device {device}")]
    NoDevice {
        /// Which sysctl or attribute.
        setting: String,
        /// Name of the device.
        device: String,
    },
    /// A part of ours that did not start, or that a program of others did not make.
    #[error("{part}: {reason}")]
    NotStarted {
        /// The part, and where.
        part: String,
        /// Why it did not start.
        reason: String,
    },
    /// No host of that name.
    #[error("no host {host}; there are: {hosts}")]
    NoHost {
        /// Name that was asked for.
        host: String,
        /// Names of those there are.
        hosts: String,
    },
    /// A change that would reach beyond a test host.
    #[error("{0}: is the machine's, not a test host's")]
    OfMachine(String),
    /// A setting under `/proc/sys`.
    #[error("set {path} to {value:?}: {error}")]
    Sysctl {
        /// Path below `/proc/sys`.
        path: String,
        /// The value that was to be written.
        value: String,
        /// Error of writing it.
        error: std::io::Error,
    },
    /// A program that ended with a failure.
    #[error("{program}: {status}{}", if .output.is_empty() { String::new() } else { format!(": {}", .output.trim()) })]
    Program {
        /// The program and its arguments.
        program: String,
        /// How it ended: exit code or signal, in words.
        status: String,
        /// What it printed; may be empty.
        output: String,
    },
    /// A short program that somebody killed: what it was asked is not known.
    #[error("{program}: killed by signal {signal}")]
    Killed {
        /// The program and its arguments.
        program: String,
        /// Number of the signal.
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
    /// The program is to end: see [`heed`].
    #[error("interrupted while {what} was waited for")]
    Interrupted {
        /// What was waited for.
        what: String,
    },
    /// An offload profile that the devices would not take.
    #[error(
        "{device}: feature {feature} should be {wanted} under offload profile {profile}, the kernel reports {got}"
    )]
    Offload {
        /// Name of the device.
        device: String,
        /// The feature, as `ethtool -k` names it.
        feature: String,
        /// What the profile wants: `on` or `off`.
        wanted: &'static str,
        /// Name of the offload profile.
        profile: &'static str,
        /// What the kernel reports: `on` or `off`.
        got: &'static str,
    },
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What ends every wait of this process.
static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on a wait for what is not ready ends once `stop` is set. The first call counts;
/// a program has one such flag.
pub fn heed(stop: Arc<AtomicBool>) {
    let _ = STOP.set(stop);
}

/// Calls `ready` until it gives a value, at growing intervals, for at most `limit`.
///
/// # Errors
/// [`Error::NotReady`] with what `ready` saw last, [`Error::Interrupted`], or the error
/// that it gave.
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
            // Docker's programs take seconds: nobody who ends the program waits for them.
            Err(_) if STOP.get().is_some_and(|stop| stop.load(Ordering::Relaxed)) => {
                return Err(Error::Interrupted { what: what.to_owned() });
            }
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(std::time::Duration::from_millis(20));
    }
}
