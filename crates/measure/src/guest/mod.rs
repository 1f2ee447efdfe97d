//! Measuring between two virtual machines on this one. The load engine's ends run in the guests;
//! [`serve`] is the main loop of their first process.
//!
//! Each guest has a control channel beside the measured path (a virtio serial port), with JSON
//! frames ([`message`]). The client's guest runs the whole load. It reaches the server in the other
//! guest by the two-machine protocol ([`crate::remote`]) over the measured path, and reports the
//! start and the end of the measured interval to this machine.
//!
//! A guest is not trusted: its messages have a size limit, a format and a time limit.

mod channel;
mod inside;
pub mod message;
mod outside;

pub use inside::{ServeError, serve};
pub(crate) use outside::join;
pub use outside::{GuestEnd, Guests};
