//! Measuring between two machines: a server that serves loads to clients it
//! trusts, and the client's proxy of it.
//!
//! A client keeps one control connection (a *session*). It begins with a
//! handshake of fixed size ([`handshake`]): each end proves that it knows the
//! token by an HMAC over both ends' fresh nonces, so that neither the token nor
//! anything that can be played back is on the wire. Everything after it is
//! frames ([`frame`]): a length, a tag and a message ([`message`]) in JSON. The
//! tag is an HMAC under a key of this session with a running number, so that
//! nobody on the path can insert, repeat or change a message. Nothing is
//! encrypted: there are no secrets in it but each load's token, which is good for
//! that load and from the client's address only.
//!
//! The traffic itself is the engine's ([`load::Endpoint`]): the client opens
//! every flow, to the server's data port; the server answers only the address of
//! the session's client, and over UDP only who has sent the load's token from
//! there. It never sends more than it has received, so it cannot be made to flood
//! anyone. [`Limits`] bound what a client can ask for. Who has not proved to know the
//! token takes no thread, and always makes room for who comes later (`gate`); what is
//! told of such connections has a bound, too (`refusals`).

mod channel;
mod client;
mod connect;
mod event;
mod gate;
mod limits;
mod peer;
mod place;
mod refusals;
mod served;
mod server;
mod session;
mod shared;
mod token;

pub mod frame;
pub mod handshake;
pub mod message;

pub use client::Remote;
pub use connect::{RemoteError, reach, tunnels_of};
pub use event::Event;
pub use gate::Origin;
pub use limits::Limits;
pub use peer::PeerSample;
pub(crate) use peer::{Work, service_demand};
pub use server::{Server, ServerError};
pub use token::{Token, TokenError};

/// Version of everything that is said on a control connection. Both ends must
/// be of the same.
pub const PROTOCOL: u16 = 1;

/// Control port where none is given; the data port is the next one. Not assigned
/// to anything by IANA.
pub const PORT: u16 = 5210;
