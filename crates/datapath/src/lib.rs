//! Forwarding in user space.

#![forbid(unsafe_code)]

mod adaptive_poll;
mod bpf;
mod bridge_engine;
pub mod copy_loop;
pub mod counters;
mod error;
pub mod tapbridge;
mod threads;
pub mod vhost_user;
mod vnet_layout;
pub mod vtep;

pub use error::{Error, Result};

/// Maximum time of busy-polling before a thread sleeps, in microseconds.
pub const BUSY_POLL_MAX: u32 = 10_000;
