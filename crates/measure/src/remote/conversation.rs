//! Requests of a client in a session, and their replies.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use channel::message::{emit, parse};
use channel::{Channel, ChannelError, RemoteError, Service, Token, open, open_within};
use netstate::Interface;

use super::message::{Reply, Request};

/// Time limit of an answer: at most, the server reads counters or observes an idle machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// Time limit of an answer on emulated CPUs, which other load can delay for longer.
const ANSWER_LIMIT_TCG: Duration = Duration::from_secs(60);

/// Error for a reply that does not match the request.
pub(super) fn out_of_turn() -> String {
    "unexpected reply to the request".to_owned()
}

/// Sends a request and returns the reply.
pub(super) fn converse(
    channel: &mut Channel,
    request: &Request,
    stop: &AtomicBool,
) -> Result<Reply, ChannelError> {
    let limit = if sys::emulation::is_tcg() { ANSWER_LIMIT_TCG } else { ANSWER_LIMIT };
    converse_within(channel, request, limit, stop)
}

fn converse_within(
    channel: &mut Channel,
    request: &Request,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Reply, ChannelError> {
    channel.send(&emit(request))?;
    let payload = channel.receive(limit, &|| !stop.load(Ordering::Relaxed))?;
    parse::<Reply>(&payload).map_err(|error| ChannelError::Io {
        operation: "read its answer",
        error: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}

/// Returns the VXLAN devices in the namespace of a server.
pub fn tunnels_of(
    server: SocketAddr,
    token: Option<&Token>,
    stop: &AtomicBool,
) -> Result<Vec<Interface>, RemoteError> {
    let mut channel = open(server, Service::Measure, token, stop)?;
    let refused = |reason: String| RemoteError::Refused { server, reason };
    match converse(&mut channel, &Request::Tunnels, stop) {
        Ok(Reply::Tunnels(tunnels)) => Ok(tunnels),
        Ok(Reply::Refused(reason)) => Err(refused(reason)),
        Ok(_) => Err(refused(out_of_turn())),
        Err(ChannelError::Ended) => Err(RemoteError::Stopped),
        Err(error) => Err(refused(error.to_string())),
    }
}

/// Checks whether a server answers: connects, authenticates and requests its description, whose
/// frames have full size.
///
/// # Errors
/// [`RemoteError`]. [`RemoteError::is_silence`] returns whether the path is the cause.
pub fn reach(
    server: SocketAddr,
    token: Option<&Token>,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<(), RemoteError> {
    let deadline = Instant::now() + limit;
    let mut channel = open_within(server, Service::Measure, token, limit, stop)?;
    let left = deadline.saturating_duration_since(Instant::now());
    let reason = match converse_within(&mut channel, &Request::Describe, left, stop) {
        Ok(Reply::Described(_)) => return Ok(()),
        Ok(Reply::Refused(reason)) => return Err(RemoteError::Refused { server, reason }),
        Ok(_) => out_of_turn(),
        Err(ChannelError::Ended) => return Err(RemoteError::Stopped),
        // Connecting took small packets, but a reply takes full-size ones. A path that loses them
        // is silent.
        Err(_) => return Err(RemoteError::NoAnswer { server, limit }),
    };
    Err(RemoteError::Refused { server, reason })
}
