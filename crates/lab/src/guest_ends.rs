//! Ends of a network that are virtual machines, as the measuring code sees them.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use crate::guest_in_force::InForce;

/// Two guests that are up.
#[derive(Debug)]
pub struct GuestEnds {
    /// Name of the client, and the host's end of its control port.
    pub client: (String, UnixStream),
    /// Name of the server, and the host's end of its control port.
    pub server: (String, UnixStream),
    /// Address at which the server's guest listens for the client's.
    pub listen: SocketAddr,
    /// Address at which the client reaches it.
    pub target: SocketAddr,
    /// Settings in force at the client's and the server's guest.
    pub in_force: [InForce; 2],
}
