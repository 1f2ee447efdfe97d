//! Frames from several descriptors by io_uring. One request reads a descriptor repeatedly
//! (`IORING_OP_READ_MULTISHOT`, Linux 6.7). All requests share their buffers, so one system call
//! returns all available frames.
//!
//! A system call filter cannot see the operations of a ring. Therefore the ring is restricted to
//! these reads, polls and their cancellation before it is enabled.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, CancelBuilder, Fd};
use io_uring::{IoUring, cqueue, opcode, register::Restriction, squeue};
use nix::errno::Errno;

use crate::{Error, Result};

const PAGE: usize = 4096;

/// Buffer group used by all reads.
const GROUP: u16 = 0;

/// `user_data` of a cancellation.
const CANCEL: u64 = u64::MAX;

/// How many times completions are awaited when a ring ends.
const PATIENCE: usize = 64;

#[derive(Debug)]
pub enum Completion<'a> {
    /// A frame of that source; the caller owns the buffer until the next event.
    Frame(usize, &'a mut [u8]),
    /// The source, which is only polled, is readable.
    Readable(usize),
    /// Reading from the source failed; it is not read again.
    Failed(usize, Errno),
}

#[derive(Debug)]
struct Source {
    fd: OwnedFd,
    /// Whether frames are read from it; otherwise it is only polled.
    frames: bool,
    /// Whether a request for it is pending.
    armed: bool,
    failed: bool,
}

/// Buffers, and the ring in which the kernel finds the free ones.
///
/// Invariant: the kernel may write to a buffer from the time its entry is published until a
/// completion names it. Only then, and until the buffer is published again, does it belong to this
/// process.
struct Buffers {
    memory: NonNull<u8>,
    layout: Layout,
    count: u16,
    size: usize,
    tail: u16,
}

// SAFETY: only this value owns the memory; the kernel does not care which thread publishes entries.
unsafe impl Send for Buffers {}

impl Buffers {
    /// `count` must be a power of two.
    fn new(count: u16, size: usize) -> Option<Buffers> {
        // The entries come first, because the kernel requires them at the start of a page.
        let entries = Buffers::entries_len(count);
        let layout = Layout::from_size_align(entries + usize::from(count) * size, PAGE).ok()?;
        // SAFETY: the layout has a size of at least a page.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Some(Buffers { memory, layout, count, size, tail: 0 })
    }

    fn entries_len(count: u16) -> usize {
        (usize::from(count) * size_of::<BufRingEntry>()).next_multiple_of(PAGE)
    }

    fn buffer(&mut self, id: u16) -> *mut u8 {
        let offset = Buffers::entries_len(self.count) + usize::from(id) * self.size;
        debug_assert!(id < self.count);
        // SAFETY: `id` is less than `count`, so the offset is within the allocation.
        unsafe { self.memory.as_ptr().add(offset) }
    }

