//! The network modes: every way to get a tenant's packets to another tenant. They are
//! built from throw-away test hosts, and declare the hops that prove the path.
//!
//! [`modes`] lists them, [`groups`] by kind. [`Mode::probe`] says whether this machine can build one, and if
//! not, why and what to do. [`Mode::build`] builds it. Nothing here measures.

#![forbid(unsafe_code)]

pub mod at_guest;
mod bgp;
pub mod capability;
mod cluster;
mod docker;
pub mod fault;
pub mod guest;
mod guest_ends;
mod guest_files;
mod guest_in_force;
mod guest_options;
pub mod mode;
mod network;
mod neutron;
mod ovs;
mod unsupported;

pub use at_guest::AtGuest;
pub use capability::Capabilities;
pub use fault::Fault;
pub use guest_ends::GuestEnds;
pub use mode::{Alternative, Group, Mode, find, groups, modes};
pub use network::{Address, Network, PORT, Params};
pub use unsupported::{Supported, Unsupported};

/// What can fail while a mode is built.
pub type Error = testbed::Error;
/// Result with [`Error`].
pub type Result<T> = testbed::Result<T>;
