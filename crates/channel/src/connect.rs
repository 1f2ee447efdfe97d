//! How a client gets a session with a server.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use sys::tcp::Connecting;

use crate::connection::{self, Channel, ChannelError, Side, TICK};
use crate::gate::{HANDSHAKE_LIMIT, WRONG_TOKEN_WAIT};
use crate::handshake::{HELLO_BYTES, Hello, HelloError, MAC_BYTES, Said};
use crate::service::Service;
use crate::token::Token;

/// How long connecting and the handshake may take, each.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How often a client connects that is hung up on in its handshake.
const TRIES: u32 = 10;

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

/// Connects, and shakes hands, within [`CONNECT_LIMIT`].
///
/// # Errors
/// [`RemoteError`], with what was tried and what came back.
pub fn open(
    server: SocketAddr,
    service: Service,
    token: Option<&Token>,
    stop: &AtomicBool,
) -> Result<Channel, RemoteError> {
    open_within(server, service, token, CONNECT_LIMIT, stop)
}

/// The same within another time.
///
/// # Errors
/// As [`open`].
pub fn open_within(
    server: SocketAddr,
    service: Service,
    token: Option<&Token>,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Channel, RemoteError> {
    let begun = Instant::now();
    let mut tries = 1;
    loop {
        let left = limit.saturating_sub(begun.elapsed()).max(TICK);
        match attempt(server, service, token, left, stop) {
            // Strangers crowd the server: it hung up before it could know the token.
            Err((_, true)) if tries < TRIES && begun.elapsed() < limit => tries += 1,
            other => return other.map_err(|(error, _)| error),
        }
    }
}

/// Connects and shakes hands once; with an error, whether trying again may help.
fn attempt(
    server: SocketAddr,
    service: Service,
    token: Option<&Token>,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Channel, (RemoteError, bool)> {
    let begun = Instant::now();
    let stream = connect(server, service, limit, stop).map_err(|error| (error, false))?;
    let mut proved = None;
    let shaken = shake_hands((server, service), stream, token, limit, stop, &mut proved);
    shaken.map_err(|(error, hung_up)| {
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
    service: Service,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<TcpStream, RemoteError> {
    let failed = |(operation, errno)| RemoteError::Connect {
        server,
        operation,
        errno,
        hint: match errno {
            Errno::ECONNREFUSED => match service {
                Service::Measure => " (is `overlane measure serve` running there, on this port?)",
                Service::Watch => " (is `overlane watch --serve` running there, on this port?)",
            },
            Errno::ENETUNREACH | Errno::EHOSTUNREACH => " (no route: is the address right?)",
            Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL => {
                " (this machine has no address of that family)"
            }
            _ => "",
        },
    };
    let begun = Instant::now();
    let mut connecting = Connecting::start(&server, &connection::OPTIONS).map_err(failed)?;
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
    (server, service): (SocketAddr, Service),
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
                reason: format!("it said nothing within {limit:.0?}: no `{}`", service.command()),
            },
            error => {
                RemoteError::Refused { server, reason: format!("{error} during the handshake") }
            }
        };
        (error, hung_up)
    };
    let final_one = |error: RemoteError| (error, false);
    connection::prepare(&stream).map_err(broken)?;
    let mut hello = [0; HELLO_BYTES];
    connection::read_exact(&stream, &mut hello, deadline, &alive).map_err(broken)?;
    let said = Hello::parse(&hello, service);
    // It is told our version in any case, so that both ends can name both.
    let client = Hello::fresh(service, token.is_some());
    let told = connection::write_all(&stream, &client.emit());
    let theirs = said.map_err(|error| final_one(RemoteError::Hello { server, error }))?;
    told.map_err(broken)?;
    match (theirs.with_token, token.is_some()) {
        (true, false) => return Err(final_one(RemoteError::TokenNeeded { server })),
        (false, true) => return Err(final_one(RemoteError::NoToken { server })),
        _ => {}
    }
    let keys = Said { server: theirs, client }.keys(token);
    *proved = Some(Instant::now());
    connection::write_all(&stream, &keys.client_proof()).map_err(broken)?;
    let mut proof = [0; MAC_BYTES];
    match connection::read_exact(&stream, &mut proof, deadline, &alive) {
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
