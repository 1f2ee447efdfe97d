//! A guest and its QEMU in this process. It speaks the protocol and fills rings as Linux does, or
//! in invalid ways.

use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use packet::vnet_hdr::{VnetHdr, flags, gso_type};
use test_support::program::until;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use super::SIZE;
use crate::vhost_user::features;

/// Size of the memory of most guests, bytes.
pub const MEMORY: u64 = 8 << 20;
/// The client's address for the guest's address 0.
pub const USER: u64 = 0x7f00_0000_0000;
/// Size of a receive buffer, bytes.
pub const BUFFER: u32 = 2048;
const LIMIT: Duration = Duration::from_secs(10);

/// Returns a valid UDP frame over IPv4 with a payload of that length.
pub fn frame(length: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..length).map(|at| (at * 7 % 251) as u8).collect();
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(1000, 2000);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &payload).unwrap();
    bytes
}

/// Returns a TCP GSO packet over IPv4 with a partial checksum, and its header.
pub fn gso_packet(payload: usize, size: u16) -> ([u8; 12], Vec<u8>) {
    let bytes: Vec<u8> = (0..payload).map(|at| (at * 11 % 253) as u8).collect();
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1000, 2000, 1, 1000);
    let mut frame = Vec::new();
    builder.write(&mut frame, &bytes).unwrap();
    let header = VnetHdr {
        flags: flags::NEEDS_CSUM,
        gso_type: gso_type::TCPV4,
        hdr_len: 54,
        gso_size: size,
        csum_start: 34,
        csum_offset: 16,
        ..VnetHdr::default()
    };
    (*header.to_bytes().first_chunk().unwrap(), frame)
}

/// The guest's side of a ring.
pub struct Driver {
    pub base: u64,
    pub available: u16,
    pub used: u16,
    event_index: bool,
    pub kick: EventFd,
    pub call: EventFd,
}

impl Driver {
    fn new(number: usize, event_index: bool) -> Driver {
        let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap();
        let base = 0x10000 * number as u64;
        Driver { base, available: 0, used: 0, event_index, kick: event(), call: event() }
    }

    pub fn available_at(&self) -> u64 {
        self.base + 0x4000
    }

    pub fn used_at(&self) -> u64 {
        self.base + 0x8000
    }

    pub fn descriptor(&self, memory: &GuestMemoryMmap, index: u16, parts: (u64, u32, u16, u16)) {
        let at = GuestAddress(self.base + 16 * u64::from(index));
        let (address, length, flags, next) = parts;
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        memory.write_slice(&bytes, at).unwrap();
    }

    /// Offers a chain by its head, and notifies the device if it wants that.
    pub fn offer(&mut self, memory: &GuestMemoryMmap, head: u16) {
        let slot = u64::from(self.available % SIZE);
        memory.write_obj(head, GuestAddress(self.available_at() + 4 + 2 * slot)).unwrap();
        let old = self.available;
        self.set_available(memory, old.wrapping_add(1));
        std::sync::atomic::fence(Ordering::SeqCst);
        let load = |at| memory.load::<u16>(GuestAddress(at), Ordering::Relaxed).unwrap();
        let wanted = match self.event_index {
            true => {
                let event = load(self.used_at() + 4 + 8 * u64::from(SIZE));
                self.available.wrapping_sub(event).wrapping_sub(1)
                    < self.available.wrapping_sub(old)
            }
            false => load(self.used_at()) & 1 == 0,
        };
        if wanted {
            self.kick.write(1).unwrap();
        }
    }

    pub fn set_available(&mut self, memory: &GuestMemoryMmap, index: u16) {
        self.available = index;
        memory.store(index, GuestAddress(self.available_at() + 2), Ordering::Release).unwrap();
    }

    /// Returns the next used chain: its head, and how much was written.
    pub fn used(&mut self, memory: &GuestMemoryMmap) -> Option<(u32, u32)> {
        let at = GuestAddress(self.used_at() + 2);
        if memory.load::<u16>(at, Ordering::Acquire).unwrap() == self.used {
            return None;
        }
        let at = self.used_at() + 4 + 8 * u64::from(self.used % SIZE);
        self.used = self.used.wrapping_add(1);
        if self.event_index {
            let wish = GuestAddress(self.available_at() + 4 + 2 * u64::from(SIZE));
            memory.store(self.used, wish, Ordering::SeqCst).unwrap();
        }
        let head = memory.read_obj(GuestAddress(at)).unwrap();
        Some((head, memory.read_obj(GuestAddress(at + 4)).unwrap()))
    }
}

