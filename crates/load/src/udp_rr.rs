//! `udp_rr`: one datagram each way, in turn, each pair timed. A pair that takes too long counts
//! as lost, and the next one begins. A number in the datagram identifies late answers. In
//! datagrams too short for a number, the socket is emptied first.
//!
//! With several requests in flight, or on a schedule, the number also assigns answers to requests
//! ([`Window`]). A lost request counts as loss and has no latency: percentiles are computed from
//! the answers that arrived.

use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use results::EcnCounts;
use sys::errno::Errno;
use sys::udp::{Codepoints, ReceiveBatch};

use super::connection::is_a_tick;
use super::control::{Phase, TICK};
use super::flow::{Flow, FlowReport, errno_of, latency_histogram};
use super::pipeline::{Pipe, drive};
use super::tcp_rr::nanos;
use super::window::{Request, Window};
use super::{EngineError, Stage};

/// A pair counts as lost after this multiple of the first answer's time,
const LOST_AFTER: u32 = 20;
/// but not before this time,
const LOST_SOONEST: Duration = Duration::from_millis(200);
/// and at the latest after this time.
const LOST_LATEST: Duration = Duration::from_secs(1);

/// Length of the number in a datagram, bytes.
const NUMBER_BYTES: usize = 8;

/// Requested receive buffer for pipelined requests, bytes: room for the backlog while the other
/// end waits for its CPU.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Sends requests and waits for answers until the load is done.
pub(super) fn client(flow: &Flow<'_>, report: &mut FlowReport) -> Result<(), EngineError> {
    let socket = flow.open_udp()?;
    let first = flow.prove_udp_path(&socket, Stage::Hello)?;
    let lost_after = (first * LOST_AFTER).clamp(LOST_SOONEST, LOST_LATEST);
    if flow.load.is_pipelined() {
        make_room(flow, &socket)?;
        let mut pipe = Pipelined::new(flow, &socket, lost_after)?;
        flow.tally().ready.store(true, Ordering::Release);
        return drive(flow, &mut pipe, report);
    }
    let mut asker = Asker {
        flow,
        socket: &socket,
        lost_after,
        message: vec![0; flow.load.message_bytes as usize],
        answer: vec![0; usize::from(u16::MAX)],
        number: 0,
    };
    flow.tally().ready.store(true, Ordering::Release);
    let mut latency = latency_histogram();
    let outcome = asker.run(&mut latency, report);
    report.latency = Some(latency);
    outcome
}

struct Asker<'a> {
    flow: &'a Flow<'a>,
    socket: &'a UdpSocket,
    lost_after: Duration,
    message: Vec<u8>,
    answer: Vec<u8>,
    number: u64,
}

impl Asker<'_> {
    fn run(
        &mut self,
        latency: &mut hdrhistogram::Histogram<u64>,
        report: &mut FlowReport,
    ) -> Result<(), EngineError> {
        let tally = self.flow.tally();
        let mut standing_still = None;
        let mut phase = self.flow.control.wait_past(Phase::Setup);
        let mut begun = Instant::now();
        while phase != Phase::Done {
            let answered = self.ask(report)?;
            let ended = Instant::now();
            // Count both at once, so that a pair in flight is neither sent nor lost.
            tally.sent.add(1);
            if answered {
                tally.units.add(1);
                if phase == Phase::Measure {
                    latency.saturating_record(nanos(ended - begun));
                }
                standing_still = None;
            } else {
                self.flow.keep_waiting(&mut standing_still)?;
                self.empty_the_socket();
            }
            begun = self.flow.rested(ended);
            phase = self.flow.control.phase();
        }
        Ok(())
    }

    /// Runs one pair; false if it is lost.
    fn ask(&mut self, report: &mut FlowReport) -> Result<bool, EngineError> {
        self.number += 1;
        let numbered = self.message.first_chunk_mut::<NUMBER_BYTES>().map(|place| {
            *place = self.number.to_le_bytes();
        });
        match self.socket.send(&self.message) {
            Ok(_) => {}
            // The kernel did not accept it in time: count it as a lost pair.
            Err(e) if is_a_tick(&e) => return Ok(false),
            Err(e) if errno_of(&e) == Errno::ENOBUFS => {
                report.count_error(Errno::ENOBUFS, "send");
                return Ok(false);
            }
            Err(e) => return Err(self.flow.io_error(self.flow.stage(), "send", &e)),
        }
        let mut waiting: Option<Instant> = None;
        loop {
            match self.socket.recv(&mut self.answer) {
                Ok(n) if n != self.message.len() => {} // Late answer to a hello.
                Ok(_) if numbered.is_none() => return Ok(true),
                Ok(_) if self.answer.first_chunk() == Some(&self.number.to_le_bytes()) => {
                    return Ok(true);
                }
                Ok(_) => {} // Late answer to a pair that counts as lost.
                // A lost answer must not end the flow: ask again after the limit.
                Err(e) if is_a_tick(&e) => {
                    if self.flow.control.is_done() {
                        return Err(EngineError::Stopped);
                    }
                    // The first tick has already passed.
                    let since = *waiting.get_or_insert_with(|| Instant::now() - TICK);
                    if since.elapsed() >= self.lost_after {
                        return Ok(false);
                    }
                }
                Err(e) => return Err(self.flow.io_error(self.flow.stage(), "recv", &e)),
            }
        }
    }

    fn empty_the_socket(&self) {
        let mut batch = ReceiveBatch::new(1, false);
        while batch.receive(self.socket).is_ok() {}
    }
}

