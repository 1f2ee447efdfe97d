//! The far half of flows: what left another host and did not come here, and the other way round.
//!
//! A [`PeerServer`] tells who knows the token what this host has counted of some flows. A
//! [`Peer`] asks such a server, again and again, in a thread of its own: however slow or hostile
//! the other end is, watching goes on. It compares the counts of both ends (`loss`) and their
//! clocks (`clock`). Connections are those of the [`channel`] crate.

mod asking;
mod clock;
mod compared;
mod loss;
mod server;

pub mod message;

pub use asking::Peer;
pub use clock::{Clock, Exchange, Offset};
pub use loss::{Bounds, Loss};
pub use server::PeerServer;

/// Port where none is given. Not assigned to anything by IANA.
pub const PORT: u16 = 5212;

/// Now, ns since 1970, by this machine's clock.
fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}
