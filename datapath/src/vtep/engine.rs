//! A thread per queue: its receiving socket, and its queue of each TAP.
//!
//! A thread sleeps in `epoll_wait`; what is ready is read until it is empty, but
//! no more than [`BUDGET`] reads of one while others wait.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use packet::ethernet::{self, MacAddr};
use sys::datagram::ReceiveSlots;

use super::counters::Tally;
use super::lane::{HEADER, Lane};
use super::receive::{Intake, Message};
use super::transmit::Transmitter;
use super::underlay::Underlay;
use super::{Error, Result};

/// Frames or batches of one source before the others get their turn.
const BUDGET: usize = 64;

/// Messages a system call. Each may be a super-packet of 64 KiB.
const MESSAGES: usize = 16;

/// Header, Ethernet with two tags, and the longest IP packet; rounded up to a
/// whole number of pages.
const FRAME: usize = 17 * 4096;
const _: () = assert!(FRAME >= HEADER + ethernet::HEADER_LEN + 8 + 65_536);

/// What an event's number stands for: these, or a TAP's index and 2.
const STOP: u64 = 0;
const WIRE: u64 = 1;
const TAPS: u64 = 2;

/// What the threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    /// Becomes readable when the threads are to end.
    pub(super) stopping: EventFd,
    /// Becomes readable when a thread has ended by itself.
    pub(super) ended: EventFd,
    /// Second 0.
    pub(super) start: Instant,
}

/// One thread's work.
pub(super) struct Worker {
    pub(super) index: usize,
    pub(super) lanes: Vec<Lane>,
    pub(super) underlay: Arc<Underlay>,
    pub(super) shared: Arc<Shared>,
    pub(super) strangers: Arc<Tally>,
    pub(super) merge: bool,
    pub(super) merge_udp: bool,
    pub(super) seed: u64,
}

impl Worker {
    /// Starts the thread.
    pub(super) fn spawn(self) -> Result<JoinHandle<Result<()>>> {
        let name = format!("vtep {}", self.index);
        let epoll = self.epoll()?;
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            let shared = self.shared.clone();
            let outcome = self.run(&epoll);
            // One queue that ended is the end of all.
            shared.stop.store(true, Ordering::Relaxed);
            let _ = shared.stopping.write(1);
            let _ = shared.ended.write(1);
            outcome
        });
        spawned.map_err(|error| sys::Error::io("start thread", "vtep", &error).into())
    }

    fn epoll(&self) -> sys::Result<Epoll> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| sys::Error::new("epoll_create1", "vtep", e))?;
        let add = |fd: std::os::fd::BorrowedFd<'_>, data, name: &str| {
            epoll
                .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, data))
                .map_err(|e| sys::Error::new("epoll_ctl(EPOLL_CTL_ADD)", name, e))
        };
        add(self.shared.stopping.as_fd(), STOP, "end of the endpoint")?;
        add(self.underlay.receiver(self.index).as_fd(), WIRE, "UDP socket")?;
        for (index, lane) in self.lanes.iter().enumerate() {
            if let Some(tap) = lane.tap.tap() {
                add(tap.as_fd(), TAPS + index as u64, tap.name())?;
            }
        }
        Ok(epoll)
    }

    fn run(mut self, epoll: &Epoll) -> Result<()> {
        let mut events = vec![EpollEvent::empty(); self.lanes.len() + TAPS as usize];
        let mut ready = vec![false; self.lanes.len() + TAPS as usize];
        let mut transmitter = Transmitter::new(self.underlay.clone(), self.seed);
        let mut intake = Intake::new(self.merge, self.merge_udp);
        let mut slots = ReceiveSlots::new(MESSAGES);
        let mut frame = vec![0; FRAME].into_boxed_slice();
        let mut looked = None;
        loop {
            let count = match epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(sys::Error::new("epoll_wait", "vtep", error).into()),
            };
            // Only what has something is read: reading what is empty is a system
            // call for nothing.
            for event in &events[..count] {
                ready[event.data() as usize] = true;
            }
            while ready[WIRE as usize..].contains(&true) {
                if self.shared.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let now = self.shared.start.elapsed().as_secs() as u32;
                if looked != Some(now) {
                    looked = Some(now);
                    self.look_at_taps()?;
                }
                self.lanes.iter_mut().for_each(Lane::refresh);
                if ready[WIRE as usize] {
                    ready[WIRE as usize] = self.wire(&mut intake, &mut slots, now)?;
                }
                for index in 0..self.lanes.len() {
                    let ready = &mut ready[TAPS as usize + index];
                    if *ready {
                        *ready = self.tap(index, &mut transmitter, &mut frame, now)?;
                    }
                }
            }
            if self.shared.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }

    /// Anyone may change a TAP's address at any time.
    fn look_at_taps(&mut self) -> Result<()> {
        for lane in &mut self.lanes {
            let Some(tap) = lane.tap.tap() else { continue };
            match tap.hardware_address() {
                Ok(address) => lane.own = MacAddr(address),
                Err(_) => return Err(Error::Vanished(tap.name().to_owned())),
            }
        }
        Ok(())
    }

    /// Frames of one TAP to the wire; true if there may be more.
    fn tap(
        &self,
        index: usize,
        transmitter: &mut Transmitter,
        frame: &mut [u8],
        now: u32,
    ) -> Result<bool> {
        let Some(tap) = self.lanes[index].tap.tap() else { return Ok(false) };
        let mut more = true;
        for _ in 0..BUDGET {
            match tap.read(frame) {
                Ok(length) => transmitter.frame(&self.lanes, index, &frame[..length], now),
                Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                    Errno::EAGAIN => {
                        more = false;
                        break;
                    }
                    Errno::EINTR => {}
                    Errno::EBADFD => return Err(Error::Vanished(tap.name().to_owned())),
                    errno => return Err(sys::Error::new("read", tap.name(), errno).into()),
                },
            }
        }
        transmitter.flush(&self.lanes, now);
        Ok(more)
    }

    /// Messages of the wire to the TAPs; true if there may be more.
    fn wire(&self, intake: &mut Intake, slots: &mut ReceiveSlots, now: u32) -> Result<bool> {
        let socket = self.underlay.receiver(self.index);
        // Each batch of messages is as much work as some frames.
        for _ in 0..BUDGET / MESSAGES {
            let count = match slots.receive(socket) {
                Ok(count) => count,
                Err(Errno::EAGAIN) => return Ok(false),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(sys::Error::new("recvmmsg", "vtep", errno).into()),
            };
            for index in 0..count {
                let Some(incoming) = slots.message(index) else { continue };
                let message = Message {
                    from: incoming.from.ip(),
                    tos: incoming.tos,
                    segment: incoming.segment,
                    truncated: incoming.truncated,
                    bytes: incoming.bytes,
                };
                intake.message(&self.lanes, &self.strangers, message, now);
            }
            intake.flush(&self.lanes);
            if let Some(index) = intake.gone()
                && let Some(tap) = self.lanes[index].tap.tap()
            {
                return Err(Error::Vanished(tap.name().to_owned()));
            }
            if count < slots.capacity() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