/// Enlarges the socket's queue, unless a buffer size was requested.
fn make_room(flow: &Flow<'_>, socket: &UdpSocket) -> Result<(), EngineError> {
    if flow.load.socket_buffer_bytes.is_none() {
        sys::udp::set_receive_buffer(socket, RECEIVE_BUFFER)?;
    }
    Ok(())
}

/// A socket with several requests in flight.
struct Pipelined<'a> {
    flow: &'a Flow<'a>,
    socket: &'a UdpSocket,
    window: Window,
    message: Vec<u8>,
    answer: Vec<u8>,
}

impl<'a> Pipelined<'a> {
    fn new(
        flow: &'a Flow<'a>,
        socket: &'a UdpSocket,
        lost_after: Duration,
    ) -> Result<Pipelined<'a>, EngineError> {
        socket.set_nonblocking(true).map_err(|e| flow.io_error(flow.stage(), "fcntl", &e))?;
        let message = vec![0; flow.load.message_bytes as usize];
        let bound = flow.load.outstanding as usize;
        let window = Window::new(message.len(), bound, lost_after);
        let answer = vec![0; usize::from(u16::MAX)];
        Ok(Pipelined { flow, socket, window, message, answer })
    }
}

impl Pipe for Pipelined<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn has_room(&self) -> bool {
        self.window.has_room()
    }

    fn send(&mut self, request: Request, report: &mut FlowReport) -> Result<bool, EngineError> {
        self.window.number(&mut self.message);
        match self.socket.send(&self.message) {
            Ok(_) => {}
            // The socket's buffer is full: the request stays due.
            Err(e) if is_a_tick(&e) => {
                report.count_error(Errno::EAGAIN, "send");
                return Ok(false);
            }
            // Dropped by the local queue: it counts as lost like any other.
            Err(e) if errno_of(&e) == Errno::ENOBUFS => report.count_error(Errno::ENOBUFS, "send"),
            Err(e) => return Err(self.flow.io_error(self.flow.stage(), "send", &e)),
        }
        self.window.push(request);
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn receive(
        &mut self,
        _: &mut FlowReport,
        answered: &mut dyn FnMut(Request),
    ) -> Result<bool, EngineError> {
        match self.socket.recv(&mut self.answer) {
            Ok(n) => {
                // Other datagrams are late answers to hellos or lost requests.
                if n == self.message.len()
                    && let Some(request) = self.window.answer(&self.answer[..n])
                {
                    answered(request);
                }
                Ok(true)
            }
            Err(e) if is_a_tick(&e) => Ok(false),
            Err(e) => Err(self.flow.io_error(self.flow.stage(), "recv", &e)),
        }
    }

    fn under_way(&self) -> impl Iterator<Item = &Request> {
        self.window.under_way()
    }

    fn lost(&mut self, now: Instant) -> Option<Request> {
        self.window.lost(now)
    }

    fn deadline(&self) -> Option<Instant> {
        self.window.deadline()
    }
}

/// Returns every datagram, and answers hellos.
pub(super) fn server(
    flow: &Flow<'_>,
    socket: &UdpSocket,
    report: &mut FlowReport,
) -> Result<(), EngineError> {
    if flow.load.is_pipelined() {
        make_room(flow, socket)?;
    }
    if flow.load.ecn {
        sys::udp::set_receive_ecn(socket)?;
        report.ecn = Some(EcnCounts::default());
    }
    let mut buffer = vec![0; usize::from(u16::MAX)];
    flow.tally().ready.store(true, Ordering::Release);
    while !flow.control.is_done() {
        let received = match flow.load.ecn {
            true => sys::udp::receive_with_ecn(socket, &mut buffer),
            false => socket.recv(&mut buffer).map(|n| (n, Codepoints::default())),
        };
        let (read, codepoint) = match received {
            Ok(received) => received,
            Err(e) if is_a_tick(&e) => continue,
            // An ICMP error about an earlier answer. The client notices the loss.
            Err(e) => {
                report.count_error(errno_of(&e), "recv");
                continue;
            }
        };
        // A hello of the set-up came late; it is no request.
        if flow.answer_hello(socket, &buffer[..read]) {
            continue;
        }
        if flow.load.ecn && flow.control.phase() == Phase::Measure {
            report.count_datagrams(codepoint);
        }
        flow.stand_still();
        match socket.send(&buffer[..read]) {
            Ok(n) => {
                flow.tally().units.add(1);
                flow.tally().bytes.add(n as u64);
            }
            // An answer that cannot be sent is a lost pair at the client.
            Err(e) => report.count_error(errno_of(&e), "send"),
        }
    }
    Ok(())
}
