//! Why a load could not be measured: what was tried, how far it got, and what
//! the kernel or the other end answered.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use sys::errno::Errno;

/// How far a flow had got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Connecting the socket.
    Connect,
    /// The first exchange, which proves that the path carries data both ways.
    Hello,
    /// The traffic itself, warm-up included.
    Traffic,
    /// The exchange after the measured interval, which proves that the path
    /// was still alive at its end.
    Closing,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Connect => "while connecting",
            Stage::Hello => "before the first exchange was complete",
            Stage::Traffic => "in the middle of traffic",
            Stage::Closing => "at the end of the measured interval",
        })
    }
}

/// The end of a load that noticed an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The end that connects and sends first.
    Client,
    /// The end that listens.
    Server,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Client => "client",
            End::Server => "server",
        })
    }
}

/// Why a load could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// An argument that cannot be carried out; nothing was started.
    #[error("{argument}: got {got}, allowed: {allowed}")]
    Invalid {
        /// Field of [`Load`](super::Load) or [`Ends`](super::Ends).
        argument: &'static str,
        /// What it may be.
        allowed: String,
        /// The value that was given.
        got: String,
    },
    /// The kernel refused something that does not depend on the path
    /// (descriptors, binding, namespaces, pinning).
    #[error(transparent)]
    Local(#[from] sys::Error),
    /// No route, an unreachable host or network, or a link that is down.
    #[error("{target} is unreachable, {stage}: {errno}", errno = .errno)]
    Unreachable {
        /// Address the client sent to.
        target: SocketAddr,
        /// How far it got.
        stage: Stage,
        /// `ENETUNREACH`, `EHOSTUNREACH`, `ENETDOWN` …
        errno: Errno,
    },
    /// A reset in answer to the SYN, or an ICMP port unreachable: nobody
    /// listens there, or the port is not published.
    #[error("{target} refused, {stage} ({answer})")]
    Refused {
        /// Address the client sent to.
        target: SocketAddr,
        /// How far it got.
        stage: Stage,
        /// What came back: `TCP reset` or `ICMP port unreachable`.
        answer: &'static str,
    },
    /// A local filter refused to send (`EPERM`, `EACCES`), or a router answered
    /// that it is administratively prohibited.
    #[error("sending to {target} is prohibited, {stage}: {errno}", errno = .errno)]
    Prohibited {
        /// Address the client sent to.
        target: SocketAddr,
        /// How far it got.
        stage: Stage,
        /// `EPERM` or `EACCES`.
        errno: Errno,
    },
    /// Nothing came back: a black hole.
    #[error("no answer from {target} within {waited:.1?}, {stage}, {detail}")]
    NoAnswer {
        /// Address the client sent to.
        target: SocketAddr,
        /// How far it got.
        stage: Stage,
        /// How long it waited.
        waited: Duration,
        /// What was tried, and what was seen of it.
        detail: String,
    },
    /// The connection was closed by the other side or something between.
    #[error("flow {flow}: the {end}'s connection was closed {stage}{hint}")]
    Closed {
        /// Index of the flow, from 0.
        flow: u32,
        /// End that saw the connection close.
        end: End,
        /// How far it got.
        stage: Stage,
        /// What that usually means, or nothing.
        hint: &'static str,
    },
    /// The connection was reset.
    #[error("flow {flow}: the {end}'s connection was reset {stage}")]
    Reset {
        /// Index of the flow, from 0.
        flow: u32,
        /// End that got the reset.
        end: End,
        /// How far it got.
        stage: Stage,
    },
    /// The flow stood still for as long as the load's `setup_limit`.
    #[error("flow {flow}: nothing arrived at the {end} for {waited:.1?}, {stage}")]
    Stalled {
        /// Index of the flow, from 0.
        flow: u32,
        /// End at which nothing arrived.
        end: End,
        /// How long nothing arrived.
        waited: Duration,
        /// How far it got.
        stage: Stage,
    },
    /// Requests were sent as datagrams and none was answered.
    #[error("{sent} datagrams of {message_bytes} bytes were sent and none was received")]
    AllLost {
        /// Datagrams that the sender's kernel accepted.
        sent: u64,
        /// Payload of each datagram, bytes.
        message_bytes: u32,
    },
    /// The kernel cannot send these datagrams as UDP GSO packets.
    #[error("UDP GSO of {message_bytes}-byte datagrams is refused: {reason} ({errno:?})")]
    Gso {
        /// Datagram payload, bytes.
        message_bytes: u32,
        /// What the answer means.
        reason: &'static str,
        /// Errno of `sendmmsg`.
        errno: Errno,
    },
    /// Any other answer of the kernel to a socket operation.
    #[error("flow {flow}: {operation} at the {end} failed {stage}: {errno}", errno = .errno)]
    Socket {
        /// Index of the flow, from 0.
        flow: u32,
        /// End whose socket it is.
        end: End,
        /// Operation that failed (`recv`, `sendmmsg`).
        operation: &'static str,
        /// How far it got.
        stage: Stage,
        /// Errno of that operation.
        errno: Errno,
    },
    /// The server on another machine could not do its part.
    #[error("server {server}: {message}")]
    Server {
        /// Address and port of the control connection.
        server: SocketAddr,
        /// Reason in the server's words.
        message: String,
    },
    /// The control connection to a server on another machine is gone, or
    /// cannot be made.
    #[error("server {server} is gone: {reason}")]
    Gone {
        /// Address and port of the control connection.
        server: SocketAddr,
        /// What was seen of it.
        reason: String,
    },
    /// A virtual machine could not do its part.
    #[error("guest {guest}: {message}")]
    Guest {
        /// Name of the tenant that it is.
        guest: String,
        /// Reason in its words, or what was seen of it.
        message: String,
    },
    /// Ended by the caller's stop flag.
    #[error("stopped")]
    Stopped,
    /// A thread of the engine ended by a panic: a defect of the engine.
    #[error("a thread of the load engine panicked: {0}")]
    Panicked(String),
}

impl EngineError {
    pub(super) fn invalid(
        argument: &'static str,
        allowed: impl Into<String>,
        got: impl fmt::Display,
    ) -> Self {
        EngineError::Invalid { argument, allowed: allowed.into(), got: got.to_string() }
    }
}
