//! A thread per queue: its receiving socket, and its queue of each TAP.
//!
//! A thread sleeps in `epoll_wait`; what is ready is read until it is empty, but
//! no more than [`BUDGET`] reads of one while others wait.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use packet::ethernet::{self, MacAddr};
use sys::datagram::ReceiveSlots;
use sys::tap::Tap;

use super::lane::{HEADER, Lane};
use super::receive::{Intake, Message};
use super::transmit::Transmitter;
use super::underlay::Underlay;
use crate::counters::Tally;
use crate::threads::{Sources, Threads};
use crate::{Error, Result};

/// Frames or batches of one source before the others get their turn.
const BUDGET: usize = 64;

/// Messages a system call. Each may be a super-packet of 64 KiB.
const MESSAGES: usize = 16;

/// Header, Ethernet with two tags, and the longest IP packet; rounded up to a
/// whole number of pages.
const FRAME: usize = 17 * 4096;
const _: () = assert!(FRAME >= HEADER + ethernet::HEADER_LEN + 8 + 65_536);

/// The sources' order: the socket, each TAP, the second TAP where there is one.
const WIRE: usize = 0;
const TAPS: usize = 1;

/// One thread's work.
pub(super) struct Worker {
    pub(super) index: usize,
    pub(super) lanes: Vec<Lane>,
    pub(super) underlay: Arc<Underlay>,
    pub(super) strangers: Arc<Tally>,
    /// Second 0.
    pub(super) start: Instant,
    pub(super) merge: bool,
    pub(super) merge_udp: bool,
    pub(super) seed: u64,
}

impl Worker {
    /// Starts the thread.
    pub(super) fn spawn(self, threads: &mut Threads) -> Result<()> {
        let mut sources = vec![(self.underlay.receiver(self.index).as_fd(), "UDP socket")];
        let taps = self.lanes.iter().filter_map(|lane| lane.tap.tap());
        sources.extend(taps.map(|tap| (tap.as_fd(), tap.name())));
        if let Some(second) = self.underlay.second_tap() {
            let tap = second.queue(self.index);
            sources.push((tap.as_fd(), tap.name()));
        }
        let sources = threads.sources(&sources)?;
        Ok(threads.spawn(&format!("vtep {}", self.index), move || self.run(sources))?)
    }

    fn run(mut self, mut sources: Sources) -> Result<()> {
        let second = TAPS + self.lanes.len();
        let mut ready = vec![false; second + 1];
        let mut transmitter = Transmitter::new(self.underlay.clone(), self.index, self.seed);
        let mut intake = Intake::new(self.merge, self.merge_udp);
        let mut slots = ReceiveSlots::new(MESSAGES);
        let mut frame = vec![0; FRAME].into_boxed_slice();
        let mut looked = None;
        while sources.wait(&mut ready)? {
            while ready.contains(&true) {
                if !sources.go_on() {
                    return Ok(());
                }
                let now = self.start.elapsed().as_secs() as u32;
                if looked != Some(now) {
                    looked = Some(now);
                    self.look_at_taps()?;
                }
                self.lanes.iter_mut().for_each(Lane::refresh);
                if ready[WIRE] {
                    ready[WIRE] = self.wire(&mut intake, &mut slots, now)?;
                }
                if ready[second] {
                    ready[second] = self.second_tap(&mut intake, &mut frame, now)?;
                }
                for (index, ready) in ready[TAPS..second].iter_mut().enumerate() {
                    if *ready {
                        *ready = self.tap(index, &mut transmitter, &mut frame, now)?;
                    }
                }
            }
        }
        Ok(())
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
            match read(tap, frame)? {
                Read::Frame(length) => {
                    transmitter.frame(&self.lanes, index, &frame[..length], now);
                }
                Read::Nothing => {
                    more = false;
                    break;
                }
                Read::Interrupted => {}
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
            self.written(intake)?;
            if count < slots.capacity() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What the second TAP has taken from the wire, to the TAPs; true if there may
    /// be more.
    fn second_tap(&self, intake: &mut Intake, frame: &mut [u8], now: u32) -> Result<bool> {
        let Some(second) = self.underlay.second_tap() else { return Ok(false) };
        let (tap, port) = (second.queue(self.index), self.underlay.port());
        let mut more = true;
        for _ in 0..BUDGET {
            match read(tap, frame)? {
                Read::Frame(length) => {
                    let bytes = &mut frame[..length];
                    intake.encapsulated(&self.lanes, &self.strangers, bytes, port, now);
                }
                Read::Nothing => {
                    more = false;
                    break;
                }
                Read::Interrupted => {}
            }
        }
        self.written(intake)?;
        Ok(more)
    }

    /// Delivers what is held; an error if a TAP is gone.
    fn written(&self, intake: &mut Intake) -> Result<()> {
        intake.flush(&self.lanes);
        if let Some(index) = intake.gone()
            && let Some(tap) = self.lanes[index].tap.tap()
        {
            return Err(Error::Vanished(tap.name().to_owned()));
        }
        Ok(())
    }
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
