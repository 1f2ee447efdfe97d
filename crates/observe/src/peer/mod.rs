//! Compares flows with another host: packets that left one and did not arrive at the other.
//!
//! A [`PeerServer`] reports this host's counts of flows to clients that prove to know the token. A
//! [`Peer`] polls such a server in its own thread, so that a slow or hostile server does not delay
//! `watch`. It compares the counts of both hosts (`loss`) and their clocks (`clock`). Connections
//! come from the [`channel`] crate.

mod asking;
mod clock;
mod compared;
mod front;
mod loss;
mod server;

pub mod message;

pub use asking::Peer;
pub use clock::{Clock, Exchange, Offset};
pub use front::Front;
pub use loss::{Bounds, Loss};
pub use server::PeerServer;

/// Default port. IANA assigns it to nothing.
pub const PORT: u16 = 5212;

/// Returns the time in ns since 1970, by this machine's clock.
fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}
