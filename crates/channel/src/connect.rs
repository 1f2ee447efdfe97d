//! Opens a client's session with a server.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use sys::tcp::Connecting;

use crate::connection::{self, Channel, ChannelError, TICK};
use crate::gate::{HANDSHAKE_LIMIT, WRONG_TOKEN_WAIT};
use crate::handshake::{HELLO_BYTES, Hello, HelloError, NOISE_BYTES, Said};
use crate::service::Service;
use crate::token::Token;

/// Time limit for connecting, and for the handshake.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Attempts of a client whose connection the server closes during the handshake.
const TRIES: u32 = 10;

/// Reason why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The connection failed.
    #[error("{server}: {operation}: {}{hint}", .errno.desc())]
    Connect {
        /// Address and port of the server.
        server: SocketAddr,
        /// System call that failed (`connect`).
        operation: &'static str,
        errno: Errno,
        /// Usual cause of that errno.
        hint: &'static str,
    },
    /// The SYN or a request was not answered in time.
    #[error("{server}: no answer within {limit:.0?} (wrong address, or filtered?)")]
    NoAnswer {
        /// Address and port of the server.
        server: SocketAddr,
        limit: Duration,
    },
    /// The other end is a different program or version.
    #[error("{server}: {error}")]
    Hello {
        /// Address and port of the server.
        server: SocketAddr,
        error: HelloError,
    },
    /// The server requires a token and none was given.
    #[error("{server}: this server requires a token (--token FILE)")]
    TokenNeeded {
        /// Address and port of the server.
        server: SocketAddr,
    },
    /// A token was given, but the server has none to compare it with.
    #[error("{server}: this server has no token and cannot authenticate itself: leave out --token")]
    NoToken {
        /// Address and port of the server.
        server: SocketAddr,
    },
    /// The tokens of client and server differ.
    #[error("{server}: wrong token: client and server have different tokens")]
    WrongToken {
        /// Address and port of the server.
        server: SocketAddr,
    },
    /// The server closed the connection after this end's proof, possibly because of its time limit.
    #[error(
        "{server}: connection closed {after:.1?} after connecting: the path is too slow for the handshake, or the tokens differ"
    )]
    HungUpLate {
        /// Address and port of the server.
        server: SocketAddr,
        /// Time since connecting began.
        after: Duration,
    },
    /// The server refused, or violated the protocol.
    #[error("{server}: {reason}")]
    Refused {
        /// Address and port of the server.
        server: SocketAddr,
        /// Its message, or the violation.
        reason: String,
    },
    /// State of this machine cannot be read.
    #[error("this end of the path to {server}: {reason}")]
    Here {
        /// Address and port of the server.
        server: SocketAddr,
        reason: String,
    },
    /// The stop flag was set.
    #[error("stopped")]
    Stopped,
}

impl RemoteError {
    /// Returns whether nothing came back at all: the path is broken, or no server runs there.
    pub fn is_silence(&self) -> bool {
        match self {
            RemoteError::NoAnswer { .. } => true,
            RemoteError::Connect { errno, .. } => {
                matches!(errno, Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::ETIMEDOUT)
            }
            // Other errors come from a machine that answers.
            _ => false,
        }
    }
}

/// Connects and authenticates within [`CONNECT_LIMIT`].
pub fn open(
    server: SocketAddr,
    service: Service,
    token: Option<&Token>,
    stop: &AtomicBool,
) -> Result<Channel, RemoteError> {
    open_within(server, service, token, CONNECT_LIMIT, stop)
}

/// Like [`open`], with another time limit.
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
            // Other connections crowd the server: it closed this one before it could check the
            // token, so try again.
            Err((_, true)) if tries < TRIES && begun.elapsed() < limit => tries += 1,
            other => return other.map_err(|(error, _)| error),
        }
    }
}

/// Connects and authenticates once. An error comes with whether a retry may help.
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
        // Closed earlier than a wrong token would be: the server was crowded.
        let since = proved.unwrap_or(begun);
        let early = proved.is_none() || since.elapsed() < WRONG_TOKEN_WAIT;
        let after = begun.elapsed();
        match error {
            // The server's time limit began after this end started to connect, so the server may
            // not even have read the proof.
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
        // Ctrl-C must end the program also while a host is silent.
        if stop.load(Ordering::Relaxed) {
            return Err(RemoteError::Stopped);
        }
        if begun.elapsed() >= limit {
            return Err(RemoteError::NoAnswer { server, limit });
        }
    }
    connecting.into_stream().ok_or(RemoteError::NoAnswer { server, limit })
}

/// Runs the client's side of the handshake. An error comes with whether the server closed the
/// connection. `proved` receives the time at which the proof was sent.
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
                reason: format!(
                    "no data within {limit:.0?}: the server is not `{}`",
                    service.command()
                ),
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
    // Send our version in any case, so that both ends can report both versions.
    let client = Hello::fresh(service, token.is_some());
    let sent = connection::write_all(&stream, &client.emit());
    let theirs = said.map_err(|error| final_one(RemoteError::Hello { server, error }))?;
    sent.map_err(broken)?;
    match (theirs.with_token, token.is_some()) {
        // The handshake could not succeed, so do not retry.
        (true, false) => return Err(final_one(RemoteError::TokenNeeded { server })),
        (false, true) => return Err(final_one(RemoteError::NoToken { server })),
        _ => {}
    }
    let (initiator, first) = Said { server: theirs, client }.initiate(token);
    *proved = Some(Instant::now());
    connection::write_all(&stream, &first).map_err(broken)?;
    let mut second = [0; NOISE_BYTES];
    match connection::read_exact(&stream, &mut second, deadline, &alive) {
        // Servers close the connection when the proof is wrong.
        Err(error) if is_hung_up(&error) => return Err((RemoteError::WrongToken { server }, true)),
        other => other.map_err(broken)?,
    }
    // Without the token, the server gets no requests.
    let cipher = initiator.finish(&second);
    let cipher = cipher.ok_or_else(|| final_one(RemoteError::WrongToken { server }))?;
    Ok(Channel::new(stream, cipher))
}

/// Returns whether the other end closed the connection, cleanly or by a reset.
fn is_hung_up(error: &ChannelError) -> bool {
    match error {
        ChannelError::Closed => true,
        ChannelError::Io { error, .. } => {
            matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        }
        // Other errors do not show that the server closed the connection.
        _ => false,
    }
}
