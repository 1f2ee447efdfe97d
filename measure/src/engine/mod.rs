//! The load engine: traffic between two namespaces, counted at the receiver.
//!
//! [`run`] takes a [`Load`] and the two [`Ends`] of a path, and gives what was
//! [`Measured`], or the [`EngineError`] that says why there is nothing to
//! measure. Server and client are two [`Half`]s, each with a thread per flow in
//! its namespace, and share nothing but the network. Their control is atomics,
//! apart from the data path, and every system call on the data path ends within
//! 50 ms, so a path that breaks ends in an error and never in waiting.
//!
//! Requests that do not wait for each other (several under way, or on a schedule)
//! are sent by `pipeline`, which says how they are timed.
//!
//! One file per workload (`tcp_stream`, `tcp_rr`, `tcp_crr`, `udp_stream`,
//! `udp_rr`), client and server together, says what is sent and what is counted.

mod connection;
mod control;
mod error;
mod flow;
mod half;
mod hello;
mod load;
mod measured;
mod pace;
mod pipeline;
mod run;
mod schedule;
mod server;
mod stall;
mod tcp_crr;
mod tcp_rr;
mod tcp_stream;
mod udp_path;
mod udp_rr;
mod udp_stream;
mod window;

pub use control::{FlowCount, Phase};
pub use error::{End, EngineError, Stage};
pub use half::Half;
pub use load::{
    Ends, Load, MAX_FLOWS, MAX_MESSAGE_BYTES, MAX_OUTSTANDING, MAX_SOCKET_BUFFER,
    MIN_SOCKET_BUFFER, Watch, Workload,
};
pub use measured::{Datagrams, FlowMeasured, LatencyNs, Measured, bins, merge_bins};
pub use run::run;
pub use server::{Away, Between, Counted, Server, ServerReport};
pub use stall::Stall;
