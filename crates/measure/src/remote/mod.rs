//! Measuring between two machines: a server for trusted clients, and the client's proxy of it.
//!
//! A client keeps one control connection (a *session*) of the [`channel`] crate: each end proves
//! that it has the token, and every JSON message ([`message`]) is encrypted and authenticated,
//! including its order. Each load has a token of its own, which is valid for that load and from the
//! client's address only.
//!
//! The load engine sends the traffic ([`load::Endpoint`]). The client opens every flow to the
//! server's data port. The server answers only the address of the session's client, and over UDP
//! only after the load's token came from there. It never sends more than it has received, so it
//! cannot be abused to flood a third party. [`Limits`] bound a client's requests.

mod client;
mod conversation;
mod limits;
mod peer;
mod place;
mod probing;
mod served;
mod server;
mod session;
mod shared;
mod turns;

pub mod message;

pub use channel::{Event, Origin, RemoteError, Token, TokenError};
pub use client::Remote;
pub use conversation::{reach, tunnels_of};
pub use limits::Limits;
pub use peer::PeerSample;
pub(crate) use peer::{Work, service_demand};
pub(crate) use place::device_to;
pub use probing::ProbePeer;
pub use server::{Server, ServerError};

/// Default control port; the data port is the next one. Not assigned by IANA.
pub const PORT: u16 = 5210;