    /// Passes a buffer to the kernel.
    fn publish(&mut self, id: u16) {
        let address = self.buffer(id) as u64;
        let entries = self.memory.as_ptr().cast::<BufRingEntry>();
        let at = usize::from(self.tail & (self.count - 1));
        // SAFETY: `at` is less than `count`, the number of entries at the start of the memory,
        // which is aligned to a page. The kernel reads an entry only after the tail has passed it.
        // The tail is in the first entry, aligned to two bytes, and no reference to that entry
        // exists then.
        unsafe {
            let entry = &mut *entries.add(at);
            entry.set_addr(address);
            entry.set_len(self.size as u32);
            entry.set_bid(id);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout. The owner has ensured that the kernel no longer
        // writes there (`FrameRing::drop`).
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

pub struct FrameRing {
    ring: IoUring,
    /// `None` after the memory was leaked because the kernel might still write there.
    buffers: Option<Buffers>,
    sources: Vec<Source>,
    /// The buffer that the caller has.
    lent: Option<u16>,
}

impl fmt::Debug for FrameRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameRing").field("sources", &self.sources).finish_non_exhaustive()
    }
}

fn failed(operation: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::io(operation, "ring of frames", &error)
}

impl FrameRing {
    /// Creates a ring that reads frames of at most `size` bytes from the first descriptors and
    /// polls the others, with `count` buffers (a power of two). Sources are numbered in that order.
    /// Nothing is read before the first [`FrameRing::wait`].
    ///
    /// # Errors
    /// `EPERM` if io_uring is disabled (`kernel.io_uring_disabled`) or filtered, `ENOSYS` in
    /// kernels without it, `EINVAL` before Linux 6.7.
    pub fn new(
        frames: &[BorrowedFd<'_>],
        polled: &[BorrowedFd<'_>],
        count: u16,
        size: usize,
    ) -> Result<FrameRing> {
        // The kernel masks indexes of a ring of buffers.
        if !count.is_power_of_two() || size == 0 || u32::try_from(size).is_err() {
            return Err(Error::new("io_uring_register", "buffers", Errno::EINVAL));
        }
        let mut sources = Vec::new();
        for (list, frames) in [(frames, true), (polled, false)] {
            for fd in list {
                let fd = fd.try_clone_to_owned().map_err(failed("dup"))?;
                sources.push(Source { fd, frames, armed: false, failed: false });
            }
        }
        let mut builder = IoUring::builder();
        // Completions are processed only on request, so they do not interrupt this thread. A source
        // has at most one request; all requests may end at once in addition to their frames.
        builder.setup_coop_taskrun().setup_r_disabled();
        builder.setup_cqsize(2 * u32::from(count) + 4 * sources.len() as u32);
        let ring = builder.build(4 * sources.len().max(1) as u32);
        let ring = ring.map_err(failed("io_uring_setup"))?;
        let submitter = ring.submitter();
        let mut probe = io_uring::register::Probe::new();
        submitter.register_probe(&mut probe).map_err(failed("io_uring_register(PROBE)"))?;
        // Without multishot reads, each frame would need a request.
        if !probe.is_supported(opcode::ReadMulti::CODE) {
            let operation = "io_uring_register(PROBE): IORING_OP_READ_MULTISHOT (Linux 6.7)";
            return Err(Error::new(operation, "ring of frames", Errno::EOPNOTSUPP));
        }
        let mut buffers = Buffers::new(count, size)
            .ok_or_else(|| Error::new("allocate", "buffers of a ring", Errno::ENOMEM))?;
        // SAFETY: the entries are at that address, in that number, and stay there: they are freed
        // after the ring has ended, or never (`FrameRing::drop`).
        let registered = unsafe {
            let address = buffers.memory.as_ptr() as u64;
            submitter.register_buf_ring_with_flags(address, count, GROUP, 0)
        };
        registered.map_err(failed("io_uring_register(PBUF_RING)"))?;
        let operations =
            [opcode::ReadMulti::CODE, opcode::PollAdd::CODE, opcode::AsyncCancel2::CODE];
        let mut only: Vec<_> = operations.into_iter().map(Restriction::sqe_op).collect();
        only.push(Restriction::sqe_flags_allowed(squeue::Flags::BUFFER_SELECT.bits()));
        submitter
            .register_restrictions(&mut only)
            .map_err(failed("io_uring_register(RESTRICTIONS)"))?;
        submitter.register_enable_rings().map_err(failed("io_uring_register(ENABLE_RINGS)"))?;
        for id in 0..count {
            buffers.publish(id);
        }
        Ok(FrameRing { ring, buffers: Some(buffers), sources, lent: None })
    }

    /// Waits for an event or a signal.
    ///
    /// # Errors
    /// No error is known for a working ring.
    pub fn wait(&mut self) -> Result<()> {
        self.take_back();
        self.arm()?;
        match self.ring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            // EBUSY: completions must be taken first.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) => Ok(()),
            Err(error) => Err(failed("io_uring_enter")(error)),
        }
    }

    pub fn event(&mut self) -> Option<Completion<'_>> {
        self.take_back();
        loop {
            let entry = self.ring.completion().next()?;
            // The completion of a cancel request carries no frame.
            if entry.user_data() == CANCEL {
                continue;
            }
            let at = entry.user_data() as usize;
            let source = self.sources.get_mut(at)?;
            // Without MORE the request has ended and must be submitted again.
            source.armed = cqueue::more(entry.flags());
            let errno = match entry.result() {
                result if result < 0 => Some(Errno::from_raw(-result)),
                _ => None,
            };
            match (errno, cqueue::buffer_select(entry.flags())) {
                (None, Some(id)) if source.frames => {
                    self.lent = Some(id);
                    let length = entry.result() as usize;
                    let buffers = self.buffers.as_mut()?;
                    let length = length.min(buffers.size);
                    let start = buffers.buffer(id);
                    // SAFETY: a completion has named the buffer, so it belongs to this process
                    // until it is published again, which needs `&mut self`. It has `size` bytes.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(start, length) };
                    return Some(Completion::Frame(at, bytes));
                }
                (None, _) if !source.frames => return Some(Completion::Readable(at)),
                // Nothing was read. That only happens at the end of a file, which devices do not
                // have.
                (None, _) => {}
                // All buffers were in use; they are free again now.
                (Some(Errno::ENOBUFS | Errno::EINTR | Errno::EAGAIN), _) => {}
                (Some(errno), id) => {
                    self.lent = id;
                    source.failed = true;
                    return Some(Completion::Failed(at, errno));
                }
            }
        }
    }