/// A guest whose client is connected.
pub struct Guest {
    pub stream: UnixStream,
    pub memory: GuestMemoryMmap,
    pub file: std::os::fd::OwnedFd,
    /// Size of the memory, bytes.
    size: u64,
    /// The receive ring and the transmit ring.
    pub rings: Vec<Driver>,
}

impl Guest {
    /// Connects without setting anything up.
    pub fn connect(path: &Path, features: u64, queues: usize) -> Guest {
        Guest::connect_with(path, features, queues, MEMORY)
    }

    fn connect_with(path: &Path, features: u64, queues: usize, size: u64) -> Guest {
        let file = memfd_create(c"guest", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&file, size as i64).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        let place = FileOffset::new(file.try_clone().unwrap().into(), 0);
        let region = GuestRegionMmap::from_range(GuestAddress(0), size as usize, Some(place));
        let memory = GuestMemoryMmap::from_regions(vec![region.unwrap()]).unwrap();
        let event_index = features & features::EVENT_INDEX != 0;
        let rings = (0..2 * queues).map(|number| Driver::new(number, event_index)).collect();
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Guest { stream, memory, file, size, rings }
    }

    /// Connects and sets everything up, with receive buffers.
    pub fn up(path: &Path, features: u64, queues: usize) -> Guest {
        let mut guest = Guest::up_without_buffers(path, features, queues, MEMORY);
        for queue in 0..queues {
            guest.fill(2 * queue, SIZE);
        }
        guest.wait();
        guest
    }

    /// Connects and sets everything up but receive buffers, with memory of `size` bytes.
    pub fn up_without_buffers(path: &Path, features: u64, queues: usize, size: u64) -> Guest {
        let guest = Guest::connect_with(path, features, queues, size);
        let offered = guest.ask(1);
        assert_eq!(features & !offered, 0, "{features:#x} of {offered:#x}");
        assert_eq!(guest.ask(15), features::PROTOCOL);
        guest.send(16, &features::PROTOCOL.to_ne_bytes(), &[]);
        assert_eq!(guest.ask(17), queues as u64);
        guest.send(3, &[], &[]);
        guest.send(2, &features.to_ne_bytes(), &[]);
        guest.send_memory();
        for ring in 0..guest.rings.len() {
            guest.start(ring, 0);
        }
        guest.wait();
        guest
    }

