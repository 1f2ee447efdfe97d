//! Measuring between two virtual machines of this one. The load engine's ends are in the
//! guests; [`serve`] is what their first process does.
//!
//! Each guest has a control channel beside the measured path (a virtio serial port), with
//! frames of JSON ([`message`]). The client's guest runs a load as a whole. It reaches the
//! server in the other guest by the two-machine protocol ([`crate::remote`]), over the path
//! that is measured, and tells this machine when the measured interval begins and ends.
//!
//! A guest is not trusted: what it says has a limit, a form and a time.

mod channel;
mod inside;
pub mod message;
mod outside;

pub use inside::{ServeError, serve};
pub(crate) use outside::join;
pub use outside::{GuestEnd, Guests};