    /// Returns the caller's buffer to the kernel.
    fn take_back(&mut self) {
        if let (Some(id), Some(buffers)) = (self.lent.take(), self.buffers.as_mut()) {
            buffers.publish(id);
        }
    }

    /// Submits a request for each source that has none.
    fn arm(&mut self) -> Result<()> {
        for (at, source) in self.sources.iter_mut().enumerate() {
            // An armed read continues by itself; a failed source stays silent.
            if source.armed || source.failed {
                continue;
            }
            let fd = Fd(source.fd.as_raw_fd());
            let entry = if source.frames {
                opcode::ReadMulti::new(fd, 0, GROUP).build()
            } else {
                opcode::PollAdd::new(fd, libc::POLLIN as u32).build()
            };
            // SAFETY: this ring owns the descriptor, which is open; the buffers are registered.
            let pushed = unsafe { self.ring.submission().push(&entry.user_data(at as u64)) };
            // The queue has room for several requests per source.
            pushed.map_err(|_| Error::new("io_uring", "submission queue", Errno::ENOBUFS))?;
            source.armed = true;
        }
        Ok(())
    }

    /// Cancels all requests; returns true if all have ended.
    fn cancel(&mut self) -> bool {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(CANCEL);
        // SAFETY: a cancellation refers to no memory.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return false;
        }
        for _ in 0..PATIENCE {
            // The kernel no longer writes into the buffers.
            if !self.sources.iter().any(|source| source.armed) {
                return true;
            }
            if self.ring.submit_and_wait(1).is_err() {
                return false;
            }
            while let Some(entry) = self.ring.completion().next() {
                if let Some(source) = self.sources.get_mut(entry.user_data() as usize) {
                    source.armed &= cqueue::more(entry.flags());
                }
            }
        }
        false
    }
}

impl Drop for FrameRing {
    fn drop(&mut self) {
        if !self.cancel() {
            // Leaking the memory is better than letting the kernel write to it after it is reused.
            std::mem::forget(self.buffers.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;
    use std::time::{Duration, Instant};
    use test_support::require;

    fn ring(frames: &[BorrowedFd<'_>], polled: &[BorrowedFd<'_>]) -> crate::Result<FrameRing> {
        FrameRing::new(frames, polled, 4, 2048)
    }

    #[test]
    fn more_frames_than_buffers_arrive_in_order() {
        let (here, there) = UnixDatagram::pair().unwrap();
        let mut ring = require!(ring(&[here.as_fd()], &[]));
        for round in 0..20u8 {
            for n in 0..9u8 {
                there.send(&[round, n, 7]).unwrap();
            }
            let mut wanted = 0;
            while wanted < 9 {
                ring.wait().unwrap();
                while let Some(event) = ring.event() {
                    let Completion::Frame(0, bytes) = event else { panic!("{event:?}") };
                    assert_eq!(bytes, [round, wanted, 7]);
                    wanted += 1;
                }
            }
        }
    }

    #[test]
    fn a_polled_descriptor_is_reported_each_time() {
        let (mut here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
        let (quiet, _other) = UnixDatagram::pair().unwrap();
        let mut ring = require!(ring(&[quiet.as_fd()], &[here.as_fd()]));
        for _ in 0..3 {
            there.write_all(b"x").unwrap();
            ring.wait().unwrap();
            assert!(matches!(ring.event(), Some(Completion::Readable(1))));
            assert!(ring.event().is_none());
            assert_eq!(here.read(&mut [0; 8]).unwrap(), 1);
        }
    }

    #[test]
    fn no_descriptor_stays_open() {
        let (here, there) = UnixDatagram::pair().unwrap();
        let mut ring = require!(ring(&[here.as_fd()], &[]));
        there.send(b"frame").unwrap();
        ring.wait().unwrap();
        let Some(Completion::Frame(0, bytes)) = ring.event() else { panic!("no frame") };
        assert_eq!(bytes, b"frame");
        drop((ring, here));
        // The last reader disappears as soon as the kernel has ended the ring.
        there.set_nonblocking(true).unwrap();
        let gone = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
        let limit = Instant::now() + Duration::from_secs(20);
        while !there.send(b"frame").is_err_and(gone) {
            assert!(Instant::now() < limit, "it is still open");
            std::thread::yield_now();
        }
    }
}
