//! The ends of a network that are virtual machines, for who measures it.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use crate::guest_in_force::InForce;

/// Two guests that are up.
#[derive(Debug)]
pub struct GuestEnds {
    /// Name of the client, and this end of its control port.
    pub client: (String, UnixStream),
    /// The same of the server.
    pub server: (String, UnixStream),
    /// Where the server's guest is to listen for the client's.
    pub listen: SocketAddr,
    /// Where the client finds it.
    pub target: SocketAddr,
    /// What is in force at the client's and the server's guest.
    pub in_force: [InForce; 2],
}
