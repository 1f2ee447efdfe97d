//! One queue pair of a guest, for the thread that moves its frames.

use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::epoll::Epoll;
use sys::tap::Offload;

use super::device::{Device, lock};
use super::features;
use super::memory::Memory;
use super::ring::{Read, Ring, RingError, Written};
use crate::vnet_layout::HEADER;

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

    /// Returns the offloads that the guest currently accepts.
    pub(crate) fn takes(&self) -> Offload {
        self.device.takes()
    }

    /// Wakes the thread that waits on `epoll` for events of this pair.
    pub(crate) fn watch(&self, epoll: Arc<Epoll>, source: u64) -> sys::Result<()> {
        self.device.watch(self.queue, epoll, source)
    }

    /// Uses a ring, if it is usable. An error disables the ring.
    fn with<T>(
        &self,
        number: usize,
        work: impl FnOnce(&mut Ring, &Memory, u64) -> Result<T, RingError>,
    ) -> Option<T> {
        let features = self.device.features();
        let mut slot = lock(&self.device.slots[number]);
        // The guest has not started the ring, or an error has disabled it.
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

    /// Reads one frame with a header of the common layout; returns the number of bytes.
    ///
    /// # Errors
    /// `EAGAIN`: the ring is empty. `EMSGSIZE`: the frame was too long and was discarded.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let number = 2 * self.queue + 1;
        let mut header = HEADER;
        let read = self.with(number, |ring, memory, features| {
            header = features::header_bytes(features);
            // The frame itself starts after the longest header.
            let Some(place) = buffer.get_mut(HEADER - header..) else { return Ok(Read::Nothing) };
            ring.read(memory.mapped(), place)
        });
        match read {
            // An empty ring is no error: the thread waits for the guest's next buffer.
            None | Some(Read::Nothing) => return Err(Errno::EAGAIN),
            _ => lock(&self.device.slots[number]).is_unnotified = true,
        }
        match read {
            Some(Read::Frame(length)) if length >= header => {
                buffer.copy_within(HEADER - header..HEADER, 0);
                // On transmit, the number of buffers is meaningless, and guests do not have the
                // later fields.
                buffer[10..HEADER].fill(0);
                Ok(length - header + HEADER)
            }
            // The frame is shorter than its header, or the guest has never written it, so there is
            // nothing to forward.
            Some(Read::Frame(_) | Read::Untouched) => Ok(0),
            _ => Err(Errno::EMSGSIZE),
        }
    }

    /// Writes one frame with a header of the common layout.
    ///
    /// # Errors
    /// `EAGAIN`: the guest has no free buffers. `EIO`: no guest is connected. `EMSGSIZE`: its
    /// buffers are too small. `ENOMEM`: its buffers are in untouched memory, and this process may
    /// take no more memory.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        self.write_parts(&bytes[..HEADER.min(bytes.len())], &bytes[HEADER.min(bytes.len())..])
    }

    /// [`GuestQueue::write`] with header and frame separate.
    pub(crate) fn write_parts(&self, header: &[u8], frame: &[u8]) -> Result<(), Errno> {
        let mut own = [0; 12];
        own[..10].copy_from_slice(header.get(..10).ok_or(Errno::EINVAL)?);
        // If the guest does not use this pair, fall back to the first one, which is always in use.
        let numbers = [2 * self.queue, 0];
        let wanted = if self.queue == 0 { &numbers[1..] } else { &numbers[..] };
        for number in wanted {
            let written = self.with(*number, |ring, memory, features| {
                if features & features::GUEST_CSUM == 0 {
                    // Without it, the flags must be zero.
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
                    lock(&self.device.slots[*number]).is_unnotified = true;
                    // The guest is notified once per round, not per frame.
                    return Ok(());
                }
                Some(Written::NoRoom) => return Err(Errno::EAGAIN),
                Some(Written::TooSmall) => return Err(Errno::EMSGSIZE),
                Some(Written::Untouched) => {
                    lock(&self.device.slots[*number]).is_unnotified = true;
                    // The frame is dropped, because this process may not make the guest's memory
                    // resident.
                    return Err(Errno::ENOMEM);
                }
                None => {}
            }
        }
        Err(Errno::EIO)
    }

    /// Notifies the guest of used buffers, if it wants that.
    pub(crate) fn flush(&self) {
        let first = [0, 1].into_iter().filter(|_| self.queue > 0);
        for number in first.chain([2 * self.queue, 2 * self.queue + 1]) {
            let is_notified = {
                let mut slot = lock(&self.device.slots[number]);
                !std::mem::take(&mut slot.is_unnotified)
            };
            // Nothing was used since the last notification.
            if is_notified {
                continue;
            }
            let tell =
                self.with(number, |ring, memory, _| ring.needs_notification(memory.mapped()));
            if tell == Some(true)
                && let Some(call) = &lock(&self.device.slots[number]).call
            {
                call.wake();
            }
        }
    }

    /// Asks the guest for notifications before the thread sleeps: of new frames, and of new buffers
    /// if `waits_for_room`. Returns whether any have arrived meanwhile.
    pub(crate) fn before_sleep(&self, waits_for_room: bool) -> bool {
        let sends = self
            .with(2 * self.queue + 1, |ring, memory, _| ring.enable_notification(memory.mapped()));
        let receives = waits_for_room.then(|| {
            self.with(2 * self.queue, |ring, memory, _| ring.enable_notification(memory.mapped()))
        });
        sends == Some(true) || receives.flatten() == Some(true)
    }

    /// Turns the guest's notifications off while the thread is awake.
    pub(crate) fn after_sleep(&self) {
        for number in [2 * self.queue, 2 * self.queue + 1] {
            self.with(number, |ring, memory, _| ring.suppress_notification(memory.mapped()));
        }
    }
}
