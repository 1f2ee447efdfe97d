//! Authenticated connections between two machines that share a token.
//!
//! A client keeps one connection (a *session*). It begins with a handshake of fixed size
//! ([`handshake`]): each end proves that it knows the token by an HMAC over both ends' fresh
//! nonces, so that neither the token nor anything that can be played back is on the wire. What
//! the server serves is part of it ([`Service`]). Everything after it is frames ([`frame`]): a
//! length, a tag and a payload. The tag is an HMAC under a key of this session with a running
//! number, so that nobody on the path can insert, repeat or change a message. Nothing is
//! encrypted.
//!
//! A message is taken or refused within [`MESSAGE_LIMIT`], and no length is believed before it
//! is checked. Who has not proved to know the token takes no thread, and always makes room for
//! who comes later (`gate`); what is told of such connections has a bound, too (`refusals`).
//! Nothing here knows what is said in the payloads.

#![forbid(unsafe_code)]

mod connect;
mod connection;
mod event;
mod gate;
mod pace;
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
pub use pace::Pace;
pub use server::{Server, ServerError, Serves, Session, Tell};
pub use service::Service;
pub use token::{Token, TokenError};
