//! `tcp_crr`: connect, request, response, close, for every transaction.
//!
//! Each connection is a whole one (SYN, data, FIN both ways, no reset). The
//! server closes first, so that `TIME_WAIT` is on its side, where it takes no
//! port: the client's port is free again as soon as its own FIN is
//! acknowledged, and a new SYN from it is accepted by the server's `TIME_WAIT`
//! because of its later timestamp (RFC 6191). A load can go on for any time
//! without running out of ports, also behind NAT, whose conntrack entries stay
//! bounded by the client's port range.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::connection::is_a_tick;
use super::control::Phase;
use super::flow::{Flow, FlowReport, errno_of, latency_histogram};
use super::hello::serves;
use super::tcp_rr::nanos;
use super::{EngineError, Load};

/// Transactions until the load is done; the first proves the path.
pub(super) fn client(flow: &Flow<'_>, report: &mut FlowReport) -> Result<(), EngineError> {
    let mut message = vec![0; flow.load.message_bytes as usize];
    transaction(flow, &mut message)?;
    flow.tally().ready.store(true, Ordering::Release);
    let latency = report.latency.insert(latency_histogram());
    let mut phase = flow.control.wait_past(Phase::Setup);
    while phase != Phase::Done {
        let begun = Instant::now();
        flow.tally().sent.add(1);
        transaction(flow, &mut message)?;
        flow.tally().units.add(1);
        if phase == Phase::Measure {
            latency.saturating_record(nanos(begun.elapsed()));
        }
        phase = flow.control.phase();
    }
    Ok(())
}

fn transaction(flow: &Flow<'_>, message: &mut [u8]) -> Result<(), EngineError> {
    let stream = flow.connect(true)?;
    flow.write_all(&stream, message)?;
    flow.read_exact(&stream, message)?;
    // The server's FIN: without waiting for it, our close could come first.
    match flow.read(&stream, &mut [0])? {
        0 => Ok(()),
        _ => Err(EngineError::Socket {
            flow: flow.index,
            end: flow.end,
            operation: "recv past the response",
            stage: flow.stage(),
            errno: sys::errno::Errno::EPROTO,
        }),
    }
}

/// Serves connections, whichever flow they are of, until the load is done; of
/// `peer` only, where one is given.
pub(super) fn server(
    flow: &Flow<'_>,
    listener: &TcpListener,
    peer: Option<IpAddr>,
    report: &mut FlowReport,
) -> Result<(), EngineError> {
    // Closing a connection whose request has not come would look to the client
    // as if the server had hung up; it must be the first to lose patience.
    let patient = Load { setup_limit: flow.load.setup_limit * 2, ..flow.load.clone() };
    let flow = &Flow { load: &patient, ..*flow };
    let mut message = vec![0; flow.load.message_bytes as usize];
    flow.tally().ready.store(true, Ordering::Release);
    while !flow.control.is_done() {
        let stream = match listener.accept() {
            Ok((stream, from)) if serves(peer, from) => stream,
            Ok(_) => {
                *report.socket_errors.entry("stranger accept".into()).or_default() += 1;
                continue;
            }
            Err(e) if is_a_tick(&e) => continue,
            // The connection was gone before it was accepted.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionAborted => {
                report.count_error(errno_of(&e), "accept");
                continue;
            }
            Err(e) => return Err(flow.io_error(flow.stage(), "accept", &e)),
        };
        // A connection that breaks is the client's to report: it knows which
        // transaction it was, and whether it was one of its own at all.
        if let Err(error) = answer(flow, &stream, &mut message) {
            // The client hangs up when the load is over.
            if flow.control.is_done() {
                return Ok(());
            }
            *report.socket_errors.entry(format!("server: {error}")).or_default() += 1;
            continue;
        }
        flow.tally().units.add(1);
    }
    Ok(())
}

fn answer(flow: &Flow<'_>, stream: &TcpStream, message: &mut [u8]) -> Result<(), EngineError> {
    flow.read_exact(stream, message)?;
    flow.write_all(stream, message)
    // Dropping the stream sends the FIN, before the client's.
}
