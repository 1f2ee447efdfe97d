//! Bounded TCP operations: every read and write ends with its data, with an error, or when the
//! load ends.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sys::tcp::Connecting;

use super::control::TICK;
use super::flow::Flow;
use super::hello::{HELLO_BYTES, Hello, Kind};
use super::{EngineError, Stage};

/// Appended to the error if a connection ends before the first answer.
const PROXY_HINT: &str = ": it was accepted first, as by a proxy that cannot reach its server";

/// A wait for progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    since: Instant,
    /// Progress of the end's flows in the middle of the time limit.
    progress: Option<u64>,
}

impl Waiting {
    pub(super) fn since(since: Instant) -> Waiting {
        Waiting { since, progress: None }
    }

    /// Fails after the load's limit. A flow may wait for as long as another flow of this end makes
    /// progress: a starved flow is a result, and on a busy machine many flows take long to set up.
    pub(super) fn check(&mut self, flow: &Flow<'_>) -> Result<(), EngineError> {
        let waited = self.since.elapsed();
        let limit = flow.load.setup_limit;
        // Silence is judged only after half of the limit: a busy machine may pause a thread.
        if waited < limit / 2 {
            return Ok(());
        }
        // Counting all flows takes time, so it is done late.
        let then = *self.progress.get_or_insert_with(|| flow.progress());
        if waited < limit {
            return Ok(());
        }
        // The flow has moved since: the silence begins again.
        if then != flow.progress() {
            *self = Waiting::since(Instant::now());
            return Ok(());
        }
        let (flow, end, stage) = (flow.index, flow.end, flow.stage());
        Err(EngineError::Stalled { flow, end, waited, stage })
    }
}

impl Flow<'_> {
    /// Connects to the target. Transactions set `TCP_NODELAY`: Nagle's algorithm would delay the
    /// second segment of a request.
    pub fn connect(&self, nodelay: bool) -> Result<TcpStream, EngineError> {
        let failed = |(operation, errno)| self.error(Stage::Connect, operation, errno);
        let started = Instant::now();
        let options = self.load.tcp_options(nodelay);
        let mut connecting = Connecting::start(&self.address, &options).map_err(failed)?;
        while !connecting.wait(TICK).map_err(failed)? {
            // The load ended while connecting.
            if self.control.is_done() {
                return Err(EngineError::Stopped);
            }
            if started.elapsed() >= self.load.setup_limit {
                // SYNs are retransmitted within the limit; none was answered.
                return Err(EngineError::NoAnswer {
                    target: self.address,
                    stage: Stage::Connect,
                    waited: started.elapsed(),
                    detail: format!("flow {}: no answer to the SYN", self.index),
                });
            }
        }
        // Unreachable: the loop ends with a connection.
        connecting.into_stream().ok_or(EngineError::Stopped)
    }

    /// Fails if the load asks for ECN and the connection has not negotiated it.
    pub fn prove_ecn(&self, stream: &TcpStream) -> Result<(), EngineError> {
        if !self.load.ecn || sys::tcp::state(stream)?.ecn {
            return Ok(());
        }
        // The thread is in the client's namespace.
        let own = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_ecn");
        Err(EngineError::NoEcn { target: self.address, tcp_ecn: own.unwrap_or_default() })
    }

    /// Runs the client's side of the first exchange.
    pub fn say_hello(&self, stream: &TcpStream) -> Result<(), EngineError> {
        self.write_all(stream, &self.ask(HELLO_BYTES).emit())?;
        let mut bytes = [0; HELLO_BYTES];
        self.read_exact(stream, &mut bytes)?;
        match Hello::parse(&bytes) {
            Some(h) if h.kind == Kind::Answer && h.token == self.token && h.flow == self.index => {
                Ok(())
            }
            // Fail: figures would describe another program.
            _ => Err(EngineError::NoAnswer {
                target: self.address,
                stage: Stage::Hello,
                waited: std::time::Duration::ZERO,
                detail: "a program other than the load's server answered".into(),
            }),
        }
    }

    /// Fills the buffer. Fails if the other end closes.
    pub fn read_exact(&self, stream: &TcpStream, buffer: &mut [u8]) -> Result<(), EngineError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(stream, &mut buffer[filled..])? {
                // The other end must keep the connection open until the load ends.
                0 => return Err(self.closed()),
                n => filled += n,
            }
        }
        Ok(())
    }

    /// Reads some bytes; 0 if the other end has closed.
    pub fn read(&self, mut stream: &TcpStream, buffer: &mut [u8]) -> Result<usize, EngineError> {
        let mut waiting = None;
        loop {
            match stream.read(buffer) {
                Ok(n) => return Ok(n),
                Err(e) if is_a_tick(&e) => self.keep_waiting(&mut waiting)?,
                Err(e) => return Err(self.io_error(self.stage(), "recv", &e)),
            }
        }
    }

    pub fn write_all(&self, mut stream: &TcpStream, bytes: &[u8]) -> Result<(), EngineError> {
        let mut written = 0;
        let mut waiting = None;
        while written < bytes.len() {
            match stream.write(&bytes[written..]) {
                Ok(n) => {
                    written += n;
                    waiting = None;
                }
                Err(e) if is_a_tick(&e) => self.keep_waiting(&mut waiting)?,
                Err(e) => return Err(self.io_error(self.stage(), "send", &e)),
            }
        }
        Ok(())
    }

    /// Returns the error for an other end that closed during the load.
    pub fn closed(&self) -> EngineError {
        let stage = self.stage();
        EngineError::Closed {
            flow: self.index,
            end: self.end,
            stage,
            hint: if stage == Stage::Hello { PROXY_HINT } else { "" },
        }
    }

    /// Continues a wait, unless the load is over or the path has made no progress for too long.
    /// `waiting` is `None` at the first tick of a wait.
    pub fn keep_waiting(&self, waiting: &mut Option<Waiting>) -> Result<(), EngineError> {
        // Not a failure of the path: the load is over.
        if self.control.is_done() {
            return Err(EngineError::Stopped);
        }
        waiting.get_or_insert_with(|| Waiting::since(Instant::now())).check(self)
    }

    /// Returns a count that changes while any flow of this end makes progress.
    fn progress(&self) -> u64 {
        // The kernel accepts datagrams whether or not they arrive.
        let sent_counts = self.load.workload.is_tcp();
        self.control.tallies.iter().fold(0, |sum: u64, tally| {
            let sent = if sent_counts { tally.sent.get() } else { 0 };
            let ready = u64::from(tally.ready.load(Ordering::Acquire));
            let units = tally.units.get().wrapping_add(ready);
            sum.wrapping_add(units).wrapping_add(tally.bytes.get()).wrapping_add(sent)
        })
    }
}

/// Returns whether a read or write ended without a result: a timeout or a signal.
pub(super) fn is_a_tick(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
