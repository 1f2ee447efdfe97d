//! `udp_stream`: datagrams in one direction, in batches without pause, or paced.
//!
//! Measures that keep the generator cheaper than the path:
//! - one `sendmmsg` per batch, with headers and payload prepared once, on a connected socket (no
//!   route lookup);
//! - a server socket connected to each flow's source, which the kernel finds by early demux,
//!   without a route lookup per datagram;
//! - a server that never sleeps *on the socket*: the sender's kernel would have to wake it by an
//!   inter-processor interrupt per datagram. It reads what is queued, then sleeps for a time in
//!   which its buffer cannot fill up.
//!
//! A numbered sender writes the beginning of each datagram, and its receiver reads it
//! ([`super::arrivals`]).
//!
//! With `gso` the sender sends GSO packets (`UDP_SEGMENT`) and the receiver accepts them whole
//! (`UDP_GRO`), unless a device on the way segments them.

use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use results::EcnCounts;
use sys::errno::Errno;
use sys::udp::{MAX_PAYLOAD, MAX_SEGMENTS, ReceiveBatch, SendBatch};

use super::arrivals::{self, Arriving};
use super::control::Phase;
use super::flow::{Flow, FlowReport};
use super::pace::Pacer;
use super::{EngineError, Stage};

/// Messages per batch, in both directions.
const BATCH: usize = 64;
/// Maximum payload of a batch, bytes. Bounds the time until the sender notices a new phase.
const BATCH_BYTES: usize = 256 * 1024;
/// Requested receive buffer of the server per flow, bytes: about 40 ms of small datagrams, for a
/// thread that has to wait for its CPU.
const RECEIVE_BUFFER: usize = 16 << 20;
/// Approximate kernel memory per queued datagram: `struct sk_buff`, `struct skb_shared_info` and
/// headroom, rounded up by the allocator.
const SKB_OVERHEAD: u64 = 1024;
/// Maximum sleep of the server between reading rounds.
const LONGEST_SLEEP: Duration = Duration::from_micros(500);
/// Minimum sleep. A shorter sleep costs more than it saves.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// Rounds in a row between checks of the phase.
const ROUNDS: usize = 16;
/// Pause after the kernel was out of memory or queue space.
const BACK_OFF: Duration = Duration::from_micros(50);

/// Sends in the traffic phases, and proves the path before and after.
pub(super) fn client(flow: &Flow<'_>, report: &mut FlowReport) -> Result<(), EngineError> {
    let socket = flow.open_udp()?;
    flow.prove_udp_path(&socket, Stage::Hello)?;
    let mut sender = Sender::new(flow, socket)?;
    flow.tally().ready.store(true, Ordering::Release);
    let mut phase = flow.control.wait_past(Phase::Setup);
    loop {
        match phase {
            Phase::Warmup | Phase::Measure => sender.send_during(phase, flow, report)?,
            Phase::Closing => {
                sender.cut(flow, false)?;
                flow.prove_udp_path(&sender.socket, Stage::Closing)?;
            }
            Phase::Done => return Ok(()),
            Phase::Setup | Phase::Settle | Phase::Drain => {}
        }
        flow.tally().reach(phase);
        phase = flow.control.wait_past(phase);
    }
}

struct Sender {
    socket: UdpSocket,
    batch: SendBatch,
    /// Datagrams per message of the batch.
    segments: u64,
    /// Messages per second of this flow, if paced.
    per_s: Option<f64>,
    /// Number of the next datagram, if they are numbered.
    number: Option<u64>,
}

impl Sender {
    fn new(flow: &Flow<'_>, socket: UdpSocket) -> Result<Sender, EngineError> {
        let size = flow.load.message_bytes as usize;
        let segments = if flow.load.gso { (MAX_PAYLOAD / size).clamp(1, MAX_SEGMENTS) } else { 1 };
        let message = vec![0; size * segments].into_boxed_slice();
        let messages = (BATCH_BYTES / message.len()).clamp(1, BATCH);
        let per_s = flow
            .load
            .datagrams_per_s
            .map(|rate| rate as f64 / f64::from(flow.load.flows) / segments as f64);
        if per_s.is_some() {
            // Reduce the timer slack: the default would wake the sender 50 µs late.
            sys::affinity::set_timer_slack(1_000)?;
        }
        let batch = match flow.load.numbered {
            true => SendBatch::with_heads(message, messages),
            false => SendBatch::new(message, messages),
        };
        let number = flow.load.numbered.then_some(0);
        let sender = Sender { socket, batch, segments: segments as u64, per_s, number };
        sender.cut(flow, flow.load.gso)?;
        Ok(sender)
    }

