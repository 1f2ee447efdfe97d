//! Load between two ends of a path: our own engine, and other people's tools
//! ([`driver`]). [`ask`] says what can be asked of either.
//!
//! The engine makes traffic between two namespaces, counted at the receiver.
//!
//! [`run`] takes a [`Load`] and the two [`Ends`] of a path. It gives what was [`Measured`],
//! or the [`EngineError`] that says why there is nothing to measure.
//!
//! Server and client are two [`Endpoint`]s, each with a thread per flow in its namespace. They
//! share nothing but the network. Their control is atomics, apart from the data path.
//! Every system call on the data path ends within 50 ms. A path that breaks therefore ends
//! in an error and never in waiting.
//!
//! Requests that do not wait for each other (several under way, or on a schedule)
//! are sent by `pipeline`, which says how they are timed.
//!
//! One file per workload (`tcp_stream`, `tcp_rr`, `tcp_crr`, `tcp_maerts`,
//! `udp_stream`, `udp_rr`), client and server together, says what is sent and what is counted.

#![forbid(unsafe_code)]

pub mod ask;
mod connection;
mod control;
mod counted;
pub mod driver;
mod endpoint;
mod error;
mod flow;
mod hello;
mod load;
mod measured;
mod pace;
mod pipeline;
mod reassembly;
mod requests;
mod run;
mod schedule;
mod server;
mod stall;
mod tcp_crr;
mod tcp_maerts;
mod tcp_rr;
mod tcp_stream;
mod told;
mod udp_path;
mod udp_rr;
mod udp_stream;
mod window;

pub use control::{FlowCount, Phase};
pub use counted::{Counted, ServerReport};
pub use endpoint::Endpoint;
pub use error::{End, EngineError, Stage};
pub use load::{
    Ends, Load, MAX_FLOWS, MAX_OUTSTANDING, MAX_SOCKET_BUFFER, MIN_SOCKET_BUFFER, MOST_REST, Watch,
};
pub use measured::{Datagrams, FlowMeasured, LatencyNs, Measured, bins, merge_bins};
pub(crate) use reassembly::NOTHING_ARRIVED;
pub use results::workload::{MAX_MESSAGE_BYTES, Workload};
pub use run::run;
pub use server::{Away, Between, Server, Within};
pub use stall::Stall;
pub use told::{LoadTold, MeasuredTold};
