//! `tcp_rr`: request and response in turn on one connection, each timed; or
//! several requests under way, whose responses come in their order.

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

/// Read at once, at least.
const READ_BYTES: usize = 64 * 1024;

/// Asks until the load is done: one request at a time, or by a [`Pipe`].
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

/// Answers each request with as many bytes.
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

/// A duration for the histogram.
pub(super) fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A connection with several requests under way. It never waits to write while
/// there may be something to read: with both ends' buffers full, client and
/// server would wait for each other.
struct Pipelined<'a> {
    flow: &'a Flow<'a>,
    stream: &'a TcpStream,
    message: Vec<u8>,
    buffer: Vec<u8>,
    under_way: VecDeque<Request>,
    /// Bytes of the last request that the socket has not taken yet.
    unwritten: usize,
    /// Bytes of a response whose end has not come yet.
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

    /// Writes what is left of a request; false when the socket takes no more.
    fn write(&mut self) -> Result<bool, EngineError> {
        while self.unwritten > 0 {
            let from = self.message.len() - self.unwritten;
            match (&mut &*self.stream).write(&self.message[from..]) {
                Ok(n) => self.unwritten -= n,
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
            // Not begun: it stays due.
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
                while self.read >= self.message.len() {
                    self.read -= self.message.len();
                    // More than was asked for is nobody's answer.
                    let Some(request) = self.under_way.pop_front() else {
                        return Err(self.flow.error(
                            self.flow.stage(),
                            "recv past the response",
                            Errno::EPROTO,
                        ));
                    };
                    answered(request);
                }
                // A short read has emptied the socket.
                Ok(n == self.buffer.len())
            }
            Err(e) if is_a_tick(&e) => Ok(false),
            Err(e) => Err(self.flow.io_error(self.flow.stage(), "recv", &e)),
        }
    }

    fn under_way(&self) -> impl Iterator<Item = &Request> {
        self.under_way.iter()
    }

    /// Always `None`: TCP sends lost segments again, or fails.
    fn lost(&mut self, _: Instant) -> Option<Request> {
        None
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}
