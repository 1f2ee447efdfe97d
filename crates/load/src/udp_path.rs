//! Proof of a UDP path: hellos, repeated until they are answered, and the server's side of them.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sys::errno::Errno;

use super::connection::is_a_tick;
use super::control::{Control, TICK};
use super::flow::Flow;
use super::hello::{HELLO_BYTES, Hello, Kind, serves};
use super::{EngineError, Load, Stage};

/// First retry interval. Doubled with each try.
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// Maximum retry interval.
const LAST_RETRY: Duration = Duration::from_millis(200);

/// Maximum size of a datagram.
const LARGEST: usize = u16::MAX as usize;

impl Flow<'_> {
    /// Returns a socket connected to the target.
    pub fn open_udp(&self) -> Result<UdpSocket, EngineError> {
        let any: SocketAddr = if self.address.is_ipv4() {
            (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
        } else {
            (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
        };
        let failed = |operation, e: &std::io::Error| self.io_error(Stage::Connect, operation, e);
        let socket = UdpSocket::bind(any).map_err(|e| failed("bind", &e))?;
        if let Some(bytes) = self.load.buffer_bytes() {
            sys::buffers::set(&socket, bytes)
                .map_err(|(operation, errno)| self.error(Stage::Connect, operation, errno))?;
        }
        self.load
            .mark_datagrams(&socket, &self.address)
            .map_err(|(operation, errno)| self.error(Stage::Connect, operation, errno))?;
        socket.connect(self.address).map_err(|e| failed("connect", &e))?;
        socket.set_write_timeout(Some(TICK)).map_err(|e| failed("setsockopt", &e))?;
        Ok(socket)
    }

    /// Sends hellos until the server answers one of the load's message size. Returns the time until
    /// the answer. At the end a small hello is enough: a flood of fragments may leave the
    /// receiver's reassembly memory full, which is its result and not a broken path.
    pub fn prove_udp_path(
        &self,
        socket: &UdpSocket,
        stage: Stage,
    ) -> Result<Duration, EngineError> {
        let local = |e: &std::io::Error| self.io_error(stage, "setsockopt", e);
        // Only during the proof: under load it would turn a full queueing discipline into a socket
        // error, unlike in ordinary programs.
        sys::udp::set_report_icmp(socket, true)?;
        let answered = self.ask_until_answered(socket, stage)?;
        sys::udp::set_report_icmp(socket, false)?;
        socket.set_read_timeout(Some(TICK)).map_err(|e| local(&e))?;
        Ok(answered)
    }

    fn ask_until_answered(
        &self,
        socket: &UdpSocket,
        stage: Stage,
    ) -> Result<Duration, EngineError> {
        let size = match stage {
            Stage::Closing => HELLO_BYTES,
            _ => HELLO_BYTES.max(self.load.message_bytes as usize),
        };
        let mut question = vec![0; size];
        let mut buffer = vec![0; LARGEST];
        let (mut tries, mut small_answered) = (0, false);
        let mut wait = FIRST_RETRY;
        let begun = Instant::now();
        while begun.elapsed() < self.load.setup_limit {
            tries += 1;
            // The short hello serves the error message: if only the short one is answered, the
            // path has an MTU or fragment problem.
            for length in [HELLO_BYTES, size] {
                question[..HELLO_BYTES].copy_from_slice(&self.ask(length).emit());
                match socket.send(&question[..length]) {
                    Ok(_) => {}
                    Err(e) => self.tolerate(stage, "send", &e)?,
                }
            }
            let asked = Instant::now();
            while let Some(left) = wait.checked_sub(asked.elapsed()).filter(|left| !left.is_zero())
            {
                if self.control.is_done() {
                    return Err(EngineError::Stopped);
                }
                socket
                    .set_read_timeout(Some(left.min(TICK)))
                    .map_err(|e| self.io_error(stage, "setsockopt", &e))?;
                let read = match socket.recv(&mut buffer) {
                    Ok(n) => n,
                    Err(e) => {
                        // A lost answer or an ICMP error: ask again until the limit.
                        self.tolerate(stage, "recv", &e)?;
                        continue;
                    }
                };
                match Hello::parse(&buffer[..read]) {
                    Some(h)
                        if h.kind == Kind::Answer
                            && h.token == self.token
                            && h.flow == self.index =>
                    {
                        small_answered = true;
                        if h.length as usize == size {
                            return Ok(asked.elapsed());
                        }
                    }
                    // A late answer of earlier traffic.
                    _ => {}
                }
            }
            wait = (wait * 2).min(LAST_RETRY);
        }
        Err(EngineError::NoAnswer {
            target: self.address,
            stage,
            waited: begun.elapsed(),
            detail: if small_answered {
                format!(
                    "flow {}: datagrams of {HELLO_BYTES} bytes are answered, datagrams of {size} \
                     bytes are not (MTU, or fragments dropped?)",
                    self.index
                )
            } else {
                format!("flow {}: {tries} datagrams", self.index)
            },
        })
    }

    /// Ignores errors that a retry may resolve.
    fn tolerate(
        &self,
        stage: Stage,
        operation: &'static str,
        error: &std::io::Error,
    ) -> Result<(), EngineError> {
        match error.raw_os_error().map(Errno::from_raw) {
            // Nothing has arrived yet.
            _ if is_a_tick(error) => Ok(()),
            // ICMP "fragmentation needed": the route now knows the path MTU and fragments the next
            // datagram. ENOBUFS: a full queue.
            Some(Errno::EMSGSIZE) if operation == "recv" => Ok(()),
            Some(Errno::ENOBUFS) => Ok(()),
            _ => Err(self.io_error(stage, operation, error)),
        }
    }

    /// Answers the hello in `datagram` if it belongs to this flow. Returns whether it is a hello.
    pub fn answer_hello(&self, socket: &UdpSocket, datagram: &[u8]) -> bool {
        // Not a hello: the datagram belongs to the load.
        let Some(hello) = Hello::asked(datagram, self.token, self.load.flows) else {
            return false;
        };
        if hello.flow == self.index {
            // The client notices a lost or refused answer.
            let _ = socket.send(&hello.answer().emit());
        }
        true
    }
}

/// Assigns flows to the server's threads.
pub(super) struct Newcomers<'a> {
    pub listener: &'a UdpSocket,
    pub listen: SocketAddr,
    /// Only peer that is answered; `None`: any peer with the token.
    pub peer: Option<IpAddr>,
    pub taken: &'a [AtomicBool],
    pub load: &'a Load,
    pub token: u64,
    pub control: &'a Control,
}

