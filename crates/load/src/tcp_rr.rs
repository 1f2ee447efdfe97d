//! `tcp_rr`: alternating requests and responses on one connection, each pair timed; or several
//! requests in flight, whose responses arrive in order.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use sys::errno::Errno;

use super::EngineError;
use super::connection::is_a_tick;
use super::control::Phase;
use super::flow::{Flow, FlowReport, latency_histogram};
use super::pipeline::{Pipe, drive};
use super::window::Request;

/// Minimum size of a read, bytes.
const READ_BYTES: usize = 64 * 1024;

/// Sends requests until the load is done: one at a time, or by a [`Pipe`].
pub(super) fn client(
    flow: &Flow<'_>,
    stream: &TcpStream,
    report: &mut FlowReport,
) -> Result<(), EngineError> {
    if flow.load.is_pipelined() {
        return drive(flow, &mut Pipelined::new(flow, stream)?, report);
    }
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
        begun = flow.rested(ended);
        phase = flow.control.phase();
    }
    Ok(())
}

/// Answers each request with the same number of bytes.
pub(super) fn server(flow: &Flow<'_>, stream: &TcpStream) -> Result<(), EngineError> {
    let mut message = vec![0; flow.load.message_bytes as usize];
    flow.control.wait_past(Phase::Setup);
    while !flow.control.is_done() {
        flow.read_exact(stream, &mut message)?;
        flow.stand_still();
        flow.write_all(stream, &message)?;
    }
    Ok(())
}

/// Converts a duration for the histogram.
pub(super) fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A connection with several requests in flight. It never blocks on a write while data may be
/// readable: with both ends' buffers full, client and server would deadlock.
struct Pipelined<'a> {
    flow: &'a Flow<'a>,
    stream: &'a TcpStream,
    message: Vec<u8>,
    buffer: Vec<u8>,
    under_way: VecDeque<Request>,
    /// Bytes of the last request that the socket has not accepted yet.
    unwritten: usize,
    /// Bytes received of an incomplete response.
    read: usize,
}

impl<'a> Pipelined<'a> {
    fn new(flow: &'a Flow<'a>, stream: &'a TcpStream) -> Result<Pipelined<'a>, EngineError> {
        stream.set_nonblocking(true).map_err(|e| flow.io_error(flow.stage(), "fcntl", &e))?;
        let message = vec![0; flow.load.message_bytes as usize];
        let buffer = vec![0; message.len().max(READ_BYTES)];
        let under_way = VecDeque::with_capacity(flow.load.outstanding as usize);
        Ok(Pipelined { flow, stream, message, buffer, under_way, unwritten: 0, read: 0 })
    }

    /// Writes the rest of a request; false if the socket accepts no more.
    fn write(&mut self) -> Result<bool, EngineError> {
        while self.unwritten > 0 {
            let from = self.message.len() - self.unwritten;
            match (&mut &*self.stream).write(&self.message[from..]) {
                Ok(n) => self.unwritten -= n,
                // The socket's buffer is full for a tick: the rest is written later.
                Err(e) if is_a_tick(&e) => return Ok(false),
                Err(e) => return Err(self.flow.io_error(self.flow.stage(), "send", &e)),
            }
        }
        Ok(true)
    }
}

impl Pipe for Pipelined<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn has_room(&self) -> bool {
        self.under_way.len() < self.flow.load.outstanding as usize
    }

    fn send(&mut self, request: Request, report: &mut FlowReport) -> Result<bool, EngineError> {
        if !self.write()? {
            return Ok(false);
        }
        self.unwritten = self.message.len();
        if !self.write()? {
            report.count_error(Errno::EAGAIN, "send");
        }
        if self.unwritten == self.message.len() {
            // Nothing was written: the request stays due.
            self.unwritten = 0;
            return Ok(false);
        }
        self.under_way.push_back(request);
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, EngineError> {
        self.write()
    }

    fn receive(
        &mut self,
        _: &mut FlowReport,
        answered: &mut dyn FnMut(Request),
    ) -> Result<bool, EngineError> {
        match (&mut &*self.stream).read(&mut self.buffer) {
            Ok(0) => Err(self.flow.closed()),
            Ok(n) => {
                self.read += n;
                // One read may contain several responses.
                while self.read >= self.message.len() {
                    self.read -= self.message.len();
                    // More data than was requested is a protocol error.
                    let Some(request) = self.under_way.pop_front() else {
                        return Err(self.flow.error(
                            self.flow.stage(),
                            "recv past the response",
                            Errno::EPROTO,
                        ));
                    };
                    answered(request);
                }
                // A short read means that the socket is empty.
                Ok(n == self.buffer.len())
            }
            Err(e) if is_a_tick(&e) => Ok(false),
            Err(e) => Err(self.flow.io_error(self.flow.stage(), "recv", &e)),
        }
    }

    fn under_way(&self) -> impl Iterator<Item = &Request> {
        self.under_way.iter()
    }

    /// Always `None`: TCP retransmits, or the connection fails.
    fn lost(&mut self, _: Instant) -> Option<Request> {
        None
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}
