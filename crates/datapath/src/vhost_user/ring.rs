//! One split virtqueue from the device's side (virtio 1.2, section 2.7).
//!
//! Everything in it is the guest's, who may change it at any moment: each word is read
//! once, judged, and used as it was read. What breaks the rules ends the use of the ring
//! ([`RingError`]) until the guest sets it up anew. Each look has a bound: descriptors of
//! a chain, buffers of a frame, entries between two looks.

use std::sync::atomic::{Ordering, fence};

pub use super::ring_error::RingError;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

/// Descriptors of one chain, at most: as QEMU and vhost take them.
const CHAIN_MAX: usize = 1024;
/// Descriptors of the buffers for one frame, at most.
const SEGMENTS_MAX: usize = 2 * CHAIN_MAX;
/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;

/// `VIRTQ_DESC_F_*`.
mod flags {
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
}

/// `VRING_USED_F_NO_NOTIFY`, `VRING_AVAIL_F_NO_INTERRUPT`.
const SUPPRESSED: u16 = 1;

/// Where a ring is, in addresses of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of entries, a power of two.
    pub size: u16,
    /// Descriptor table.
    pub descriptors: u64,
    /// What the guest offers.
    pub available: u64,
    /// What was used of it.
    pub used: u64,
}

/// Part of a buffer.
#[derive(Debug, Clone, Copy)]
struct Segment {
    address: u64,
    length: u32,
}

/// Which way a ring goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The guest sends: its buffers are read.
    FromGuest,
    /// The guest receives: its buffers are written.
    ToGuest,
}

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// Nothing is there.
    Nothing,
    /// A frame of so many bytes is in the buffer.
    Frame(usize),
    /// A frame was longer than the buffer, and is gone.
    TooLong,
}

/// What became of a frame for the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The guest has it.
    Done,
    /// The guest has offered no room; nothing was changed.
    NoRoom,
    /// The guest's next buffer is too small for it, and buffers are not merged.
    TooSmall,
}

/// A ring in use. All that it knows between two looks is its own; the rest is the guest's.
#[derive(Debug)]
pub struct Ring {
    place: Place,
    way: Way,
    /// `VIRTIO_RING_F_EVENT_IDX` was agreed on.
    event_index: bool,
    next_available: u16,
    next_used: u16,
    /// What the guest had offered at the last look.
    seen: u16,
    /// `next_used` when the guest was told last; `None`: not yet.
    told: Option<u16>,
    segments: Vec<Segment>,
    heads: Vec<(u16, u32)>,
}

impl Ring {
    /// A ring that goes on at entry `base`.
    ///
    /// # Errors
    /// When its parts are not where they can be.
    pub fn new(
        memory: &GuestMemoryMmap,
        place: Place,
        way: Way,
        base: u16,
        event_index: bool,
    ) -> Result<Ring, RingError> {
        check(memory, &place)?;
        let mut ring = Ring {
            place,
            way,
            event_index,
            next_available: base,
            next_used: 0,
            seen: base,
            told: None,
            segments: Vec::new(),
            heads: Vec::new(),
        };
        // What is used is counted by the device alone; a successor goes on from there.
        ring.next_used = ring.load(memory, place.used + 2)?;
        Ok(ring)
    }

    /// The ring is at another place of the same memory, or the memory is mapped anew.
    ///
    /// # Errors
    /// As [`Ring::new`].
    pub fn replace(&mut self, memory: &GuestMemoryMmap, place: Place) -> Result<(), RingError> {
        check(memory, &place)?;
        self.place = place;
        Ok(())
    }

    /// The entry that is next.
    pub fn base(&self) -> u16 {
        self.next_available
    }

    /// Reads the next frame into `buffer`.
    ///
    /// # Errors
    /// [`RingError`]: the ring is not to be used any more.
    pub fn read(&mut self, memory: &GuestMemoryMmap, buffer: &mut [u8]) -> Result<Read, RingError> {
        if self.available(memory)? == 0 {
            return Ok(Read::Nothing);
        }
        self.segments.clear();
        self.heads.clear();
        let (head, length) = self.chain(memory, self.next_available)?;
        let fits = length <= buffer.len() as u64;
        if fits {
            let mut rest = &mut *buffer;
            for segment in &self.segments {
                // They fit: their sum was compared.
                let (now, later) = rest.split_at_mut(segment.length as usize);
                let outside = RingError::Outside { part: "buffers", at: segment.address };
                memory.read_slice(now, GuestAddress(segment.address)).map_err(|_| outside)?;
                rest = later;
            }
        }
        self.next_available = self.next_available.wrapping_add(1);
        self.heads.push((head, 0));
        self.put_used(memory)?;
        Ok(if fits { Read::Frame(length as usize) } else { Read::TooLong })
    }

