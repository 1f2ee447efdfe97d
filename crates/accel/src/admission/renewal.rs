//! Leaving connections to conntrack, whose windows of them are outdated.

use netstate::connection::{self, Connections, Tuple};

/// Leaves the connections of a killed process to conntrack. Connections of a predecessor that still
/// runs take the slow path from then on. The calling thread is in the NICs' namespace.
pub(super) fn take_over(connections: &Connections) {
    let mut left_behind = Vec::new();
    let found = connection::connections(|entry| {
        if entry.is_marked {
            left_behind.push(entry.original);
        }
    });
    if let Err(error) = found {
        tracing::warn!("cannot look for connections of a killed process: {error}");
    }
    for original in left_behind {
        renew(connections, &original);
    }
}

/// Lets conntrack begin with new windows of a connection.
pub(super) fn renew(connections: &Connections, original: &Tuple) {
    if let Err(error) = connections.forget_windows(original) {
        tracing::warn!("cannot renew conntrack's entry of a TCP connection: {error}");
    }
}