impl Newcomers<'_> {
    /// Waits for the hello of a flow that has no thread yet. Returns the flow and a socket
    /// connected to the hello's source.
    pub fn next(&self) -> Result<(u32, UdpSocket), EngineError> {
        let local = |operation, e: &std::io::Error| {
            EngineError::Local(sys::Error::io(operation, format!("UDP {}", self.listen), e))
        };
        let mut buffer = vec![0; LARGEST];
        loop {
            if self.control.is_done() {
                // Ctrl-C must end the wait.
                return Err(EngineError::Stopped);
            }
            let (hello, peer) = match self.listener.recv_from(&mut buffer) {
                Ok((n, peer)) => match Hello::asked(&buffer[..n], self.token, self.load.flows) {
                    Some(hello) if serves(self.peer, peer) => (hello, peer),
                    // Do not answer late datagrams of other loads or foreign programs: the server
                    // must not reflect traffic.
                    _ => continue,
                },
                // No datagram within a tick: check whether to go on.
                Err(e) if is_a_tick(&e) => continue,
                Err(e) => return Err(local("recvfrom", &e)),
            };
            if self.taken[hello.flow as usize].swap(true, Ordering::AcqRel) {
                // A retry that was sent before the flow's own socket was connected. If this answer
                // is lost, the client retries.
                let _ = self.listener.send_to(&hello.answer().emit(), peer);
                continue;
            }
            let socket = sys::udp::bind_shared(self.listen)?;
            if let Some(bytes) = self.load.buffer_bytes() {
                sys::buffers::set(&socket, bytes).map_err(|(operation, errno)| {
                    sys::Error::new(operation, format!("UDP {}", self.listen), errno)
                })?;
            }
            self.load.mark_datagrams(&socket, &self.listen).map_err(|(operation, errno)| {
                sys::Error::new(operation, format!("UDP {}", self.listen), errno)
            })?;
            socket.connect(peer).map_err(|e| local("connect", &e))?;
            socket.set_read_timeout(Some(TICK)).map_err(|e| local("setsockopt", &e))?;
            socket.set_write_timeout(Some(TICK)).map_err(|e| local("setsockopt", &e))?;
            // If the answer is lost or refused, the client retries.
            let _ = socket.send(&hello.answer().emit());
            return Ok((hello.flow, socket));
        }
    }
}