    pub fn send(&self, request: u32, payload: &[u8], descriptors: &[BorrowedFd<'_>]) {
        self.send_flagged(request, 1, payload, descriptors);
    }

    fn send_flagged(&self, request: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        for word in [request, flags, payload.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(payload);
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let rights = if fds.is_empty() { &[] } else { &rights[..] };
        let sent = sendmsg::<()>(
            self.stream.as_raw_fd(),
            &[IoSlice::new(&bytes)],
            rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// Sends a request and returns the number in the answer.
    pub fn ask(&self, request: u32) -> u64 {
        self.send(request, &[], &[]);
        self.answer(request)
    }

    fn answer(&self, request: u32) -> u64 {
        let mut answer = [0; 20];
        (&self.stream).read_exact(&mut answer).unwrap();
        assert_eq!(answer[..4], request.to_ne_bytes());
        u64::from_ne_bytes(answer[12..].try_into().unwrap())
    }

    /// Waits until all sent messages have been processed.
    pub fn wait(&self) {
        self.send_flagged(3, 9, &[], &[]);
        assert_eq!(self.answer(3), 0);
    }

    pub fn state(&self, request: u32, ring: usize, value: u32) {
        let payload = [(ring as u32).to_ne_bytes(), value.to_ne_bytes()].concat();
        self.send(request, &payload, &[]);
    }

    pub fn send_memory(&self) {
        let mut payload = [1u32.to_ne_bytes(), [0; 4]].concat();
        for word in [0, self.size, USER, 0] {
            payload.extend(word.to_ne_bytes());
        }
        self.send(5, &payload, &[self.file.as_fd()]);
    }

    pub fn send_address(&self, ring: usize, parts: [u64; 3]) {
        let mut payload = [(ring as u32).to_ne_bytes(), [0; 4]].concat();
        for word in parts.into_iter().chain([0]) {
            payload.extend(word.to_ne_bytes());
        }
        self.send(9, &payload, &[]);
    }

    /// Sets up a ring that continues at `base`.
    pub fn start(&self, ring: usize, base: u16) {
        let driver = &self.rings[ring];
        self.state(8, ring, SIZE.into());
        self.state(10, ring, base.into());
        let at = |at: u64| USER + at;
        self.send_address(ring, [at(driver.base), at(driver.used_at()), at(driver.available_at())]);
        self.send(13, &(ring as u64).to_ne_bytes(), &[driver.call.as_fd()]);
        self.send(12, &(ring as u64).to_ne_bytes(), &[driver.kick.as_fd()]);
        self.state(18, ring, 1);
    }

    /// Stops a ring; returns its next entry.
    pub fn stop(&self, ring: usize) -> u16 {
        self.state(11, ring, 0);
        (self.answer(11) >> 32) as u16
    }

    fn buffer(&self, ring: usize, index: u16) -> u64 {
        (1 << 20) + (ring as u64 * u64::from(SIZE) + u64::from(index)) * u64::from(BUFFER)
    }

    /// Offers this many receive buffers.
    pub fn fill(&mut self, ring: usize, count: u16) {
        for index in 0..count {
            let at = self.buffer(ring, index);
            self.rings[ring].descriptor(&self.memory, index, (at, BUFFER, 2, 0));
            self.rings[ring].offer(&self.memory, index);
        }
    }

    /// Sends a frame with its header, in parts as Linux does, or through an indirect table.
    pub fn transmit(&mut self, header: [u8; 12], frame: &[u8], indirect: bool) {
        let bytes = [&header[..], frame].concat();
        let at = 4 << 20;
        self.memory.write_slice(&bytes, GuestAddress(at)).unwrap();
        let mut parts = vec![(at, 12u32)];
        let mut from = 12;
        while from < bytes.len() {
            let length = (bytes.len() - from).min(17_000);
            parts.push((at + from as u64, length as u32));
            from += length;
        }
        let ring = &mut self.rings[1];
        let count = parts.len() as u16;
        let table = 3 << 20;
        for (index, (at, length)) in parts.into_iter().enumerate() {
            let index = index as u16;
            let flags = u16::from(index + 1 < count);
            let descriptor = (at, length, flags, index + 1);
            if indirect {
                let base = std::mem::replace(&mut ring.base, table);
                ring.descriptor(&self.memory, index, descriptor);
                ring.base = base;
            } else {
                ring.descriptor(&self.memory, index, descriptor);
            }
        }
        if indirect {
            ring.descriptor(&self.memory, 0, (table, 16 * u32::from(count), 4, 0));
        }
        ring.offer(&self.memory, 0);
        let memory = &self.memory;
        until("a frame that was sent is taken", || {
            let used = ring.used(memory);
            assert!(used.is_none_or(|used| used == (0, 0)), "{used:?}");
            used.is_some()
        });
    }

    /// Receives a frame with its header of 12 bytes, and offers its buffers again.
    pub fn receive(&mut self) -> Option<([u8; 12], Vec<u8>)> {
        let (head, length) = self.rings[0].used(&self.memory)?;
        let mut bytes = vec![0; length as usize];
        let at = GuestAddress(self.buffer(0, head as u16));
        self.memory.read_slice(&mut bytes, at).unwrap();
        self.rings[0].offer(&self.memory, head as u16);
        let header: [u8; 12] = *bytes.first_chunk().unwrap();
        let buffers = u16::from_le_bytes([header[10], header[11]]);
        for _ in 1..buffers {
            // All buffers of a frame are used at once.
            let (head, length) = self.rings[0].used(&self.memory).unwrap();
            let mut more = vec![0; length as usize];
            let at = GuestAddress(self.buffer(0, head as u16));
            self.memory.read_slice(&mut more, at).unwrap();
            bytes.extend(more);
            self.rings[0].offer(&self.memory, head as u16);
        }
        Some((header, bytes.split_off(12)))
    }

    /// Waits for the next frame.
    pub fn expect(&mut self) -> ([u8; 12], Vec<u8>) {
        let mut received = None;
        until("a frame comes", || {
            received = self.receive();
            received.is_some()
        });
        received.unwrap()
    }

    /// Returns whether the other side has closed the connection.
    pub fn is_sent_away(&self) -> bool {
        matches!((&self.stream).read(&mut [0]), Ok(0) | Err(_))
    }
}
