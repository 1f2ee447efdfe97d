//! Proving a UDP path: hellos, sent again until they are answered, and the
//! server's side of it.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sys::errno::Errno;

use super::connection::is_a_tick;
use super::control::{Control, TICK};
use super::flow::Flow;
use super::hello::{HELLO_BYTES, Hello, Kind, serves};
use super::{EngineError, Load, Stage};

/// First wait for an answer; doubled with each try.
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// Longest wait before asking again.
const LAST_RETRY: Duration = Duration::from_millis(200);

/// Largest datagram there is.
const LARGEST: usize = u16::MAX as usize;

impl Flow<'_> {
    /// A socket connected to the target.
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
        socket.connect(self.address).map_err(|e| failed("connect", &e))?;
        socket.set_write_timeout(Some(TICK)).map_err(|e| failed("setsockopt", &e))?;
        Ok(socket)
    }

    /// Asks until the server answers a datagram of the load's message size, and
    /// returns how long the answer took. At the end a small one does: a flood of
    /// fragments leaves the receiver's memory for them full, and that is its result,
    /// not a path that broke.
    pub fn prove_udp_path(
        &self,
        socket: &UdpSocket,
        stage: Stage,
    ) -> Result<Duration, EngineError> {
        let local = |e: &std::io::Error| self.io_error(stage, "setsockopt", e);
        // Only here: under load it would make a full queueing discipline an
        // error of the socket, as it is for no other program.
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
            // The short one is for the error message: a path that carries it
            // and not the long one has an MTU or fragment problem.
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
                    // A late answer of the traffic before.
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
                    "flow {}: datagrams of {HELLO_BYTES} bytes are answered, those of {size} \
                     bytes are not (MTU, or fragments dropped?)",
                    self.index
                )
            } else {
                format!("flow {}: {tries} datagrams", self.index)
            },
        })
    }

    /// Lets pass what asking again may cure.
    fn tolerate(
        &self,
        stage: Stage,
        operation: &'static str,
        error: &std::io::Error,
    ) -> Result<(), EngineError> {
        match error.raw_os_error().map(Errno::from_raw) {
            _ if is_a_tick(error) => Ok(()),
            // ICMP "fragmentation needed": the route has learned the path MTU,
            // the next one is cut to it. ENOBUFS: a full queue.
            Some(Errno::EMSGSIZE) if operation == "recv" => Ok(()),
            Some(Errno::ENOBUFS) => Ok(()),
            _ => Err(self.io_error(stage, operation, error)),
        }
    }

    /// Answers the hello in `datagram`, when it is one of this flow.
    pub fn answer_hello(&self, socket: &UdpSocket, datagram: &[u8]) -> bool {
        let Some(hello) = Hello::asked(datagram, self.token, self.load.flows) else {
            return false;
        };
        if hello.flow == self.index {
            // A lost or refused answer is the client's to notice.
            let _ = socket.send(&hello.answer().emit());
        }
        true
    }
}

/// Where a server's threads take their flows from.
pub(super) struct Newcomers<'a> {
    pub listener: &'a UdpSocket,
    pub listen: SocketAddr,
    /// The only one that is answered; `None`: anyone who knows the token.
    pub peer: Option<IpAddr>,
    pub taken: &'a [AtomicBool],
    pub load: &'a Load,
    pub token: u64,
    pub control: &'a Control,
}

impl Newcomers<'_> {
    /// Waits for the hello of a flow that no other thread serves; returns the
    /// flow and a socket connected to where it came from.
    pub fn next(&self) -> Result<(u32, UdpSocket), EngineError> {
        let local = |operation, e: &std::io::Error| {
            EngineError::Local(sys::Error::io(operation, format!("UDP {}", self.listen), e))
        };
        let mut buffer = vec![0; LARGEST];
        loop {
            if self.control.is_done() {
                return Err(EngineError::Stopped);
            }
            let (hello, peer) = match self.listener.recv_from(&mut buffer) {
                Ok((n, peer)) => match Hello::asked(&buffer[..n], self.token, self.load.flows) {
                    Some(hello) if serves(self.peer, peer) => (hello, peer),
                    // Late datagrams of other loads, and strangers', get no answer: nobody is
                    // flooded from here.
                    _ => continue,
                },
                Err(e) if is_a_tick(&e) => continue,
                Err(e) => return Err(local("recvfrom", &e)),
            };
            if self.taken[hello.flow as usize].swap(true, Ordering::AcqRel) {
                // Asked again before the flow's own socket was connected.
                // Where it is lost or refused, the client asks again.
                let _ = self.listener.send_to(&hello.answer().emit(), peer);
                continue;
            }
            let socket = sys::udp::bind_shared(self.listen)?;
            if let Some(bytes) = self.load.buffer_bytes() {
                sys::buffers::set(&socket, bytes).map_err(|(operation, errno)| {
                    sys::Error::new(operation, format!("UDP {}", self.listen), errno)
                })?;
            }
            socket.connect(peer).map_err(|e| local("connect", &e))?;
            socket.set_read_timeout(Some(TICK)).map_err(|e| local("setsockopt", &e))?;
            socket.set_write_timeout(Some(TICK)).map_err(|e| local("setsockopt", &e))?;
            // Where it is lost or refused, the client asks again.
            let _ = socket.send(&hello.answer().emit());
            return Ok((hello.flow, socket));
        }
    }
}
