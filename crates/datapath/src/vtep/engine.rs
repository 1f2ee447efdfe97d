//! A thread per queue, with its receiving sockets and its queue of each TAP.
//!
//! With epoll, the thread sleeps in `epoll_wait` and then reads ready sources until they are empty,
//! but at most [`BUDGET`] reads from one while others wait. With io_uring, the ring delivers the
//! TAPs' frames in batches, and reports which sockets are readable.
//! TAPs' frames by batches (io_uring), and says when a socket has something.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use packet::ethernet::{self, MacAddr};
use sys::datagram::ReceiveSlots;
use sys::frame_ring::{Completion, FrameRing};
use sys::tap::Tap;

use super::guest_writer::GuestWriter;
use super::receive::{Intake, Message};
use super::thread_network::ThreadNetwork;
use super::transmit::Transmitter;
use super::underlay::Underlay;
use crate::adaptive_poll::AdaptivePoll;
use crate::counters::Tally;
use crate::threads::{Sources, Threads};
use crate::vhost_user::GuestQueue;
use crate::vnet_layout::HEADER;
use crate::{Error, Result};

/// Maximum number of frames or batches from one source before the next one gets its turn.
const BUDGET: usize = 64;

/// How long to poll an empty TAP after a full-sized segment: the time of ten segments from a writer
/// on another CPU, and less than half of a round trip.
///
/// A TAP releases a frame from its sender's account as soon as it is queued. So TCP does not hold
/// back small writes until they fill a GSO packet, as it does for a busy device
/// (`tcp_should_autocork`), and a thread that reads at once would carry each segment alone. A
/// sender whose frame was as long as the MTU allows usually has more data, unless its messages have
/// exactly that length.
const COMPANY: Duration = Duration::from_micros(30);

/// Buffers of a ring. More would no longer be in the cache when they are reused.
const BUFFERS: u16 = 16;

/// Messages per system call. Each may be a GSO packet of 64 KiB.
const MESSAGES: usize = 16;

/// Size for a vnet header, Ethernet with two tags, and the longest IP packet, rounded up to a whole
/// number of pages.
const FRAME: usize = 17 * 4096;
const _: () = assert!(FRAME >= HEADER + ethernet::HEADER_LEN + 8 + 65_536);

/// State of one forwarding thread.
pub(super) struct Worker {
    pub(super) index: usize,
    pub(super) thread_networks: Vec<ThreadNetwork>,
    pub(super) underlay: Arc<Underlay>,
    pub(super) unassigned: Arc<Tally>,
    /// Time zero of the endpoint's clock, which counts seconds.
    pub(super) start: Instant,
    pub(super) merge: bool,
    pub(super) merge_udp: bool,
    pub(super) seed: u64,
    /// How long to poll before sleeping.
    pub(super) busy_poll: Duration,
}

impl Worker {
    pub(super) fn spawn(self, threads: &mut Threads, ring: Option<FrameRing>) -> Result<()> {
        let name = format!("vtep {}", self.index);
        if let Some(ring) = ring {
            return Ok(threads.spawn(&name, move || self.run_by_ring(ring))?);
        }
        // Order of the sources: sockets, TAPs, then the second TAP if there is one.
        let sockets = self.underlay.receivers(self.index);
        let mut sources: Vec<_> =
            sockets.map(|socket| Some((socket.as_fd(), "UDP socket"))).collect();
        let first = sources.len();
        let taps = self.thread_networks.iter().map(|thread_network| thread_network.tap.tap());
        sources.extend(taps.map(|tap| tap.map(|tap| (tap.as_fd(), tap.name()))));
        if let Some(second) = self.underlay.second_tap() {
            let tap = second.queue(self.index);
            sources.push(Some((tap.as_fd(), tap.name())));
        }
        let sources = threads.places(&sources, self.busy_poll)?;
        for (at, thread_network) in self.thread_networks.iter().enumerate() {
            if let Some(guest) = thread_network.tap.guest() {
                guest.queue().watch(sources.epoll().clone(), (first + at) as u64)?;
            }
        }
        Ok(threads.spawn(&name, move || self.run(sources))?)
    }

    fn run(mut self, mut sources: Sources) -> Result<()> {
        let underlay = self.underlay.clone();
        let sockets: Vec<_> = underlay.receivers(self.index).collect();
        let second = sockets.len() + self.thread_networks.len();
        let mut ready = vec![false; second + 1];
        let mut transmitter = Transmitter::new(self.underlay.clone(), self.index, self.seed);
        let mut intake = Intake::new(self.merge, self.merge_udp);
        let mut slots = ReceiveSlots::new(MESSAGES);
        let mut frame = vec![0; FRAME].into_boxed_slice();
        let mut companies: Vec<_> =
            self.thread_networks.iter().map(|_| AdaptivePoll::new(COMPANY)).collect();
        let mut looked = None;
        while self.sleep(&mut sources, &mut ready, sockets.len())? {
            while ready.contains(&true) {
                // The thread has to end, even if frames keep arriving.
                if !sources.go_on() {
                    return Ok(());
                }
                let now = self.now(&mut looked)?;
                for (socket, ready) in sockets.iter().zip(&mut ready) {
                    if *ready {
                        *ready = self.wire(socket, &mut intake, &mut slots, now)?;
                    }
                }
                if ready[second] {
                    ready[second] = self.second_tap(&mut intake, &mut frame, now)?;
                }
                for (index, ready) in ready[sockets.len()..second].iter_mut().enumerate() {
                    if *ready {
                        let company = &mut companies[index];
                        *ready = self.tap(index, &mut transmitter, &mut frame, company, now)?;
                    }
                }
                for guest in self.guests() {
                    guest.flush();
                }
            }
        }
        Ok(())
    }

