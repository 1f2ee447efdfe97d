//! One split virtqueue from the device's side (virtio 1.2, section 2.7).
//!
//! The whole ring belongs to the guest, which may change it at any moment. So each word is read
//! once, validated, and used as read. If the guest breaks the specification, the ring is disabled
//! ([`RingError`]) until the guest sets it up again. Each call is bounded: the descriptors of a
//! chain, the buffers of a frame, and the entries between two calls.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

pub use super::ring_error::RingError;
use super::untouched::{Account, MemoryLimit};
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

/// Maximum number of descriptors of one chain, the same as in QEMU and vhost.
const CHAIN_MAX: usize = 1024;
/// Maximum number of descriptors of the buffers for one frame.
const SEGMENTS_MAX: usize = 2 * CHAIN_MAX;
/// Length of a descriptor, bytes.
const DESCRIPTOR: u64 = 16;

/// `VIRTQ_DESC_F_*`.
mod flags {
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
}

/// `VRING_USED_F_NO_NOTIFY`, `VRING_AVAIL_F_NO_INTERRUPT`.
const SUPPRESSED: u16 = 1;

/// Location of a ring, in addresses of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingLocation {
    /// Number of entries, a power of two.
    pub size: u16,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

/// Part of a buffer.
#[derive(Debug, Clone, Copy)]
struct Segment {
    address: u64,
    length: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingDirection {
    /// The guest sends: its buffers are read.
    FromGuest,
    /// The guest receives: its buffers are written.
    ToGuest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    Nothing,
    /// A frame of this length is in the buffer.
    Frame(usize),
    /// A frame was longer than the buffer and was discarded.
    TooLong,
    /// A frame is in untouched memory, for which there is no room, and was discarded.
    Untouched,
}

/// Result of writing a frame to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    Done,
    /// The guest has no free buffers; nothing was changed.
    NoRoom,
    /// The guest's next buffer is too small, and buffers are not merged.
    TooSmall,
    /// The guest's next buffers are in untouched memory, for which there is no room. They were
    /// returned empty.
    Untouched,
}

/// A ring in use. All fields are private copies; everything else is the guest's.
#[derive(Debug)]
pub struct Ring {
    place: RingLocation,
    way: RingDirection,
    /// Whether `VIRTIO_RING_F_EVENT_IDX` was negotiated.
    event_index: bool,
    next_available: u16,
    next_used: u16,
    /// The guest's available index at the last check.
    seen: u16,
    /// `next_used` at the last notification of the guest; `None`: there was none.
    notified: Option<u16>,
    segments: Vec<Segment>,
    heads: Vec<(u16, u32)>,
    account: Account,
}

impl Ring {
    /// Creates a ring that continues at entry `base`.
    ///
    /// # Errors
    /// If its parts are not aligned, or not in the guest's memory.
    pub(super) fn new(
        memory: &GuestMemoryMmap,
        place: RingLocation,
        way: RingDirection,
        base: u16,
        event_index: bool,
        limit: Option<Arc<MemoryLimit>>,
    ) -> Result<Ring, RingError> {
        let mut account = Account::new(limit);
        check(memory, &place, &mut account)?;
        let mut ring = Ring {
            place,
            way,
            event_index,
            next_available: base,
            next_used: 0,
            seen: base,
            notified: None,
            segments: Vec::new(),
            heads: Vec::new(),
            account,
        };
        // The used index is written by the device only, so a new device continues from there.
        ring.next_used = ring.load(memory, place.used + 2)?;
        Ok(ring)
    }

    /// Moves the ring to another place in memory, or to memory that was mapped again.
    pub fn replace(
        &mut self,
        memory: &GuestMemoryMmap,
        place: RingLocation,
    ) -> Result<(), RingError> {
        check(memory, &place, &mut self.account)?;
        self.place = place;
        Ok(())
    }

    /// Returns the next entry.
    pub fn base(&self) -> u16 {
        self.next_available
    }

