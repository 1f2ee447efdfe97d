//! `tcp_maerts`: a stream the other way. The client connects, the server writes messages
//! without pause, and the client reads and counts, as `iperf3 -R` and netperf's test of
//! this name do. What a download takes through NAT, a proxy or a one-sided offload.

use std::net::TcpStream;

use super::EngineError;
use super::flow::Flow;
use super::tcp_stream::{receive, send};

/// Reads until the load is done.
pub(super) fn client(flow: &Flow<'_>, stream: &TcpStream) -> Result<(), EngineError> {
    receive(flow, stream)
}

/// Writes until the load is done.
pub(super) fn server(flow: &Flow<'_>, stream: &TcpStream) -> Result<(), EngineError> {
    send(flow, stream)
}
