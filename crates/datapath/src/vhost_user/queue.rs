//! One pair of queues of a guest, as the thread that moves its frames uses it.

use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::epoll::Epoll;
use sys::tap::Offload;

use super::device::{Device, lock};
use super::features;
use super::memory::Memory;
use super::ring::{Read, Ring, RingError, Written};
use crate::vnet_layout::HEADER;

/// One pair of queues of a guest.
#[derive(Debug, Clone)]
pub(crate) struct GuestQueue {
    device: Arc<Device>,
    queue: usize,
}

impl GuestQueue {
    pub(super) fn new(device: Arc<Device>, queue: usize) -> GuestQueue {
        GuestQueue { device, queue }
    }

    pub(crate) fn name(&self) -> &str {
        self.device.name()
    }

    /// What the guest takes uncut now.
    pub(crate) fn takes(&self) -> Offload {
        self.device.takes()
    }

    /// Has the thread that waits by `epoll` woken for this pair.
    pub(crate) fn watch(&self, epoll: Arc<Epoll>, source: u64) -> sys::Result<()> {
        self.device.watch(self.queue, epoll, source)
    }

    /// Does something with a ring that is usable; what breaks a rule breaks the ring.
    fn with<T>(
        &self,
        number: usize,
        work: impl FnOnce(&mut Ring, &Memory, u64) -> Result<T, RingError>,
    ) -> Option<T> {
        let features = self.device.features();
        let mut slot = lock(&self.device.slots[number]);
        if !slot.is_usable(features) {
            return None;
        }
        let (ring, memory) = slot.ring.as_mut()?;
        match work(ring, memory, features) {
            Ok(done) => Some(done),
            Err(error) => {
                self.device.break_ring(&mut slot, number, error);
                None
            }
        }
    }

    /// Reads one frame behind a header of the layout of all: the number of bytes.
    ///
    /// # Errors
    /// `EAGAIN`: nothing is there; `EMSGSIZE`: the frame was too long, and is gone.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let number = 2 * self.queue + 1;
        let mut header = HEADER;
        let read = self.with(number, |ring, memory, features| {
            header = features::header_bytes(features);
            // The frame's own place is behind the longest header.
            let Some(place) = buffer.get_mut(HEADER - header..) else { return Ok(Read::Nothing) };
            ring.read(memory.mapped(), place)
        });
        match read {
            None | Some(Read::Nothing) => return Err(Errno::EAGAIN),
            _ => lock(&self.device.slots[number]).untold = true,
        }
        match read {
            Some(Read::Frame(length)) if length >= header => {
                buffer.copy_within(HEADER - header..HEADER, 0);
                // Their number of buffers means nothing, and the rest they do not have.
                buffer[10..HEADER].fill(0);
                Ok(length - header + HEADER)
            }
            Some(Read::Frame(_)) => Ok(0),
            _ => Err(Errno::EMSGSIZE),
        }
    }

    /// Writes one frame behind its header of the layout of all.
    ///
    /// # Errors
    /// `EAGAIN`: the guest has no room; `EIO`: nobody is there; `EMSGSIZE`: its buffers are
    /// too small.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        self.write_parts(&bytes[..HEADER.min(bytes.len())], &bytes[HEADER.min(bytes.len())..])
    }

    /// [`GuestQueue::write`] of header and frame.
    ///
    /// # Errors
    /// As [`GuestQueue::write`].
    pub(crate) fn write_parts(&self, header: &[u8], frame: &[u8]) -> Result<(), Errno> {
        let mut own = [0; 12];
        own[..10].copy_from_slice(header.get(..10).ok_or(Errno::EINVAL)?);
        // A guest may use fewer pairs than there are: the first is always among them.
        let numbers = [2 * self.queue, 0];
        let wanted = if self.queue == 0 { &numbers[1..] } else { &numbers[..] };
        for number in wanted {
            let written = self.with(*number, |ring, memory, features| {
                if features & features::GUEST_CSUM == 0 {
                    // Without it, flags have to be zero.
                    own[0] = 0;
                }
                let length = features::header_bytes(features);
                let mergeable = features & features::MERGEABLE != 0;
                if !mergeable {
                    own[10] = u8::from(length == 12);
                }
                ring.write(memory.mapped(), &mut own[..length], frame, mergeable)
            });
            match written {
                Some(Written::Done) => {
                    lock(&self.device.slots[*number]).untold = true;
                    return Ok(());
                }
                Some(Written::NoRoom) => return Err(Errno::EAGAIN),
                Some(Written::TooSmall) => return Err(Errno::EMSGSIZE),
                None => {}
            }
        }
        Err(Errno::EIO)
    }

    /// Tells the guest what was used since, if it wants to know.
    pub(crate) fn flush(&self) {
        let first = [0, 1].into_iter().filter(|_| self.queue > 0);
        for number in first.chain([2 * self.queue, 2 * self.queue + 1]) {
            let is_told = {
                let mut slot = lock(&self.device.slots[number]);
                !std::mem::take(&mut slot.untold)
            };
            if is_told {
                continue;
            }
            let tell = self.with(number, |ring, memory, _| ring.is_to_be_told(memory.mapped()));
            if tell == Some(true)
                && let Some(call) = &lock(&self.device.slots[number]).call
            {
                call.wake();
            }
        }
    }

    /// The thread is about to sleep: the guest is to say when it sends, and when it has
    /// room if that is waited for. True if it has done so meanwhile.
    pub(crate) fn before_sleep(&self, waits_for_room: bool) -> bool {
        let sends =
            self.with(2 * self.queue + 1, |ring, memory, _| ring.wants_to_be_told(memory.mapped()));
        let receives = waits_for_room.then(|| {
            self.with(2 * self.queue, |ring, memory, _| ring.wants_to_be_told(memory.mapped()))
        });
        sends == Some(true) || receives.flatten() == Some(true)
    }

    /// The thread is awake: the guest need not say anything.
    pub(crate) fn after_sleep(&self) {
        for number in [2 * self.queue, 2 * self.queue + 1] {
            self.with(number, |ring, memory, _| ring.need_not_be_told(memory.mapped()));
        }
    }
}
