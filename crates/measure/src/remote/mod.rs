//! Measuring between two machines: a server that serves loads to clients it
//! trusts, and the client's proxy of it.
//!
//! A client keeps one control connection (a *session*) of the [`channel`] crate: each end
//! proves that it knows the token, and every message ([`message`]) in JSON proves its order and
//! origin. Nothing is encrypted: there are no secrets in it but each load's token, which is good
//! for that load and from the client's address only.
//!
//! The traffic itself is the engine's ([`load::Endpoint`]): the client opens
//! every flow, to the server's data port; the server answers only the address of
//! the session's client, and over UDP only who has sent the load's token from
//! there. It never sends more than it has received, so it cannot be made to flood
//! anyone. [`Limits`] bound what a client can ask for.

mod client;
mod conversation;
mod limits;
mod peer;
mod place;
mod served;
mod server;
mod session;
mod shared;

pub mod message;

pub use channel::{Event, Origin, RemoteError, Token, TokenError};
pub use client::Remote;
pub use conversation::{reach, tunnels_of};
pub use limits::Limits;
pub use peer::PeerSample;
pub(crate) use peer::{Work, service_demand};
pub(crate) use place::device_to;
pub use server::{Server, ServerError};

/// Control port where none is given; the data port is the next one. Not assigned
/// to anything by IANA.
pub const PORT: u16 = 5210;