    /// Switches `UDP_SEGMENT` on or off. Hellos must not be segmented.
    fn cut(&self, flow: &Flow<'_>, on: bool) -> Result<(), EngineError> {
        if flow.load.gso {
            let segment = if on { flow.load.message_bytes as u16 } else { 0 };
            sys::udp::set_segment_bytes(&self.socket, segment)?;
        }
        Ok(())
    }

    fn send_during(
        &mut self,
        phase: Phase,
        flow: &Flow<'_>,
        report: &mut FlowReport,
    ) -> Result<(), EngineError> {
        let tally = flow.tally();
        let share = f64::from(flow.index) / f64::from(flow.load.flows);
        let mut pacer = self.per_s.map(|per_s| Pacer::new(per_s, share, self.batch.capacity()));
        loop {
            if flow.control.phase() != phase && !pacer.as_mut().is_some_and(Pacer::winding_up) {
                break;
            }
            let count = match &mut pacer {
                None => self.batch.capacity(),
                Some(pacer) => match pacer.take() {
                    // Nothing is due yet. `take` has waited, so check the phase again.
                    0 => continue,
                    count => count,
                },
            };
            if let Some(number) = self.number {
                let now = now_ns();
                for (message, number) in (0..count).zip(number..) {
                    self.batch.set_head(message, arrivals::head(number, now));
                }
            }
            match self.batch.send(&self.socket, count) {
                Ok(sent) => {
                    self.number = self.number.map(|number| number + sent as u64);
                    tally.sent.add(sent as u64 * self.segments);
                    if let Some(pacer) = &mut pacer {
                        pacer.sent(sent);
                    }
                }
                Err(Errno::EINTR) => {}
                // The socket's time limit: the device applies backpressure.
                Err(errno @ Errno::EAGAIN) => report.count_error(errno, "sendmmsg"),
                Err(errno @ (Errno::ENOBUFS | Errno::ENOMEM)) => {
                    report.count_error(errno, "sendmmsg");
                    std::thread::sleep(BACK_OFF);
                }
                Err(errno) => return Err(self.refused(flow, errno)),
            }
        }
        if phase == Phase::Measure {
            report.kept = pacer.map(Pacer::kept);
            report.units_per_message = self.segments;
        }
        Ok(())
    }

    fn refused(&self, flow: &Flow<'_>, errno: Errno) -> EngineError {
        let reason = match errno {
            // udp_send_skb: headers and segment exceed the route's MTU.
            Errno::EINVAL | Errno::EMSGSIZE => "a segment with its headers must fit the path's MTU",
            Errno::EIO => "the outgoing device has no transmit checksum offload",
            _ => return flow.error(Stage::Traffic, "sendmmsg", errno),
        };
        if !flow.load.gso {
            return flow.error(Stage::Traffic, "sendmmsg", errno);
        }
        EngineError::Gso { message_bytes: flow.load.message_bytes, reason, errno }
    }
}