    /// Reads the next frame into `buffer`.
    ///
    /// # Errors
    /// [`RingError`]: the ring must not be used any more.
    pub fn read(&mut self, memory: &GuestMemoryMmap, buffer: &mut [u8]) -> Result<Read, RingError> {
        if self.available(memory)? == 0 {
            return Ok(Read::Nothing);
        }
        self.segments.clear();
        self.heads.clear();
        let (head, length) = self.chain(memory, self.next_available)?;
        let fits = length <= buffer.len() as u64;
        let touched = fits && self.may_touch(memory, length);
        if touched {
            let mut rest = &mut *buffer;
            for segment in &self.segments {
                // In bounds: the sum of the lengths was compared above.
                let (now, later) = rest.split_at_mut(segment.length as usize);
                let outside = RingError::Outside { part: "buffers", at: segment.address };
                memory.read_slice(now, GuestAddress(segment.address)).map_err(|_| outside)?;
                rest = later;
            }
        }
        self.next_available = self.next_available.wrapping_add(1);
        self.heads.push((head, 0));
        self.put_used(memory)?;
        Ok(match (fits, touched) {
            (true, true) => Read::Frame(length as usize),
            (true, false) => Read::Untouched,
            (false, _) => Read::TooLong,
        })
    }

    /// Whether the first `length` bytes of the segments may be accessed.
    fn may_touch(&mut self, memory: &GuestMemoryMmap, mut length: u64) -> bool {
        let Ring { segments, account, .. } = self;
        segments.iter().all(|segment| {
            let here = length.min(segment.length.into());
            length -= here;
            here == 0 || account.permits(memory, segment.address, here)
        })
    }

    /// Writes a frame with its header. With `mergeable`, it may use several buffers, and their
    /// number is written to the last two bytes of the header.
    ///
    /// # Errors
    /// [`RingError`]: the ring must not be used any more.
    pub fn write(
        &mut self,
        memory: &GuestMemoryMmap,
        header: &mut [u8],
        frame: &[u8],
        mergeable: bool,
    ) -> Result<Written, RingError> {
        let available = self.available(memory)?;
        self.segments.clear();
        self.heads.clear();
        let mut missing = (header.len() + frame.len()) as u64;
        while missing > 0 {
            let taken = self.heads.len() as u16;
            // Nothing was written yet, so the frame can be tried again later.
            if taken == available {
                return Ok(Written::NoRoom);
            }
            let (head, room) = self.chain(memory, self.next_available.wrapping_add(taken))?;
            // A chain without writable bytes would never finish a frame.
            if room == 0 {
                return Err(RingError::Empty);
            }
            // Without mergeable buffers a frame must fit into one chain.
            if room < missing && !mergeable {
                return Ok(Written::TooSmall);
            }
            let part = room.min(missing);
            self.heads.push((head, part as u32));
            missing -= part;
        }
        if !self.may_touch(memory, (header.len() + frame.len()) as u64) {
            // The guest's driver drops empty buffers, and may offer others.
            self.heads.iter_mut().for_each(|(_, written)| *written = 0);
            self.next_available = self.next_available.wrapping_add(self.heads.len() as u16);
            self.put_used(memory)?;
            return Ok(Written::Untouched);
        }
        if let [.., low, high] = header
            && mergeable
        {
            [*low, *high] = (self.heads.len() as u16).to_le_bytes();
        }
        // Only the last chain can be used in part, and then from its start. So the segments of all
        // chains in a row have the order of the frame.
        let mut parts = [&*header, frame].into_iter();
        let mut now: &[u8] = parts.next().unwrap_or_default();
        'segments: for segment in &self.segments {
            let (mut at, mut room) = (segment.address, segment.length as usize);
            while room > 0 {
                if now.is_empty() {
                    let Some(next) = parts.next() else { break 'segments };
                    now = next;
                    // This segment is full: the frame continues in the next one.
                    continue;
                }
                let (bytes, later) = now.split_at(room.min(now.len()));
                let outside = RingError::Outside { part: "buffers", at };
                memory.write_slice(bytes, GuestAddress(at)).map_err(|_| outside)?;
                (at, room, now) = (at + bytes.len() as u64, room - bytes.len(), later);
            }
        }
        self.next_available = self.next_available.wrapping_add(self.heads.len() as u16);
        self.put_used(memory)?;
        Ok(Written::Done)
    }

    /// Returns whether the guest wants to be notified of buffers used since the last notification.
    /// They count as announced afterwards.
    pub fn needs_notification(&mut self, memory: &GuestMemoryMmap) -> Result<bool, RingError> {
        let (notified, now) = (self.notified.replace(self.next_used), self.next_used);
        // The guest must see the used index before its suppression state is read here.
        fence(Ordering::SeqCst);
        if !self.event_index {
            let wish: u16 = self.load(memory, self.place.available)?;
            return Ok(notified != Some(now) && wish & SUPPRESSED == 0);
        }
        // The first notification after a start is always sent.
        let Some(notified) = notified else { return Ok(true) };
        let wish: u16 = self.load(memory, self.used_event())?;
        // vring_need_event of linux/virtio_ring.h.
        Ok(now.wrapping_sub(wish).wrapping_sub(1) < now.wrapping_sub(notified))
    }