    /// Writes a frame behind its header; `mergeable`: into as many buffers as it takes,
    /// whose number becomes the header's last two bytes.
    ///
    /// # Errors
    /// [`RingError`]: the ring is not to be used any more.
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
            if taken == available {
                return Ok(Written::NoRoom);
            }
            let (head, room) = self.chain(memory, self.next_available.wrapping_add(taken))?;
            if room == 0 {
                return Err(RingError::Empty);
            }
            if room < missing && !mergeable {
                return Ok(Written::TooSmall);
            }
            let part = room.min(missing);
            self.heads.push((head, part as u32));
            missing -= part;
        }
        if let [.., low, high] = header
            && mergeable
        {
            [*low, *high] = (self.heads.len() as u16).to_le_bytes();
        }
        // A part that is not all of a chain is its beginning, and the last: the segments of
        // all chains in a row have the order of the frame.
        let mut parts = [&*header, frame].into_iter();
        let mut now: &[u8] = parts.next().unwrap_or_default();
        'segments: for segment in &self.segments {
            let (mut at, mut room) = (segment.address, segment.length as usize);
            while room > 0 {
                if now.is_empty() {
                    let Some(next) = parts.next() else { break 'segments };
                    now = next;
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

    /// Whether the guest wants to be told of what was used since it was told last; it
    /// counts as told then.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn is_to_be_told(&mut self, memory: &GuestMemoryMmap) -> Result<bool, RingError> {
        let (told, now) = (self.told.replace(self.next_used), self.next_used);
        // What was used is seen before the guest's wish is read, and its wish after.
        fence(Ordering::SeqCst);
        if !self.event_index {
            let wish: u16 = self.load(memory, self.place.available)?;
            return Ok(told != Some(now) && wish & SUPPRESSED == 0);
        }
        let Some(told) = told else { return Ok(true) };
        let wish: u16 = self.load(memory, self.used_event())?;
        // vring_need_event of linux/virtio_ring.h.
        Ok(now.wrapping_sub(wish).wrapping_sub(1) < now.wrapping_sub(told))
    }

    /// Asks the guest to tell when it offers more; true if it has done so meanwhile.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn wants_to_be_told(&mut self, memory: &GuestMemoryMmap) -> Result<bool, RingError> {
        // A sender's frames have all been read; a receiver's buffers were too few.
        let seen = match self.way {
            Way::FromGuest => self.next_available,
            Way::ToGuest => self.seen,
        };
        match self.event_index {
            true => self.store(memory, self.available_event(), seen)?,
            false => self.store(memory, self.place.used, 0)?,
        }
        fence(Ordering::SeqCst);
        self.available(memory)?;
        Ok(self.seen != seen)
    }

    /// The guest need not tell of what it offers.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn need_not_be_told(&self, memory: &GuestMemoryMmap) -> Result<(), RingError> {
        // With indices it tells once, when it passes the one that was asked for.
        if self.event_index { Ok(()) } else { self.store(memory, self.place.used, SUPPRESSED) }
    }

    /// How many entries the guest offers.
    fn available(&mut self, memory: &GuestMemoryMmap) -> Result<u16, RingError> {
        let (from, size) = (self.next_available, self.place.size);
        let at = self.place.available + 2;
        let to = memory.load::<u16>(GuestAddress(at), Ordering::Acquire);
        let outside = RingError::Outside { part: "available entries", at };
        self.seen = u16::from_le(to.map_err(|_| outside)?);
        let count = self.seen.wrapping_sub(from);
        if count > size {
            return Err(RingError::Jump { from, to: self.seen, size });
        }
        Ok(count)
    }

    /// Appends the segments of the chain at an entry; its head, and the sum of lengths.
    fn chain(&mut self, memory: &GuestMemoryMmap, entry: u16) -> Result<(u16, u64), RingError> {
        let slot = u64::from(entry % self.place.size);
        let head: u16 = self.load(memory, self.place.available + 4 + 2 * slot)?;
        let (mut table, mut count) = (self.place.descriptors, u32::from(self.place.size));
        let (mut index, mut direct, mut steps, mut length) = (head, true, 0, 0u64);
        loop {
            if u32::from(index) >= count {
                return Err(RingError::Index { index, count });
            }
            steps += 1;
            let limit = CHAIN_MAX.min(count as usize);
            if steps > limit || self.segments.len() >= SEGMENTS_MAX {
                return Err(RingError::Loop(limit.min(SEGMENTS_MAX)));
            }
            let at = table + DESCRIPTOR * u64::from(index);
            let descriptor = Descriptor::read(memory, at)?;
            if descriptor.flags & flags::INDIRECT != 0 {
                let problem = if !direct {
                    Some("it is inside of another")
                } else if descriptor.flags & flags::NEXT != 0 {
                    Some("a descriptor follows it")
                } else if descriptor.length == 0 || descriptor.length % DESCRIPTOR as u32 != 0 {
                    Some("expected a multiple of 16")
                } else if descriptor.length as usize > CHAIN_MAX * DESCRIPTOR as usize {
                    Some("expected at most 1024 descriptors")
                } else if descriptor.address.checked_add(descriptor.length.into()).is_none() {
                    Some("it is beyond the end of addresses")
                } else {
                    None
                };
                if let Some(problem) = problem {
                    return Err(RingError::Indirect { length: descriptor.length, problem });
                }
                (table, count) = (descriptor.address, descriptor.length / DESCRIPTOR as u32);
                (index, direct, steps) = (0, false, 0);
                continue;
            }
            self.way.check(descriptor.flags)?;
            length += u64::from(descriptor.length);
            let Descriptor { address, length, .. } = descriptor;
            if address.checked_add(length.into()).is_none() {
                return Err(RingError::Outside { part: "buffers", at: address });
            }
            self.segments.push(Segment { address, length });
            if descriptor.flags & flags::NEXT == 0 {
                break;
            }
            index = descriptor.next;
        }
        Ok((head, length))
    }

    /// Hands the chains of `heads` back, all at once.
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
        // The entries are seen before the index is.
        memory
            .store(self.next_used.to_le(), GuestAddress(at), Ordering::Release)
            .map_err(|_| outside)
    }

    /// The guest's wish: the used entry after which it is to be told.
    fn used_event(&self) -> u64 {
        self.place.available + 4 + 2 * u64::from(self.place.size)
    }

    /// Ours: the available entry after which we are.
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