/// Time of CLOCK_REALTIME, as of the kernel's times of arrival.
fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Counts in the traffic phases, and answers hellos before and after.
pub(super) fn server(
    flow: &Flow<'_>,
    socket: &UdpSocket,
    report: &mut FlowReport,
) -> Result<(), EngineError> {
    // A requested size is already set. The kernel accounts twice the size.
    let granted = match flow.load.socket_buffer_bytes {
        Some(_) => {
            sys::buffers::of(socket).map_err(|(o, e)| flow.error(Stage::Hello, o, e))?.receive * 2
        }
        None => sys::udp::set_receive_buffer(socket, RECEIVE_BUFFER)?,
    };
    if flow.load.socket_buffer_bytes.is_none() && granted < RECEIVE_BUFFER {
        report.notes.push(format!(
            "UDP receive buffer of {granted} bytes (net.core.rmem_max without CAP_NET_ADMIN): the \
             socket loses larger bursts"
        ));
    }
    if flow.load.gso {
        sys::udp::set_gro(socket)?;
    }
    if flow.load.numbered {
        sys::udp::set_arrival_times(socket)?;
    }
    if flow.load.ecn {
        sys::udp::set_receive_ecn(socket)?;
    }
    // The default slack would triple the shortest sleep.
    sys::affinity::set_timer_slack(1_000)?;
    let batch = match flow.load.numbered {
        true => ReceiveBatch::with_heads(BATCH),
        false => ReceiveBatch::new(BATCH, flow.load.gso),
    };
    let mut receiver = Receiver {
        batch: if flow.load.ecn { batch.counting_ecn() } else { batch },
        sleep: SHORTEST_SLEEP,
        room: granted as u64,
        arriving: flow.load.numbered.then(Arriving::default),
    };
    report.ecn = flow.load.ecn.then(EcnCounts::default);
    flow.tally().ready.store(true, Ordering::Release);
    let mut head = [0; super::hello::HELLO_BYTES];
    loop {
        match flow.control.phase() {
            Phase::Done => {
                report.arrivals = receiver.arriving.as_ref().map(Arriving::report);
                return Ok(());
            }
            Phase::Setup | Phase::Closing => match socket.peek(&mut head) {
                Ok(n) if flow.answer_hello(socket, &head[..n]) => {
                    // Remove it from the queue; the length does not matter.
                    let _ = socket.recv(&mut head);
                }
                Ok(_) => {
                    receiver.round(flow, socket, report)?;
                }
                Err(e) if super::connection::is_a_tick(&e) => {}
                // An ICMP error about an answer to a hello: the client retries.
                Err(e) => report.count_error(super::flow::errno_of(&e), "recv"),
            },
            Phase::Warmup | Phase::Settle | Phase::Measure | Phase::Drain => {
                let read = receiver.rounds(flow, socket, report)?;
                receiver.rest(read);
            }
        }
    }
}

struct Receiver {
    batch: ReceiveBatch,
    sleep: Duration,
    /// Kernel memory that the socket may queue, bytes.
    room: u64,
    /// Arrivals of numbered datagrams in the measured interval.
    arriving: Option<Arriving>,
}

/// Result of reading between two sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Read {
    /// Approximate kernel memory of the datagrams read, bytes.
    memory: u64,
    /// Whether the queue was empty at the end.
    emptied: bool,
}

impl Receiver {
    /// Reads until the queue is empty, at most [`ROUNDS`] times.
    fn rounds(
        &mut self,
        flow: &Flow<'_>,
        socket: &UdpSocket,
        report: &mut FlowReport,
    ) -> Result<Read, EngineError> {
        let mut read = Read::default();
        for _ in 0..ROUNDS {
            let round = self.round(flow, socket, report)?;
            read.memory += round.memory;
            read.emptied = round.emptied;
            // The socket is empty: the datagrams of this round are complete.
            if read.emptied {
                flow.tally().emptied.add(1);
                break;
            }
        }
        Ok(read)
    }

    fn round(
        &mut self,
        flow: &Flow<'_>,
        socket: &UdpSocket,
        report: &mut FlowReport,
    ) -> Result<Read, EngineError> {
        match self.batch.receive(socket) {
            Ok(received) => {
                // Nothing is under way at either end of the interval, so the phase is enough.
                let counts = matches!(flow.control.phase(), Phase::Measure | Phase::Drain);
                if counts && flow.load.ecn {
                    report.count_datagrams(received.ecn);
                }
                if let Some(arriving) = &mut self.arriving {
                    self.batch.heads(received.messages, |head, at| {
                        if counts {
                            arriving.arrived(head, at);
                        }
                    });
                }
                flow.tally().bytes.add(received.bytes);
                flow.tally().units.add(received.datagrams);
                Ok(Read {
                    memory: received.bytes + received.messages as u64 * SKB_OVERHEAD,
                    emptied: received.messages < self.batch.capacity(),
                })
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Read { memory: 0, emptied: true }),
            // An answer to a hello met a closed port: the client reports that better.
            Err(errno @ Errno::ECONNREFUSED) => {
                report.count_error(errno, "recvmmsg");
                Ok(Read::default())
            }
            Err(errno) => Err(flow.error(flow.stage(), "recvmmsg", errno)),
        }
    }

    /// Sleeps. The less of the buffer was used since the last sleep, the longer.
    fn rest(&mut self, read: Read) {
        // More is queued: the buffer could fill up during a sleep.
        if !read.emptied {
            return;
        }
        if read.memory > self.room / 8 {
            self.sleep = (self.sleep / 2).max(SHORTEST_SLEEP);
        } else if read.memory < self.room / 32 {
            self.sleep = (self.sleep * 2).min(LONGEST_SLEEP);
        }
        std::thread::sleep(self.sleep);
    }
}
