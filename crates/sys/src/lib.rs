//! All raw system calls of overlane; the only crate with `unsafe` code.
//!
//! Each module wraps one kernel interface in a type that safe code cannot misuse. Nothing here
//! depends on overlays, modes or measurements.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod affinity;
pub mod bpf_link;
pub mod bpf_run;
pub mod buffers;
pub mod capability;
mod cgroup;
pub mod datagram;
pub mod descriptors;
pub mod dscp;
pub mod emulation;
mod error;
pub mod ethtool;
pub mod frame_ring;
pub mod guard;
pub mod identity;
pub mod init;
pub mod join;
pub mod keeper;
pub mod landlock;
pub mod libpcap;
pub mod limit;
pub mod lsm;
pub mod memfd;
mod message;
pub mod monitor;
pub mod netns;
pub mod nsfs;
pub mod packet_socket;
pub mod priority;
pub mod process;
pub mod program;
pub mod runtime_dir;
pub mod seccomp;
pub mod sysfs;
pub mod tap;
pub mod tap_holder;
pub mod tcp;
pub mod tcx;
pub mod udp;
pub mod userns;
pub mod wait;
pub mod xtables;

pub use error::{Error, Result};
/// Error numbers, as in [`Error`].
pub use nix::errno;