    fn guests(&self) -> impl Iterator<Item = &GuestQueue> {
        let guests = self.thread_networks.iter().filter_map(|network| network.tap.guest());
        guests.map(GuestWriter::queue)
    }

    /// Waits until a source is ready; returns false when the thread has to end. The TAPs' indices
    /// start at `first`.
    fn sleep(&self, sources: &mut Sources, ready: &mut [bool], first: usize) -> Result<bool> {
        let mut meanwhile = false;
        for (at, thread_network) in self.thread_networks.iter().enumerate() {
            // Ask the guest for notifications. It may have queued something just before, so check
            // again.
            if let Some(guest) = thread_network.tap.guest()
                && guest.queue().before_sleep(false)
            {
                (ready[first + at], meanwhile) = (true, true);
            }
        }
        let go_on = if meanwhile { sources.go_on() } else { sources.wait(ready)? };
        self.guests().for_each(GuestQueue::after_sleep);
        Ok(go_on)
    }

    fn run_by_ring(mut self, mut ring: FrameRing) -> Result<()> {
        let mut transmitter = Transmitter::new(self.underlay.clone(), self.index, self.seed);
        let mut intake = Intake::new(self.merge, self.merge_udp);
        let mut slots = ReceiveSlots::new(MESSAGES);
        let underlay = self.underlay.clone();
        let sockets: Vec<_> = underlay.receivers(self.index).collect();
        let (taps, port) = (self.thread_networks.len(), underlay.port());
        let frames = taps + usize::from(underlay.second_tap().is_some());
        let mut looked = None;
        loop {
            ring.wait()?;
            let now = self.now(&mut looked)?;
            for _ in 0..BUDGET {
                match ring.event() {
                    None => break,
                    Some(Completion::Frame(at, bytes)) if at < taps => {
                        transmitter.frame(&self.thread_networks, at, bytes, now);
                    }
                    Some(Completion::Frame(_, bytes)) => {
                        intake.encapsulated(
                            &self.thread_networks,
                            &self.unassigned,
                            bytes,
                            port,
                            now,
                        );
                    }
                    Some(Completion::Readable(at)) => match sockets.get(at - frames) {
                        // Anything left after this is reported again.
                        Some(socket) => {
                            self.wire(socket, &mut intake, &mut slots, now)?;
                        }
                        // The program was asked to end.
                        None => return Ok(()),
                    },
                    Some(Completion::Failed(at, errno)) => return Err(self.failed(at, errno)),
                }
            }
            transmitter.flush(&self.thread_networks, now);
            self.written(&mut intake)?;
        }
    }

    /// Returns the error for a TAP of the ring that cannot be read.
    fn failed(&self, at: usize, errno: Errno) -> Error {
        let tap = match self.thread_networks.get(at) {
            Some(thread_network) => thread_network.tap.tap(),
            None => self.underlay.second_tap().map(|second| second.queue(self.index)),
        };
        let name = tap.map_or_else(|| "wire".to_owned(), |tap| tap.name().to_owned());
        match errno {
            Errno::EBADFD => Error::Vanished(name),
            errno => sys::Error::new("read", name, errno).into(),
        }
    }

    /// Returns the current second. Once per second, and after a reload, it refreshes the TAPs'
    /// state.
    fn now(&mut self, looked: &mut Option<u32>) -> Result<u32> {
        let now = self.start.elapsed().as_secs() as u32;
        if *looked != Some(now) {
            *looked = Some(now);
            self.look_at_taps()?;
        }
        self.thread_networks.iter_mut().for_each(ThreadNetwork::refresh);
        Ok(now)
    }

    /// Reads the TAPs' hardware addresses again: an administrator may change them at any time.
    fn look_at_taps(&mut self) -> Result<()> {
        for thread_network in &mut self.thread_networks {
            // A vhost-user guest has no device.
            let Some(tap) = thread_network.tap.tap() else { continue };
            match tap.hardware_address() {
                Ok(address) => thread_network.own = MacAddr(address),
                // A device without an address is being deleted.
                Err(_) => return Err(Error::Vanished(tap.name().to_owned())),
            }
        }
        Ok(())
    }