    /// Asks the guest for notifications of new buffers; returns whether any were offered meanwhile.
    pub fn enable_notification(&mut self, memory: &GuestMemoryMmap) -> Result<bool, RingError> {
        // All frames of a sending guest were read; a receiving guest had too few buffers.
        let seen = match self.way {
            RingDirection::FromGuest => self.next_available,
            RingDirection::ToGuest => self.seen,
        };
        match self.event_index {
            true => self.store(memory, self.available_event(), seen)?,
            false => self.store(memory, self.place.used, 0)?,
        }
        fence(Ordering::SeqCst);
        self.available(memory)?;
        Ok(self.seen != seen)
    }

    /// Turns notifications of new buffers off.
    pub fn suppress_notification(&self, memory: &GuestMemoryMmap) -> Result<(), RingError> {
        // With event indices, the guest notifies once when it passes the index that was asked for.
        if self.event_index { Ok(()) } else { self.store(memory, self.place.used, SUPPRESSED) }
    }

    /// Returns how many entries the guest offers.
    fn available(&mut self, memory: &GuestMemoryMmap) -> Result<u16, RingError> {
        let (from, size) = (self.next_available, self.place.size);
        let at = self.place.available + 2;
        let to = memory.load::<u16>(GuestAddress(at), Ordering::Acquire);
        let outside = RingError::Outside { part: "available entries", at };
        self.seen = u16::from_le(to.map_err(|_| outside)?);
        let count = self.seen.wrapping_sub(from);
        // The guest cannot offer more entries than the ring has.
        if count > size {
            return Err(RingError::Jump { from, to: self.seen, size });
        }
        Ok(count)
    }

    /// Appends the segments of the chain at an entry; returns its head, and the sum of the lengths.
    fn chain(&mut self, memory: &GuestMemoryMmap, entry: u16) -> Result<(u16, u64), RingError> {
        let slot = u64::from(entry % self.place.size);
        let head: u16 = self.load(memory, self.place.available + 4 + 2 * slot)?;
        let (mut table, mut count) = (self.place.descriptors, u32::from(self.place.size));
        let (mut index, mut direct, mut steps, mut length) = (head, true, 0, 0u64);
        loop {
            // The index is controlled by the guest.
            if u32::from(index) >= count {
                return Err(RingError::Index { index, count });
            }
            steps += 1;
            let limit = CHAIN_MAX.min(count as usize);
            // A chain that links to itself would never end.
            if steps > limit || self.segments.len() >= SEGMENTS_MAX {
                return Err(RingError::Loop(limit.min(SEGMENTS_MAX)));
            }
            let at = table + DESCRIPTOR * u64::from(index);
            let descriptor = Descriptor::read(memory, at)?;
            if descriptor.flags & flags::INDIRECT != 0 {
                let problem = if !direct {
                    Some("it is inside another indirect table")
                } else if descriptor.flags & flags::NEXT != 0 {
                    Some("another descriptor follows it")
                } else if descriptor.length == 0 || descriptor.length % DESCRIPTOR as u32 != 0 {
                    Some("expected a multiple of 16")
                } else if descriptor.length as usize > CHAIN_MAX * DESCRIPTOR as usize {
                    Some("expected at most 1024 descriptors")
                } else if descriptor.address.checked_add(descriptor.length.into()).is_none() {
                    Some("it exceeds the address space")
                } else {
                    None
                };
                // The table is the guest's memory: each property must hold before it is read.
                if let Some(problem) = problem {
                    return Err(RingError::Indirect { length: descriptor.length, problem });
                }
                let at = descriptor.address;
                // Reading would make the guest's memory resident at this process's expense.
                if !self.account.permits(memory, at, descriptor.length.into()) {
                    return Err(RingError::Untouched { part: "indirect descriptors", at });
                }
                (table, count) = (descriptor.address, descriptor.length / DESCRIPTOR as u32);
                (index, direct, steps) = (0, false, 0);
                continue;
            }
            self.way.check(descriptor.flags)?;
            length += u64::from(descriptor.length);
            let Descriptor { address, length, .. } = descriptor;
            // The end of the buffer must not wrap around.
            if address.checked_add(length.into()).is_none() {
                return Err(RingError::Outside { part: "buffers", at: address });
            }
            self.segments.push(Segment { address, length });
            // The last descriptor of the chain.
            if descriptor.flags & flags::NEXT == 0 {
                break;
            }
            index = descriptor.next;
        }
        Ok((head, length))
    }