impl Way {
    fn check(self, flags: u16) -> Result<(), RingError> {
        const READABLE: &str = "for the device to read";
        const WRITABLE: &str = "for the device to write";
        match (self, flags & flags::WRITE != 0) {
            (Way::FromGuest, false) | (Way::ToGuest, true) => Ok(()),
            (Way::FromGuest, true) => Err(RingError::Direction { got: WRITABLE, wanted: READABLE }),
            (Way::ToGuest, false) => Err(RingError::Direction { got: READABLE, wanted: WRITABLE }),
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

/// Whether a ring can be there.
fn check(memory: &GuestMemoryMmap, place: &Place) -> Result<(), RingError> {
    let size = place.size;
    if !size.is_power_of_two() || size > super::SIZE_MAX {
        return Err(RingError::Size(size));
    }
    let entries = u64::from(size);
    // The words behind the entries are those of the event indices.
    for (part, at, alignment, length) in [
        ("descriptors", place.descriptors, 16, DESCRIPTOR * entries),
        ("available entries", place.available, 2, 6 + 2 * entries),
        ("used entries", place.used, 4, 6 + 8 * entries),
    ] {
        if at % alignment != 0 {
            return Err(RingError::Alignment { part, at, wanted: alignment });
        }
        let inside = at.checked_add(length).is_some()
            && memory.check_range(GuestAddress(at), length as usize, Permissions::ReadWrite);
        if !inside {
            return Err(RingError::Outside { part, at });
        }
    }
    Ok(())
}
