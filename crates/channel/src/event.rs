//! Events that a server reports to its operator.

use std::net::SocketAddr;
use std::time::Duration;

use crate::gate::Origin;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client was authenticated.
    Opened(SocketAddr),
    /// A client's session ended, with the reason.
    Closed(SocketAddr, String),
    /// A connection was turned away, with the reason.
    TurnedAway(SocketAddr, String),
    /// Further connections were turned away that were not reported one by one.
    MoreTurnedAway {
        /// Number of these connections.
        count: u64,
        /// Time since the first connection that was turned away.
        over: Duration,
        /// Most frequent origin of these connections.
        most: Option<Origin>,
    },
}
