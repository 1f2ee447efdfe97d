//! `tcp_maerts`: a stream in the reverse direction. The client connects, the server writes without
//! pause, and the client reads and counts, like `iperf3 -R` and netperf's test of this name. It
//! shows the cost of a download through NAT, a proxy or a one-sided offload.

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
