//! `tcp_crr`: connect, request, response and close for every transaction.
//!
//! Each connection is complete (SYN, data, FIN both ways, no reset). The server closes first, so
//! that `TIME_WAIT` is on its side, where it takes no port. The client's port is free as soon as
//! its FIN is acknowledged, and the server's `TIME_WAIT` accepts a new SYN because of its later
//! timestamp (RFC 6191). A load can thus run for any time without running out of ports, also
//! behind NAT, where the client's port range bounds the conntrack entries.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Instant;

use hdrhistogram::Histogram;

use super::connection::is_a_tick;
use super::control::Phase;
use super::flow::{Flow, FlowReport, errno_of, latency_histogram};
use super::hello::serves;
use super::tcp_rr::nanos;
use super::{EngineError, Load};

/// Runs transactions until the load is done. The first one proves the path.
pub(super) fn client(flow: &Flow<'_>, report: &mut FlowReport) -> Result<(), EngineError> {
    let mut message = vec![0; flow.load.message_bytes as usize];
    if flow.load.ecn {
        // A connection of its own, since the proof would take part of a transaction's time.
        prove_ecn(flow, &mut message)?;
    }
    transaction(flow, &mut message, None)?;
    flow.tally().ready.store(true, Ordering::Release);
    let mut latency = latency_histogram();
    let outcome = run(flow, &mut message, &mut latency, report);
    report.latency = Some(latency);
    outcome
}

fn run(
    flow: &Flow<'_>,
    message: &mut [u8],
    latency: &mut Histogram<u64>,
    report: &mut FlowReport,
) -> Result<(), EngineError> {
    let mut phase = flow.control.wait_past(Phase::Setup);
    while phase != Phase::Done {
        let begun = Instant::now();
        flow.tally().sent.add(1);
        let counted = (flow.load.ecn && phase == Phase::Measure).then_some(&mut *report);
        transaction(flow, message, counted)?;
        flow.tally().units.add(1);
        if phase == Phase::Measure {
            latency.saturating_record(nanos(begun.elapsed()));
        }
        phase = flow.control.phase();
    }
    Ok(())
}

fn prove_ecn(flow: &Flow<'_>, message: &mut [u8]) -> Result<(), EngineError> {
    let stream = flow.connect(true)?;
    flow.prove_ecn(&stream)?;
    exchange(flow, &stream, message)
}

/// Runs a transaction, and adds its segments to the report if one is given.
fn transaction(
    flow: &Flow<'_>,
    message: &mut [u8],
    report: Option<&mut FlowReport>,
) -> Result<(), EngineError> {
    let stream = flow.connect(true)?;
    exchange(flow, &stream, message)?;
    // The response acknowledges the request, so its state is final.
    report.map_or(Ok(()), |report| Ok(report.count_connection(&stream)?))
}

fn exchange(flow: &Flow<'_>, stream: &TcpStream, message: &mut [u8]) -> Result<(), EngineError> {
    flow.write_all(stream, message)?;
    flow.read_exact(stream, message)?;
    // Wait for the server's FIN: otherwise this end could close first.
    match flow.read(stream, &mut [0])? {
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

/// Serves connections of all flows until the load is done, from `peer` only if it is given.
pub(super) fn server(
    flow: &Flow<'_>,
    listener: &TcpListener,
    peer: Option<IpAddr>,
    report: &mut FlowReport,
) -> Result<(), EngineError> {
    // Use a longer limit than the client: closing a connection while its request is missing
    // would look like a failed server.
    let patient = Load { setup_limit: flow.load.setup_limit * 2, ..flow.load.clone() };
    let flow = &Flow { load: &patient, ..*flow };
    let mut message = vec![0; flow.load.message_bytes as usize];
    flow.tally().ready.store(true, Ordering::Release);
    while !flow.control.is_done() {
        let stream = match listener.accept() {
            Ok((stream, from)) if serves(peer, from) => stream,
            Ok(_) => {
                // Another program connected: it is counted and closed.
                *report.socket_errors.entry("stranger accept".into()).or_default() += 1;
                continue;
            }
            Err(e) if is_a_tick(&e) => continue,
            // The connection was gone before accept.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionAborted => {
                report.count_error(errno_of(&e), "accept");
                continue;
            }
            Err(e) => return Err(flow.io_error(flow.stage(), "accept", &e)),
        };
        // Leave broken connections to the client: it knows the transaction, and whether the
        // connection was its own.
        if let Err(error) = answer(flow, &stream, &mut message) {
            // The client closes connections when the load is over.
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
