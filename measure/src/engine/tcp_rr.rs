//! `tcp_rr`: request and response in turn on one connection, each timed.

use std::net::TcpStream;
use std::time::Instant;

use super::EngineError;
use super::control::Phase;
use super::flow::{Flow, FlowReport, latency_histogram};

/// Asks and waits for the answer until the load is done.
pub(super) fn client(
    flow: &Flow<'_>,
    stream: &TcpStream,
    report: &mut FlowReport,
) -> Result<(), EngineError> {
    let mut message = vec![0; flow.load.message_bytes as usize];
    let latency = report.latency.insert(latency_histogram());
    let mut phase = flow.control.wait_past(Phase::Setup);
    let mut begun = Instant::now();
    while phase != Phase::Done {
        flow.tally().sent.add(1);
        flow.write_all(stream, &message)?;
        flow.read_exact(stream, &mut message)?;
        let ended = Instant::now();
        flow.tally().units.add(1);
        if phase == Phase::Measure {
            latency.saturating_record(nanos(ended - begun));
        }
        begun = ended;
        phase = flow.control.phase();
    }
    Ok(())
}

/// Answers each request with as many bytes.
pub(super) fn server(flow: &Flow<'_>, stream: &TcpStream) -> Result<(), EngineError> {
    let mut message = vec![0; flow.load.message_bytes as usize];
    flow.control.wait_past(Phase::Setup);
    while !flow.control.is_done() {
        flow.read_exact(stream, &mut message)?;
        flow.write_all(stream, &message)?;
    }
    Ok(())
}

/// A duration for the histogram.
pub(super) fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
