//! `tcp_stream`: the client writes messages without pause, the server reads and counts. Traffic
//! continues over both ends of the measured interval; the server's counter is read at each.

use std::net::TcpStream;

use super::EngineError;
use super::control::Phase;
use super::flow::Flow;

/// Size of a read, bytes, as in iperf3. Larger buffers leave the L2 cache.
const READ_BYTES: usize = 128 * 1024;

/// Writes until the load is done. Calls `turn` with the phase before each message.
pub(super) fn send(
    flow: &Flow<'_>,
    stream: &TcpStream,
    mut turn: impl FnMut(Phase),
) -> Result<(), EngineError> {
    let message = vec![0; flow.load.message_bytes as usize];
    let mut phase = flow.control.wait_past(Phase::Setup);
    while phase != Phase::Done {
        turn(phase);
        flow.write_all(stream, &message)?;
        flow.tally().sent.add(1);
        phase = flow.control.phase();
    }
    Ok(())
}

/// Reads until the other end closes. Closing before the load is done is an error.
pub(super) fn receive(flow: &Flow<'_>, stream: &TcpStream) -> Result<(), EngineError> {
    let mut buffer = vec![0; READ_BYTES];
    flow.control.wait_past(Phase::Setup);
    while !flow.control.is_done() {
        match flow.read(stream, &mut buffer)? {
            // The client must keep the connection open until the load ends.
            0 => return Err(flow.closed()),
            n => flow.tally().bytes.add(n as u64),
        }
    }
    Ok(())
}