    /// Returns the chains of `heads` to the guest, all at once.
    fn put_used(&mut self, memory: &GuestMemoryMmap) -> Result<(), RingError> {
        for (head, written) in &self.heads {
            let slot = u64::from(self.next_used % self.place.size);
            let at = self.place.used + 4 + 8 * slot;
            let mut element = [0; 8];
            element[..4].copy_from_slice(&u32::from(*head).to_le_bytes());
            element[4..].copy_from_slice(&written.to_le_bytes());
            let outside = RingError::Outside { part: "used entries", at };
            memory.write_slice(&element, GuestAddress(at)).map_err(|_| outside)?;
            self.next_used = self.next_used.wrapping_add(1);
        }
        let at = self.place.used + 2;
        let outside = RingError::Outside { part: "used entries", at };
        // The entries must be visible before the index.
        memory
            .store(self.next_used.to_le(), GuestAddress(at), Ordering::Release)
            .map_err(|_| outside)
    }

    /// Address of the guest's `used_event`: the used entry after which it wants a notification.
    fn used_event(&self) -> u64 {
        self.place.available + 4 + 2 * u64::from(self.place.size)
    }

    /// Address of our `avail_event`: the available entry after which we want a notification.
    fn available_event(&self) -> u64 {
        self.place.used + 4 + 8 * u64::from(self.place.size)
    }

    fn load(&self, memory: &GuestMemoryMmap, at: u64) -> Result<u16, RingError> {
        let word = memory.load::<u16>(GuestAddress(at), Ordering::Relaxed);
        word.map(u16::from_le).map_err(|_| RingError::Outside { part: "entries", at })
    }

    fn store(&self, memory: &GuestMemoryMmap, at: u64, word: u16) -> Result<(), RingError> {
        let stored = memory.store(word.to_le(), GuestAddress(at), Ordering::Relaxed);
        stored.map_err(|_| RingError::Outside { part: "entries", at })
    }
}

impl RingDirection {
    fn check(self, flags: u16) -> Result<(), RingError> {
        const READABLE: &str = "readable by the device";
        const WRITABLE: &str = "writable by the device";
        match (self, flags & flags::WRITE != 0) {
            (RingDirection::FromGuest, false) | (RingDirection::ToGuest, true) => Ok(()),
            (RingDirection::FromGuest, true) => {
                Err(RingError::Direction { got: WRITABLE, wanted: READABLE })
            }
            (RingDirection::ToGuest, false) => {
                Err(RingError::Direction { got: READABLE, wanted: WRITABLE })
            }
        }
    }
}

/// `struct virtq_desc`.
struct Descriptor {
    address: u64,
    length: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn read(memory: &GuestMemoryMmap, at: u64) -> Result<Descriptor, RingError> {
        let mut bytes = [0; DESCRIPTOR as usize];
        let outside = RingError::Outside { part: "descriptors", at };
        memory.read_slice(&mut bytes, GuestAddress(at)).map_err(|_| outside)?;
        let [a @ .., _, _, _, _, _, _, _, _] = bytes;
        let [_, _, _, _, _, _, _, _, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Ok(Descriptor {
            address: u64::from_le_bytes(a),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        })
    }
}

/// Checks the size, alignment and location of a ring.
fn check(
    memory: &GuestMemoryMmap,
    place: &RingLocation,
    account: &mut Account,
) -> Result<(), RingError> {
    let size = place.size;
    // virtio 1.2, section 2.7: a split ring has a power of two entries.
    if !size.is_power_of_two() || size > super::SIZE_MAX {
        return Err(RingError::Size(size));
    }
    let entries = u64::from(size);
    // The words after the entries are the event indices.
    for (part, at, alignment, length) in [
        ("descriptors", place.descriptors, 16, DESCRIPTOR * entries),
        ("available entries", place.available, 2, 6 + 2 * entries),
        ("used entries", place.used, 4, 6 + 8 * entries),
    ] {
        // An access to a misaligned ring could cross a page, and would not be atomic.
        if at % alignment != 0 {
            return Err(RingError::Alignment { part, at, wanted: alignment });
        }
        let inside = at.checked_add(length).is_some()
            && memory.check_range(GuestAddress(at), length as usize, Permissions::ReadWrite);
        // The addresses are the client's: all of the ring must be inside the guest's memory.
        if !inside {
            return Err(RingError::Outside { part, at });
        }
        if !account.permits(memory, at, length) {
            return Err(RingError::Untouched { part, at });
        }
    }
    Ok(())
}
