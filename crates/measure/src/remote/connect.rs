//! How a client gets a session with a server, and asks in it.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netstate::Interface;
use nix::errno::Errno;
use sys::tcp::Connecting;

use super::Token;
use super::channel::{self, Channel, ChannelError, Side, TICK};
use super::gate::{HANDSHAKE_LIMIT, WRONG_TOKEN_WAIT};
use super::handshake::{HELLO_BYTES, Hello, HelloError, MAC_BYTES, Said};
use super::message::{Reply, Request, emit, parse_reply};

/// How long connecting and the handshake may take, each.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How often a client connects that is hung up on in its handshake.
const TRIES: u32 = 10;
/// How long an answer may take: the server reads counters, at the most, or
/// watches an idle machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// A server that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// It cannot be connected to.
    #[error("{server}: {operation}: {}{hint}", .errno.desc())]
    Connect {
        /// Address and port that was connected to.
        server: SocketAddr,
        /// System call that failed (`connect`).
        operation: &'static str,
        /// Errno of that call.
        errno: Errno,
        /// What that usually means.
        hint: &'static str,
    },
    /// The SYN or a request was not answered in time.
    #[error("{server}: no answer within {limit:.0?} (wrong address, or a filter?)")]
    NoAnswer {
        /// Address and port of the server.
        server: SocketAddr,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The other end of the connection is something else, or of another version.
    #[error("{server}: {error}")]
    Hello {
        /// Address and port of the server.
        server: SocketAddr,
        /// What is wrong with what it said.
        error: HelloError,
    },
    /// It wants a token and none was given.
    #[error("{server}: this server wants a token (--token FILE)")]
    TokenNeeded {
        /// Address and port of the server.
        server: SocketAddr,
    },
    /// A token was given, and it has none to compare it with.
    #[error(
        "{server}: this server has no token, so it cannot prove to be the one meant: leave out --token"
    )]
    NoToken {
        /// Address and port of the server.
        server: SocketAddr,
    },
    /// The two tokens differ.
    #[error("{server}: the server's token is another")]
    WrongToken {
        /// Address and port of the server.
        server: SocketAddr,
    },
    /// It hung up on this end's proof, so late that its time for a handshake may have been over.
    #[error(
        "{server}: it hung up {after:.1?} after the connection began: a path too slow for the handshake, or another token"
    )]
    HungUpLate {
        /// Address and port of the server.
        server: SocketAddr,
        /// Since when connecting began.
        after: Duration,
    },
    /// It said no, or something that it should not.
    #[error("{server}: {reason}")]
    Refused {
        /// Address and port of the server.
        server: SocketAddr,
        /// What it said, or what was wrong with that.
        reason: String,
    },
    /// Something of this end cannot be read.
    #[error("this end of the path to {server}: {reason}")]
    Here {
        /// Address and port of the server.
        server: SocketAddr,
        /// What could not be read, and why.
        reason: String,
    },
    /// The stop flag was set.
    #[error("stopped")]
    Stopped,
}

impl RemoteError {
    /// Whether nothing came back at all: the path's doing, or nobody serves there.
    pub fn is_silence(&self) -> bool {
        match self {
            RemoteError::NoAnswer { .. } => true,
            RemoteError::Connect { errno, .. } => {
                matches!(errno, Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::ETIMEDOUT)
            }
            _ => false,
        }
    }
}

/// What an answer to another question is told as.
pub(super) fn out_of_turn() -> String {
    "it answered something else than what was asked".to_owned()
}

/// One request and its answer.
pub(super) fn converse(
    channel: &mut Channel,
    request: &Request,
    stop: &AtomicBool,
) -> Result<Reply, ChannelError> {
    converse_within(channel, request, ANSWER_LIMIT, stop)
}

