//! `tcp_maerts`: a stream in the reverse direction. The client connects, the server writes without
//! pause, and the client reads and counts, like `iperf3 -R` and netperf's test of this name. It
//! shows the cost of a download through NAT, a proxy or a one-sided offload.

use std::net::TcpStream;

use super::EngineError;
use super::flow::{Flow, FlowReport};
use super::marks::Delivering;
use super::tcp_stream::{receive, send};

/// Reads until the load is done.
pub(super) fn client(flow: &Flow<'_>, stream: &TcpStream) -> Result<(), EngineError> {
    receive(flow, stream)
}

/// Writes until the load is done.
pub(super) fn server(
    flow: &Flow<'_>,
    stream: &TcpStream,
    report: &mut FlowReport,
) -> Result<(), EngineError> {
    // Without --ecn the state of the connection need not be read.
    if !flow.load.ecn {
        return send(flow, stream, |_| {});
    }
    let mut delivering = Delivering::new(stream);
    let sent = send(flow, stream, |phase| delivering.turn(phase));
    // A thread that was waiting in a write learns of the interval's end here.
    delivering.turn(flow.control.phase());
    report.ecn = delivering.counts();
    sent
}
