//! TCP with patience: every read and write ends with its data, with an error,
//! or when the load does.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use sys::tcp::Connecting;

use super::control::TICK;
use super::flow::Flow;
use super::hello::{HELLO_BYTES, Hello, Kind};
use super::{EngineError, Stage};

/// Said when a connection ends before the first answer.
const PROXY_HINT: &str = ": it was accepted first, as a proxy does whose server cannot be reached";

impl Flow<'_> {
    /// Connects to the target. `TCP_NODELAY` for transactions: Nagle's
    /// algorithm would hold back the second segment of a request.
    pub fn connect(&self, nodelay: bool) -> Result<TcpStream, EngineError> {
        let failed = |(operation, errno)| self.error(Stage::Connect, operation, errno);
        let started = Instant::now();
        let options = self.load.tcp_options(nodelay);
        let mut connecting = Connecting::start(&self.address, &options).map_err(failed)?;
        while !connecting.wait(TICK).map_err(failed)? {
            if self.control.is_done() {
                return Err(EngineError::Stopped);
            }
            if started.elapsed() >= self.load.setup_limit {
                return Err(EngineError::NoAnswer {
                    target: self.address,
                    stage: Stage::Connect,
                    waited: started.elapsed(),
                    detail: format!("flow {}: the SYN was not answered", self.index),
                });
            }
        }
        // Not reached: the loop ends with a connection.
        connecting.into_stream().ok_or(EngineError::Stopped)
    }

    /// The client's side of the first exchange.
    pub fn say_hello(&self, stream: &TcpStream) -> Result<(), EngineError> {
        self.write_all(stream, &self.ask(HELLO_BYTES).emit())?;
        let mut bytes = [0; HELLO_BYTES];
        self.read_exact(stream, &mut bytes)?;
        match Hello::parse(&bytes) {
            Some(h) if h.kind == Kind::Answer && h.token == self.token && h.flow == self.index => {
                Ok(())
            }
            // Figures would be those of whatever has answered.
            _ => Err(EngineError::NoAnswer {
                target: self.address,
                stage: Stage::Hello,
                waited: std::time::Duration::ZERO,
                detail: "something else than the load's server answered".into(),
            }),
        }
    }

    /// Fills the buffer; the other end closing is an error.
    pub fn read_exact(&self, stream: &TcpStream, buffer: &mut [u8]) -> Result<(), EngineError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(stream, &mut buffer[filled..])? {
                0 => return Err(self.closed()),
                n => filled += n,
            }
        }
        Ok(())
    }

    /// Reads something; 0 when the other end has closed.
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

    /// Writes all of the bytes.
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

    /// The other end closed although the load goes on.
    pub fn closed(&self) -> EngineError {
        let stage = self.stage();
        EngineError::Closed {
            flow: self.index,
            end: self.end,
            stage,
            hint: if stage == Stage::Hello { PROXY_HINT } else { "" },
        }
    }

    /// Goes on waiting, unless the load is over or the flow has stood still for
    /// too long. `since` is `None` at the first tick of a wait.
    pub fn keep_waiting(&self, since: &mut Option<Instant>) -> Result<(), EngineError> {
        if self.control.is_done() {
            return Err(EngineError::Stopped);
        }
        let since = *since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.load.setup_limit {
            return Ok(());
        }
        Err(EngineError::Stalled {
            flow: self.index,
            end: self.end,
            waited: since.elapsed(),
            stage: self.stage(),
        })
    }
}

/// Whether a socket's time limit ran out, or a signal came: nothing happened.
pub(super) fn is_a_tick(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
