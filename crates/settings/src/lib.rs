//! Changes single settings of a host, and undoes the changes.
//!
//! A [`Change`] holds a [`Setting`], its place, the value that was read and the new value.
//! [`apply`] reads and writes it, only in the namespace and on the device that it was made for. Two
//! modules keep the earlier value: the [`journal`] on disk, which survives a kill and a reboot, and
//! [`Held`] in this process, for namespaces that end with it. A [`trial`] makes and undoes changes
//! repeatedly. [`proposal`] parses a request, given as named settings or as a command. Nothing here
//! prints.

#![forbid(unsafe_code)]

pub mod apply;
pub mod change;
pub mod command;
mod command_form;
mod error;
mod held;
mod identity;
pub mod journal;
mod named_form;
mod offload;
pub mod proposal;
mod resolve;
mod shell;
pub mod trial;

pub use change::{Attribute, Change, Device, Namespace, Queues, Setting, Target};
pub use held::Held;
pub use named_form::NamedSetting;
pub use offload::{OFFLOAD_FEATURES, Offload};
pub use proposal::Request;
