//! Reasons why a load could not be measured: the operation, its stage, and the answer of the
//! kernel or of the other end.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use sys::errno::Errno;

/// Stage of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Connecting the socket.
    Connect,
    /// The first exchange, which proves that the path carries data both ways.
    Hello,
    /// Traffic, warm-up included.
    Traffic,
    /// Exchange after the measured interval, which proves that the path still works.
    Closing,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Connect => "while connecting",
            Stage::Hello => "before the first exchange was complete",
            Stage::Traffic => "during traffic",
            Stage::Closing => "at the end of the measured interval",
        })
    }
}

/// End of a load at which an error was noticed.
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

/// Reason why a load could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// An invalid argument. Nothing was started.
    #[error("{argument}: got {got}, allowed: {allowed}")]
    Invalid {
        /// Field of [`Load`](super::Load) or [`Ends`](super::Ends).
        argument: &'static str,
        allowed: String,
        /// Given value.
        got: String,
    },
    /// The kernel refused an operation that does not depend on the path (descriptors, binding,
    /// namespaces, pinning).
    #[error(transparent)]
    Local(#[from] sys::Error),
    /// No route, an unreachable host or network, or a link that is down.
    #[error("{target} is unreachable, {stage}: {errno}", errno = .errno)]
    Unreachable {
        /// Address that the client sent to.
        target: SocketAddr,
        /// Stage that was reached.
        stage: Stage,
        /// `ENETUNREACH`, `EHOSTUNREACH`, `ENETDOWN` …
        errno: Errno,
    },
    /// A reset in answer to the SYN, or ICMP port unreachable: no program listens there, or the
    /// port is not published.
    #[error("{target} refused, {stage} ({answer})")]
    Refused {
        /// Address that the client sent to.
        target: SocketAddr,
        /// Stage that was reached.
        stage: Stage,
        /// Answer: `TCP reset` or `ICMP port unreachable`.
        answer: &'static str,
    },
    /// A local filter refused to send (`EPERM`, `EACCES`), or a router answered that
    /// communication is administratively prohibited.
    #[error("sending to {target} is prohibited, {stage}: {errno}", errno = .errno)]
    Prohibited {
        /// Address that the client sent to.
        target: SocketAddr,
        /// Stage that was reached.
        stage: Stage,
        /// `EPERM` or `EACCES`.
        errno: Errno,
    },
    /// No answer at all: a black hole.
    #[error("no answer from {target} within {waited:.1?}, {stage}, {detail}")]
    NoAnswer {
        /// Address that the client sent to.
        target: SocketAddr,
        /// Stage that was reached.
        stage: Stage,
        /// Time waited.
        waited: Duration,
        /// Attempts, and observations.
        detail: String,
    },
    /// The other end, or a device between, closed the connection.
    #[error("flow {flow}: the {end}'s connection was closed {stage}{hint}")]
    Closed {
        /// Index of the flow, from 0.
        flow: u32,
        /// End that saw the connection close.
        end: End,
        /// Stage that was reached.
        stage: Stage,
        /// Usual cause, or empty.
        hint: &'static str,
    },
    /// The connection was reset.
    #[error("flow {flow}: the {end}'s connection was reset {stage}")]
    Reset {
        /// Index of the flow, from 0.
        flow: u32,
        /// End that received the reset.
        end: End,
        /// Stage that was reached.
        stage: Stage,
    },
    /// The flow made no progress for the load's `setup_limit`.
    #[error("flow {flow}: nothing arrived at the {end} for {waited:.1?}, {stage}")]
    Stalled {
        /// Index of the flow, from 0.
        flow: u32,
        /// End at which nothing arrived.
        end: End,
        /// Time without progress.
        waited: Duration,
        /// Stage that was reached.
        stage: Stage,
    },
    /// The load asks for ECN, and a TCP connection has not negotiated it.
    #[error("TCP to {target} has not negotiated ECN: {}", no_ecn(tcp_ecn))]
    NoEcn {
        /// Address that the client connected to.
        target: SocketAddr,
        /// `net.ipv4.tcp_ecn` in the client's namespace; empty if unknown.
        tcp_ecn: String,
    },
    /// No datagram was answered.
    #[error("{sent} datagrams of {message_bytes} bytes were sent and none was received")]
    AllLost {
        /// Datagrams that the sender's kernel accepted.
        sent: u64,
        /// Payload of each datagram, bytes.
        message_bytes: u32,
    },
    /// The kernel cannot send these datagrams as UDP GSO packets.
    #[error("UDP GSO with {message_bytes}-byte datagrams is refused: {reason} ({errno:?})")]
    Gso {
        /// Datagram payload, bytes.
        message_bytes: u32,
        /// Cause.
        reason: &'static str,
        /// Errno of `sendmmsg`.
        errno: Errno,
    },
    /// Any other error of a socket operation.
    #[error("flow {flow}: {operation} at the {end} failed {stage}: {errno}", errno = .errno)]
    Socket {
        /// Index of the flow, from 0.
        flow: u32,
        /// End of the socket.
        end: End,
        /// Operation that failed (`recv`, `sendmmsg`).
        operation: &'static str,
        /// Stage that was reached.
        stage: Stage,
        errno: Errno,
    },
    /// A server on another machine failed.
    #[error("server {server}: {message}")]
    Server {
        /// Address and port of the control connection.
        server: SocketAddr,
        /// Reason, as the server reports it.
        message: String,
    },
    /// The control connection to a server on another machine was lost or cannot be opened.
    #[error("server {server} is gone: {reason}")]
    Gone {
        /// Address and port of the control connection.
        server: SocketAddr,
        /// Observation.
        reason: String,
    },
    /// A virtual machine failed.
    #[error("guest {guest}: {message}")]
    Guest {
        /// Name of the tenant.
        guest: String,
        /// Reason, as the guest reports it or as observed.
        message: String,
    },
    /// The caller's stop flag ended the load.
    #[error("stopped")]
    Stopped,
    /// A thread of the engine panicked: a defect of the engine.
    #[error("a thread of the load engine panicked: {0}")]
    Panicked(String),
}

/// Returns the cause of a connection without ECN.
fn no_ecn(tcp_ecn: &str) -> String {
    match tcp_ecn.trim() {
        // The client asked for it.
        "1" => "the server's net.ipv4.tcp_ecn is 0, or the path clears the flags of the SYN".into(),
        "" => "set net.ipv4.tcp_ecn to 1 in the client's namespace".into(),
        own => format!("net.ipv4.tcp_ecn is {own} in the client's namespace, 1 asks for ECN"),
    }
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
