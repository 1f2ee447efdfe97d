//! Every frame's fate, counted by the thread that decides it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

/// Why a frame was not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// The other device is down.
    Down,
    /// The other device's socket buffer is full.
    Full,
    /// The kernel had no memory for it.
    Memory,
    /// The kernel would not take it, for any other reason.
    Refused,
    /// Shorter than its headers, or contradicting itself.
    Malformed,
    /// To be cut or summed for the other device, but not fit for it.
    Uncuttable,
}

impl DropReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [DropReason; 6] = [
        DropReason::Down,
        DropReason::Full,
        DropReason::Memory,
        DropReason::Refused,
        DropReason::Malformed,
        DropReason::Uncuttable,
    ];

    /// One word, as counters are printed.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::Down => "down",
            DropReason::Full => "full",
            DropReason::Memory => "memory",
            DropReason::Refused => "refused",
            DropReason::Malformed => "malformed",
            DropReason::Uncuttable => "uncuttable",
        }
    }

    /// The reason for a write that failed.
    pub(super) fn of_write(error: &io::Error) -> DropReason {
        match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            Errno::EIO => DropReason::Down,
            Errno::EAGAIN => DropReason::Full,
            Errno::ENOMEM | Errno::ENOBUFS => DropReason::Memory,
            _ => DropReason::Refused,
        }
    }
}

/// One direction's counters. Bytes are those of Ethernet frames, super-packets
/// as one frame, without vnet headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Frames read.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames written to the other side, in one piece or all pieces.
    pub forwarded: u64,
    /// Bytes of the frames read that were forwarded.
    pub forwarded_bytes: u64,
    /// Forwarded by the kernel without crossing into user space; part of
    /// `received` and `forwarded`.
    pub in_kernel: u64,
    /// Super-packets that had to be cut for the other side.
    pub cut: u64,
    /// Pieces that were made of these.
    pub pieces: u64,
    /// ARP requests answered.
    pub answered: u64,
    /// Frames dropped, by [`DropReason`].
    pub drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Frames dropped for all reasons together.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Frames dropped for one reason.
    pub fn dropped_by(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// With another queue's.
    #[must_use]
    pub fn plus(mut self, other: &Counters) -> Counters {
        let Counters {
            received,
            received_bytes,
            forwarded,
            forwarded_bytes,
            in_kernel,
            cut,
            pieces,
            answered,
            drops,
        } = other;
        self.received += received;
        self.received_bytes += received_bytes;
        self.forwarded += forwarded;
        self.forwarded_bytes += forwarded_bytes;
        self.in_kernel += in_kernel;
        self.cut += cut;
        self.pieces += pieces;
        self.answered += answered;
        for (sum, more) in self.drops.iter_mut().zip(drops) {
            *sum += more;
        }
        self
    }
}

/// The counters of one queue and direction: one thread writes, anyone reads.
/// Aligned so that two threads' never share a cache line (or a pair of them,
/// which processors fetch together).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct QueueCounters {
    received: AtomicU64,
    received_bytes: AtomicU64,
    forwarded: AtomicU64,
    forwarded_bytes: AtomicU64,
    cut: AtomicU64,
    pieces: AtomicU64,
    answered: AtomicU64,
    drops: [AtomicU64; DropReason::ALL.len()],
}

/// Adds without a locked instruction: there is one writer.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl QueueCounters {
    pub(super) fn receive(&self, bytes: usize) {
        add(&self.received, 1);
        add(&self.received_bytes, bytes as u64);
    }

    pub(super) fn forward(&self, bytes: usize) {
        add(&self.forwarded, 1);
        add(&self.forwarded_bytes, bytes as u64);
    }

    pub(super) fn cut(&self, pieces: usize) {
        add(&self.cut, 1);
        add(&self.pieces, pieces as u64);
    }

    pub(super) fn answer(&self) {
        add(&self.answered, 1);
    }

    pub(super) fn discard(&self, reason: DropReason) {
        add(&self.drops[reason as usize], 1);
    }

    pub(super) fn read(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut drops = [0; DropReason::ALL.len()];
        for (to, from) in drops.iter_mut().zip(&self.drops) {
            *to = get(from);
        }
        Counters {
            received: get(&self.received),
            received_bytes: get(&self.received_bytes),
            forwarded: get(&self.forwarded),
            forwarded_bytes: get(&self.forwarded_bytes),
            in_kernel: 0,
            cut: get(&self.cut),
            pieces: get(&self.pieces),
            answered: get(&self.answered),
            drops,
        }
    }
}
