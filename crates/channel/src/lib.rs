//! Authenticated connections between two machines that share a token.
//!
//! A client keeps one connection (a *session*). It begins with a handshake of fixed size
//! ([`handshake`]). Each end proves that it has the token by an HMAC over fresh nonces of both
//! ends, so neither the token nor a reusable proof is on the wire. The handshake also names the
//! service ([`Service`]). After it come frames ([`frame`]): a length, a tag and a payload. The tag
//! is an HMAC with a key of this session and a running number, so that an attacker on the path
//! cannot insert, repeat or change a message. Nothing is encrypted.
//!
//! A message is accepted or refused within [`MESSAGE_LIMIT`], and lengths are checked before use.
//! Unauthenticated clients get no thread, and always make room for later ones (`gate`). The log
//! lines about such connections are bounded, too (`refusals`). Payloads are opaque to this crate.

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

pub use connect::{CONNECT_LIMIT, RemoteError, open, open_within};
pub use connection::{Channel, ChannelError, MESSAGE_LIMIT, Side, TICK};
pub use event::Event;
pub use gate::Origin;
pub use rate_limit::RateLimit;
pub use server::{Server, ServerError, Serves, Session, Tell};
pub use service::Service;
pub use token::{Token, TokenError};
