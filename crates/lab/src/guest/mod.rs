//! Tenants that are virtual machines: QEMU guests whose first process is this program.
//!
//! A mode starts a `Pair` of guests, connects their NICs, and waits until both are up. The
//! guests' file system contains this program (`initramfs`) and exists in memory only. QEMU runs
//! in a process tree of the testbed: when overlane ends, by any cause, the kernel ends QEMU.
//!
//! [`inside`] runs in the guest until it reports that it is ready. After that, the measuring code
//! uses the control port.

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

/// First word of the line that a guest sends when it is up; its report follows.
const READY: &str = "ready";
/// First word of the line that a guest sends if it failed; the reason follows.
const FAILED: &str = "failed";
/// Name of the control port in the guest.
const CONTROL: &str = "overlane";

/// Note printed with figures of vhost-user guests in software emulation.
pub(crate) const INTERRUPTS: &str =
    "in software emulation the guests' NICs have no MSI-X: each interrupt costs one more VM exit";

/// Note printed with figures of guests in software emulation.
pub(crate) const TCG: &str = "TCG: compare vm modes only";

/// Approximate time until two guests are up, seconds.
pub(crate) const BUILD_SECONDS: u32 = 10;

fn not_started(part: &str, reason: impl Into<String>) -> testbed::Error {
    testbed::Error::NotStarted { part: part.to_owned(), reason: reason.into() }
}

/// Port of the control connection between the two guests.
pub const CONTROL_PORT: u16 = 5210;
