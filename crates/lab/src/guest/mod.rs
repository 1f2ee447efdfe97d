//! Tenants that are virtual machines: QEMU guests, whose first process is this program.
//!
//! A mode starts a `Pair` of guests, wires what they are attached to, and waits until both
//! are up. The guests' file system is made of this program (`initramfs`) and is in memory
//! only. QEMU runs in a process tree of the testbed: when overlane ends, by any cause, the
//! kernel ends QEMU.
//!
//! [`inside`] is what happens in the guest until it says that it is ready. What is said on
//! its control port afterwards is for who measures.

mod console;
pub mod exec;
mod initramfs;
pub mod inside;
mod kernel;
mod port;
mod qemu;

pub use kernel::{Kernel, KernelError, use_kernel};
pub(crate) use qemu::{Guest, Nic, Pair, supported};

pub(crate) use crate::guest_in_force::TAP;
pub use crate::guest_in_force::{InForce, TapInForce};
pub(crate) use crate::guest_options::{Behind, takes};
pub use crate::guest_options::{GuestOptions, GuestSetting, GuestSettingError};

/// The first word of a line by which a guest says that it is up; what it is like follows.
const READY: &str = "ready";
/// The same of one that is not; the reason follows.
const FAILED: &str = "failed";
/// Name of the control port in the guest.
const CONTROL: &str = "overlane";

/// What a reader has to know of guests by vhost-user in software emulation.
pub(crate) const INTERRUPTS: &str =
    "in software emulation the guests' NICs have no MSI-X: each interrupt costs them one exit more";

/// What every mode of guests says of itself in software emulation.
pub(crate) const TCG: &str = "TCG: ratios between modes only";

/// About how long two guests take to be up, s.
pub(crate) const BUILD_SECONDS: u32 = 10;

fn not_started(part: &str, reason: impl Into<String>) -> testbed::Error {
    testbed::Error::NotStarted { part: part.to_owned(), reason: reason.into() }
}

/// Port of the control connection between the two guests.
pub const CONTROL_PORT: u16 = 5210;
