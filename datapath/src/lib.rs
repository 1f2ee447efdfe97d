//! Forwarding in user space.

#![forbid(unsafe_code)]

pub mod copy_loop;
pub mod tapbridge;
pub mod vtep;
