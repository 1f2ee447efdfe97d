//! One setting of a host changed, and given back.
//!
//! A [`Change`] is a [`Setting`], where it is, the value that was read and the value to
//! be. [`apply`] reads and writes one, in the namespace and on the device that it was made
//! for and on no other. Two things keep the way back: the [`journal`] on disk, after a kill
//! or a reboot too, and [`Held`] in this process, for namespaces that end with it. A
//! [`trial`] makes and takes back again and again. [`proposal`] reads what somebody asks
//! for, as named settings or as a command. Nothing here prints.

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
