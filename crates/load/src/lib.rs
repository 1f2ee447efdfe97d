//! Load between the two ends of a path, by the built-in engine or by external tools ([`driver`]).
//! [`ask`] describes a measurement for either.
//!
//! The engine generates traffic between two namespaces and counts it at the receiver.
//!
//! [`run`] takes a [`Load`] and the two [`Ends`] of a path. It returns what was [`Measured`], or
//! the [`EngineError`] that says why nothing could be measured.
//!
//! Server and client are two [`Endpoint`]s with one thread per flow in their namespace. They
//! share nothing but the network; their control uses atomics, apart from the data path. Every
//! system call on the data path ends within 50 ms, so a broken path leads to an error, never to
//! an endless wait.
//!
//! `pipeline` sends requests that do not wait for each other (several in flight, or on a
//! schedule) and documents how they are timed.
//!
//! Each workload (`tcp_stream`, `tcp_rr`, `tcp_crr`, `tcp_maerts`, `udp_stream`, `udp_rr`) has
//! one file with client and server, which documents what is sent and counted.

#![forbid(unsafe_code)]

mod arrivals;
pub mod ask;
mod beside;
mod connection;
mod control;
mod counted;
pub mod driver;
mod endpoint;
mod error;
mod flow;
mod hello;
mod load;
mod marks;
mod measured;
mod pace;
mod pipeline;
mod reassembly;
mod record;
mod requests;
mod run;
mod schedule;
mod server;
mod stall;
mod tcp_crr;
mod tcp_maerts;
mod tcp_rr;
mod tcp_stream;
mod udp_path;
mod udp_rr;
mod udp_stream;
mod window;

pub use arrivals::Arrivals;
pub use beside::BesideMeasured;
pub use control::{FlowCount, Phase};
pub use counted::{Counted, ServerReport};
pub use endpoint::Endpoint;
pub use error::{End, EngineError, Stage};
pub use load::{
    Ends, Load, MAX_FLOWS, MAX_OUTSTANDING, MAX_SOCKET_BUFFER, MIN_SOCKET_BUFFER, MOST_REST,
    NUMBERED_BYTES, Watch,
};
pub use measured::{Datagrams, FlowMeasured, LatencyNs, Measured, bins, merge_bins};
pub(crate) use reassembly::NOTHING_ARRIVED;
pub use record::{LoadRecord, MeasuredRecord};
pub use results::workload::{MAX_MESSAGE_BYTES, Workload};
pub use run::run;
pub use server::{Away, Between, Server, Within};
pub use stall::Stall;
