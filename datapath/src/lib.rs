//! Forwarding in user space.

#![forbid(unsafe_code)]

mod bpf;
pub mod copy_loop;
pub mod counters;
mod error;
pub mod tapbridge;
mod threads;
pub mod vtep;

pub use error::{Error, Result};
