//! The network modes: every way to get a tenant's packets to another tenant,
//! built from throw-away test hosts, with the hops that prove the path.
//!
//! [`modes`] lists them. [`Mode::probe`] says whether this machine can build
//! one, and if not why and what to do; [`Mode::build`] builds it.

#![forbid(unsafe_code)]

pub mod capability;
mod docker;
pub mod mode;
mod network;
mod ovs;

pub use capability::{Capabilities, Unsupported};
pub use mode::{Mode, find, modes};
pub use network::{Address, Network, PORT, Params};

/// What can fail while a mode is built.
pub type Error = testbed::Error;
/// Result with [`Error`].
pub type Result<T> = testbed::Result<T>;
