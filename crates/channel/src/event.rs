//! What a server tells whoever runs it.

use std::net::SocketAddr;
use std::time::Duration;

use crate::gate::Origin;

/// Something worth a line in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client proved to know the token.
    Opened(SocketAddr),
    /// A client's session is over, and why.
    Closed(SocketAddr, String),
    /// A connection that came to nothing, and why.
    TurnedAway(SocketAddr, String),
    /// Connections that came to nothing besides those that were told.
    MoreTurnedAway {
        /// Number of these connections.
        count: u64,
        /// Time since the first connection that was turned away.
        over: Duration,
        /// Where most of them came from.
        most: Option<Origin>,
    },
}