    /// Sends frames of one TAP to the wire; returns whether there may be more.
    fn tap(
        &self,
        index: usize,
        transmitter: &mut Transmitter,
        frame: &mut [u8],
        company: &mut AdaptivePoll,
        now: u32,
    ) -> Result<bool> {
        if let Some(guest) = self.thread_networks[index].tap.guest() {
            let mut more = true;
            for _ in 0..BUDGET {
                let Some(length) = guest.read(frame) else {
                    more = false;
                    // The guest has no more frames: other sources are served.
                    break;
                };
                transmitter.frame(&self.thread_networks, index, &frame[..length], now);
            }
            transmitter.flush(&self.thread_networks, now);
            return Ok(more);
        }
        let Some(tap) = self.thread_networks[index].tap.tap() else { return Ok(false) };
        let full = HEADER + ethernet::HEADER_LEN + self.thread_networks[index].network.mtu as usize;
        let (mut more, mut budget, mut last) = (true, BUDGET, 0);
        while budget > 0 {
            match read(tap, frame)? {
                Read::Frame(length) => {
                    transmitter.frame(&self.thread_networks, index, &frame[..length], now);
                    company.came();
                    last = length;
                    budget -= 1;
                }
                Read::Nothing if last == full && company.expects(Instant::now) => {
                    // Let the sender run if it shares this CPU.
                    std::thread::yield_now();
                }
                Read::Nothing => {
                    more = false;
                    // The TAP is empty: other sources are served.
                    break;
                }
                Read::Interrupted => {}
            }
        }
        transmitter.flush(&self.thread_networks, now);
        Ok(more)
    }

    /// Delivers messages from the wire to the TAPs; returns whether there may be more.
    fn wire(
        &self,
        socket: &UdpSocket,
        intake: &mut Intake,
        slots: &mut ReceiveSlots,
        now: u32,
    ) -> Result<bool> {
        // A batch of messages is as much work as several frames.
        for _ in 0..BUDGET / MESSAGES {
            let count = match slots.receive(socket) {
                Ok(count) => count,
                // Nothing is left to read.
                Err(Errno::EAGAIN) => return Ok(false),
                // A signal interrupted the call; nothing was received.
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(sys::Error::new("recvmmsg", "vtep", errno).into()),
            };
            for index in 0..count {
                // The sender's address is not IP.
                let Some(incoming) = slots.message(index) else { continue };
                let message = Message {
                    from: incoming.from.ip(),
                    tos: incoming.tos,
                    segment: incoming.segment,
                    truncated: incoming.truncated,
                    bytes: incoming.bytes,
                };
                intake.message(&self.thread_networks, &self.unassigned, message, now);
            }
            self.written(intake)?;
            // The socket was emptied.
            if count < slots.capacity() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Delivers packets that the second TAP received from the wire; returns whether there may be
    /// more.
    fn second_tap(&self, intake: &mut Intake, frame: &mut [u8], now: u32) -> Result<bool> {
        // Packets are not passed on unsegmented, so nothing arrives here.
        let Some(second) = self.underlay.second_tap() else { return Ok(false) };
        let (tap, port) = (second.queue(self.index), self.underlay.port());
        let mut more = true;
        for _ in 0..BUDGET {
            match read(tap, frame)? {
                Read::Frame(length) => {
                    let bytes = &mut frame[..length];
                    intake.encapsulated(&self.thread_networks, &self.unassigned, bytes, port, now);
                }
                Read::Nothing => {
                    more = false;
                    // The second TAP is empty: other sources are served.
                    break;
                }
                Read::Interrupted => {}
            }
        }
        self.written(intake)?;
        Ok(more)
    }

    /// Delivers packets held for merging; fails if a TAP is gone.
    fn written(&self, intake: &mut Intake) -> Result<()> {
        intake.flush(&self.thread_networks);
        if let Some(index) = intake.gone()
            && let Some(tap) = self.thread_networks[index].tap.tap()
        {
            // EBADFD of a write means that the TAP was deleted, not that a packet was refused.
            return Err(Error::Vanished(tap.name().to_owned()));
        }
        Ok(())
    }
}

/// Creates a thread's ring. Its sources are the queue of each TAP, that of the second TAP if there
/// is one, the sockets, and the stop event.
///
/// # Errors
/// If the kernel does not support or allow such a ring.
pub(super) fn ring(
    taps: &[&Tap],
    underlay: &Underlay,
    thread: usize,
    threads: &Threads,
) -> sys::Result<FrameRing> {
    let second = underlay.second_tap().map(|second| second.queue(thread));
    let frames: Vec<_> = taps.iter().copied().chain(second).map(AsFd::as_fd).collect();
    let sockets = underlay.receivers(thread).map(AsFd::as_fd);
    let polled: Vec<_> = sockets.chain([threads.stopping()]).collect();
    FrameRing::new(&frames, &polled, BUFFERS, FRAME)
}

enum Read {
    Frame(usize),
    Nothing,
    Interrupted,
}

fn read(tap: &Tap, frame: &mut [u8]) -> Result<Read> {
    match tap.read(frame) {
        Ok(length) => Ok(Read::Frame(length)),
        Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            Errno::EAGAIN => Ok(Read::Nothing),
            Errno::EINTR => Ok(Read::Interrupted),
            Errno::EBADFD => Err(Error::Vanished(tap.name().to_owned())),
            errno => Err(sys::Error::new("read", tap.name(), errno).into()),
        },
    }
}