fn converse_within(
    channel: &mut Channel,
    request: &Request,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Reply, ChannelError> {
    channel.send(&emit(request))?;
    let payload = channel.receive(limit, &|| !stop.load(Ordering::Relaxed))?;
    parse_reply(&payload).map_err(|error| ChannelError::Io {
        operation: "read its answer",
        error: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}

/// The VXLAN devices in the namespace of a server.
///
/// # Errors
/// [`RemoteError`], with what was tried and what came back.
pub fn tunnels_of(
    server: SocketAddr,
    token: Option<&Token>,
    stop: &AtomicBool,
) -> Result<Vec<Interface>, RemoteError> {
    let mut channel = open(server, token, stop)?;
    let refused = |reason: String| RemoteError::Refused { server, reason };
    match converse(&mut channel, &Request::Tunnels, stop) {
        Ok(Reply::Tunnels(tunnels)) => Ok(tunnels),
        Ok(Reply::Refused(reason)) => Err(refused(reason)),
        Ok(_) => Err(refused(out_of_turn())),
        Err(ChannelError::Ended) => Err(RemoteError::Stopped),
        Err(error) => Err(refused(error.to_string())),
    }
}

/// Whether a server answers: connects, shakes hands and lets it describe itself,
/// which takes frames of full size.
///
/// # Errors
/// [`RemoteError`]; [`RemoteError::is_silence`] tells whether that is the path's.
pub fn reach(
    server: SocketAddr,
    token: Option<&Token>,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<(), RemoteError> {
    let deadline = Instant::now() + limit;
    let mut channel = open_within(server, token, limit, stop)?;
    let left = deadline.saturating_duration_since(Instant::now());
    let reason = match converse_within(&mut channel, &Request::Describe, left, stop) {
        Ok(Reply::Described(_)) => return Ok(()),
        Ok(Reply::Refused(reason)) => return Err(RemoteError::Refused { server, reason }),
        Ok(_) => out_of_turn(),
        Err(ChannelError::Ended) => return Err(RemoteError::Stopped),
        // Connecting took small packets, an answer takes full ones: a path that loses them is
        // silent.
        Err(_) => return Err(RemoteError::NoAnswer { server, limit }),
    };
    Err(RemoteError::Refused { server, reason })
}

/// Connects, and shakes hands.
pub(super) fn open(
    server: SocketAddr,
    token: Option<&Token>,
    stop: &AtomicBool,
) -> Result<Channel, RemoteError> {
    open_within(server, token, CONNECT_LIMIT, stop)
}

fn open_within(
    server: SocketAddr,
    token: Option<&Token>,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Channel, RemoteError> {
    let begun = Instant::now();
    let mut tries = 1;
    loop {
        let left = limit.saturating_sub(begun.elapsed()).max(TICK);
        match attempt(server, token, left, stop) {
            // Strangers crowd the server: it hung up before it could know the token.
            Err((_, true)) if tries < TRIES && begun.elapsed() < limit => tries += 1,
            other => return other.map_err(|(error, _)| error),
        }
    }
}

/// Connects and shakes hands once; with an error, whether trying again may help.
fn attempt(
    server: SocketAddr,
    token: Option<&Token>,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Channel, (RemoteError, bool)> {
    let begun = Instant::now();
    let stream = connect(server, limit, stop).map_err(|error| (error, false))?;
    let mut proved = None;
    shake_hands(server, stream, token, limit, stop, &mut proved).map_err(|(error, hung_up)| {
        // An answer to a wrong token takes longer.
        let since = proved.unwrap_or(begun);
        let early = proved.is_none() || since.elapsed() < WRONG_TOKEN_WAIT;
        let after = begun.elapsed();
        match error {
            // The server began to wait after this end began to connect, so it may not even have
            // read the proof.
            RemoteError::WrongToken { .. } if hung_up && after >= HANDSHAKE_LIMIT => {
                (RemoteError::HungUpLate { server, after }, early)
            }
            error => (error, hung_up && early),
        }
    })
}

fn connect(
    server: SocketAddr,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<TcpStream, RemoteError> {
    let failed = |(operation, errno)| RemoteError::Connect {
        server,
        operation,
        errno,
        hint: match errno {
            Errno::ECONNREFUSED => " (is `overlane measure serve` running there, on this port?)",
            Errno::ENETUNREACH | Errno::EHOSTUNREACH => " (no route: is the address right?)",
            Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL => {
                " (this machine has no address of that family)"
            }
            _ => "",
        },
    };
    let begun = Instant::now();
    let mut connecting = Connecting::start(&server, &channel::OPTIONS).map_err(failed)?;
    while !connecting.wait(TICK).map_err(failed)? {
        if stop.load(Ordering::Relaxed) {
            return Err(RemoteError::Stopped);
        }
        if begun.elapsed() >= limit {
            return Err(RemoteError::NoAnswer { server, limit });
        }
    }
    connecting.into_stream().ok_or(RemoteError::NoAnswer { server, limit })
}

/// The client's side of the handshake; with an error, whether the server hung up. When
/// the proof was sent is put into `proved`.
fn shake_hands(
    server: SocketAddr,
    stream: TcpStream,
    token: Option<&Token>,
    limit: Duration,
    stop: &AtomicBool,
    proved: &mut Option<Instant>,
) -> Result<Channel, (RemoteError, bool)> {
    let deadline = Instant::now() + limit;
    let alive = || !stop.load(Ordering::Relaxed);
    let broken = |error: ChannelError| {
        let hung_up = is_hung_up(&error);
        let error = match error {
            ChannelError::Ended => RemoteError::Stopped,
            ChannelError::Slow => RemoteError::Refused {
                server,
                reason: format!("it said nothing within {limit:.0?}: no overlane measure"),
            },
            error => {
                RemoteError::Refused { server, reason: format!("{error} during the handshake") }
            }
        };
        (error, hung_up)
    };
    let final_one = |error: RemoteError| (error, false);
    channel::prepare(&stream).map_err(broken)?;
    let mut hello = [0; HELLO_BYTES];
    channel::read_exact(&stream, &mut hello, deadline, &alive).map_err(broken)?;
    let said = Hello::parse(&hello);
    // It is told our version in any case, so that both ends can name both.
    let client = Hello::fresh(token.is_some());
    let told = channel::write_all(&stream, &client.emit());
    let theirs = said.map_err(|error| final_one(RemoteError::Hello { server, error }))?;
    told.map_err(broken)?;
    match (theirs.with_token, token.is_some()) {
        (true, false) => return Err(final_one(RemoteError::TokenNeeded { server })),
        (false, true) => return Err(final_one(RemoteError::NoToken { server })),
        _ => {}
    }
    let keys = Said { server: theirs, client }.keys(token);
    *proved = Some(Instant::now());
    channel::write_all(&stream, &keys.client_proof()).map_err(broken)?;
    let mut proof = [0; MAC_BYTES];
    match channel::read_exact(&stream, &mut proof, deadline, &alive) {
        // What a server does that does not like ours.
        Err(error) if is_hung_up(&error) => return Err((RemoteError::WrongToken { server }, true)),
        other => other.map_err(broken)?,
    }
    if !keys.is_server_proof(&proof) {
        return Err(final_one(RemoteError::WrongToken { server }));
    }
    Ok(Channel::new(stream, Side::Client, keys.session()))
}

/// Whether the other end closed the connection, with or without what we said unread.
fn is_hung_up(error: &ChannelError) -> bool {
    match error {
        ChannelError::Closed => true,
        ChannelError::Io { error, .. } => {
            matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        }
        _ => false,
    }
}
