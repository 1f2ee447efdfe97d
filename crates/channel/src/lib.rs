//! Authenticated connections between two machines that share a token.
//!
//! A client keeps one connection (a *session*). It begins with a handshake of fixed size
//! ([`handshake`]), which names the service ([`Service`]). Each end proves that it has the token by a
//! Noise handshake with a pre-shared key and fresh keys of both ends, so neither the token nor a
//! reusable proof is on the wire. After it come frames ([`frame`]), encrypted and numbered, so that
//! an attacker on the path can neither read, insert, repeat nor change a message.
//!
//! A message is accepted or refused within [`MESSAGE_LIMIT`], and lengths are checked before use.
//! Unauthenticated clients get no thread, and always make room for later ones (`gate`). The log
//! lines about such connections are bounded, too (`refusals`). Payloads are opaque to the
//! connection; [`message`] encodes them as JSON.

#![forbid(unsafe_code)]

mod connect;
mod connection;
mod event;
mod gate;
mod rate_limit;
mod refusals;
mod server;
mod service;
mod token;

pub mod frame;
pub mod handshake;
pub mod message;

pub use connect::{CONNECT_LIMIT, RemoteError, open, open_within};
pub use connection::{Channel, ChannelError, MESSAGE_LIMIT, TICK};
pub use event::Event;
pub use gate::Origin;
pub use rate_limit::RateLimit;
pub use server::{Server, ServerError, Serves, Session, Tell};
pub use service::Service;
pub use token::{Token, TokenError};
