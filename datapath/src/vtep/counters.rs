//! Every packet's fate, counted by the thread that decides it.
//!
//! For each network, from the TAP and from the wire:
//! received = forwarded + answered + dropped. A packet from the wire that
//! belongs to no network is counted by the endpoint.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

/// Why a packet was not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// The TAP is down.
    Down,
    /// The socket or TAP that it goes to is full.
    Full,
    /// The kernel had no memory for it.
    Memory,
    /// The kernel would not take it, for any other reason.
    Refused,
    /// Shorter than its headers, or contradicting itself.
    Malformed,
    /// To be cut or summed, but not fit for it.
    Uncuttable,
    /// No remote end is known that it could go to.
    NoRemote,
    /// Too long for the path to its remote end, and nobody could be told.
    TooBig,
    /// The underlay does not reach the remote end.
    Unreachable,
    /// Longer than the receiving buffer.
    Truncated,
    /// Reserved bits of the VXLAN header are set: another protocol's.
    Reserved,
    /// To a network that is not known.
    UnknownVni,
    /// From a remote end that is not configured.
    Stranger,
    /// Its source address is none that a packet may come from.
    Source,
    /// Its source address is that of the TAP itself: a loop.
    Looped,
    /// Its source address is configured to be elsewhere.
    Spoofed,
    /// Its source address has moved too often.
    Moving,
    /// Congestion was met, which can only be told by loss (RFC 6040).
    Congestion,
}

impl DropReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [DropReason; 18] = [
        DropReason::Down,
        DropReason::Full,
        DropReason::Memory,
        DropReason::Refused,
        DropReason::Malformed,
        DropReason::Uncuttable,
        DropReason::NoRemote,
        DropReason::TooBig,
        DropReason::Unreachable,
        DropReason::Truncated,
        DropReason::Reserved,
        DropReason::UnknownVni,
        DropReason::Stranger,
        DropReason::Source,
        DropReason::Looped,
        DropReason::Spoofed,
        DropReason::Moving,
        DropReason::Congestion,
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
            DropReason::NoRemote => "no-remote",
            DropReason::TooBig => "too-big",
            DropReason::Unreachable => "unreachable",
            DropReason::Truncated => "truncated",
            DropReason::Reserved => "reserved-bits",
            DropReason::UnknownVni => "unknown-vni",
            DropReason::Stranger => "stranger",
            DropReason::Source => "source",
            DropReason::Looped => "looped",
            DropReason::Spoofed => "spoofed",
            DropReason::Moving => "moving",
            DropReason::Congestion => "congestion",
        }
    }

    /// The reason for a write to a TAP that failed.
    pub(super) fn of_write(error: &io::Error) -> DropReason {
        match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            Errno::EIO => DropReason::Down,
            Errno::EAGAIN => DropReason::Full,
            Errno::ENOMEM => DropReason::Memory,
            _ => DropReason::Refused,
        }
    }

    /// The reason for a datagram that could not be sent.
    pub(super) fn of_send(errno: Errno) -> DropReason {
        match errno {
            Errno::EAGAIN => DropReason::Full,
            Errno::ENOMEM | Errno::ENOBUFS => DropReason::Memory,
            Errno::EMSGSIZE => DropReason::TooBig,
            Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ENETDOWN => DropReason::Unreachable,
            _ => DropReason::Refused,
        }
    }
}

/// One direction of one network, or what the endpoint dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Frames read from the TAP, a super-packet being one; or VXLAN packets
    /// received, a merged datagram being several.
    pub received: u64,
    /// Bytes of their Ethernet frames.
    pub received_bytes: u64,
    /// Of these, how many were passed on.
    pub forwarded: u64,
    /// Their bytes.
    pub forwarded_bytes: u64,
    /// Answered with ICMP: too long for the path.
    pub answered: u64,
    /// System calls' worth of packets that went out: datagrams handed to the
    /// kernel (uncut), or frames written to the TAP (merged).
    pub handed_over: u64,
    /// Copies sent besides the one that counts as forwarded.
    pub replicas: u64,
    /// Copies besides it that could not be sent.
    pub replicas_lost: u64,
    /// Addresses that were not learned because the table was full.
    pub unlearned: u64,
    /// Dropped, by [`DropReason`].
    pub drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Dropped for all reasons together.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Dropped for one reason.
    pub fn dropped_by(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Name and value of all but the drops.
    pub fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("received", self.received),
            ("received-bytes", self.received_bytes),
            ("forwarded", self.forwarded),
            ("forwarded-bytes", self.forwarded_bytes),
            ("answered", self.answered),
            ("handed-over", self.handed_over),
            ("replicas", self.replicas),
            ("replicas-lost", self.replicas_lost),
            ("unlearned", self.unlearned),
        ]
    }

    /// With another thread's.
    #[must_use]
    pub fn plus(mut self, other: &Counters) -> Counters {
        let Counters {
            received,
            received_bytes,
            forwarded,
            forwarded_bytes,
            answered,
            handed_over,
            replicas,
            replicas_lost,
            unlearned,
            drops,
        } = other;
        self.received += received;
        self.received_bytes += received_bytes;
        self.forwarded += forwarded;
        self.forwarded_bytes += forwarded_bytes;
        self.answered += answered;
        self.handed_over += handed_over;
        self.replicas += replicas;
        self.replicas_lost += replicas_lost;
        self.unlearned += unlearned;
        for (sum, more) in self.drops.iter_mut().zip(drops) {
            *sum += more;
        }
        self
    }
}

/// One thread's counters of one direction: one thread writes, anyone reads.
/// Aligned so that two threads' never share a cache line (or a pair of them,
/// which processors fetch together).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Tally {
    received: AtomicU64,
    received_bytes: AtomicU64,
    forwarded: AtomicU64,
    forwarded_bytes: AtomicU64,
    answered: AtomicU64,
    handed_over: AtomicU64,
    replicas: AtomicU64,
    replicas_lost: AtomicU64,
    unlearned: AtomicU64,
    drops: [AtomicU64; DropReason::ALL.len()],
}

/// Adds without a locked instruction: there is one writer.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Tally {
    pub(super) fn receive(&self, bytes: usize) {
        add(&self.received, 1);
        add(&self.received_bytes, bytes as u64);
    }

    pub(super) fn forward(&self, packets: u64, bytes: u64) {
        add(&self.forwarded, packets);
        add(&self.forwarded_bytes, bytes);
    }

    pub(super) fn answer(&self) {
        add(&self.answered, 1);
    }

    pub(super) fn hand_over(&self) {
        add(&self.handed_over, 1);
    }

    pub(super) fn replicate(&self, copies: u64) {
        add(&self.replicas, copies);
    }

    pub(super) fn lose_replicas(&self, copies: u64) {
        add(&self.replicas_lost, copies);
    }

    pub(super) fn leave_unlearned(&self) {
        add(&self.unlearned, 1);
    }

    pub(super) fn discard(&self, reason: DropReason, packets: u64) {
        add(&self.drops[reason as usize], packets);
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
            answered: get(&self.answered),
            handed_over: get(&self.handed_over),
            replicas: get(&self.replicas),
            replicas_lost: get(&self.replicas_lost),
            unlearned: get(&self.unlearned),
            drops,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_as_listed() {
        for (number, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number, "{}", reason.name());
        }
    }
}
