//! Network modes. A mode is one way to carry packets between two tenants. It is built from
//! throw-away test hosts and declares the hops that prove the path.
//!
//! [`modes`] lists all modes, [`groups`] lists them by kind. [`Mode::probe`] says whether this
//! machine can build a mode; if it cannot, it gives the reason and the remedy. [`Mode::build`]
//! builds it. Nothing here measures.

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
mod over_ipv6;
mod ovs;
mod unsupported;

pub use at_guest::AtGuest;
pub use capability::Capabilities;
pub use fault::Fault;
pub use guest_ends::GuestEnds;
pub use mode::{Alternative, Group, Label, Mode, find, groups, modes};
pub use network::{Address, Network, PORT, Params};
pub use unsupported::{Supported, Unsupported};

/// Error of a step that builds a mode.
pub type Error = testbed::Error;
/// Result with [`Error`].
pub type Result<T> = testbed::Result<T>;
