//! Every packet's fate, counted by the thread that decides it.
//!
//! received = forwarded + answered + dropped, for each way that packets go.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

/// Why a packet was not forwarded. The two-TAP bridge has the first six only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// The TAP that it goes to is down.
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
    /// Its source address is that of a tenant here, who still sends.
    InUse,
    /// Congestion was met, which can only be told by loss (RFC 6040).
    Congestion,
    /// Its outer checksum is wrong.
    Checksum,
}

impl DropReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [DropReason; 19] = [
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
        DropReason::InUse,
        DropReason::Congestion,
        DropReason::Checksum,
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
            DropReason::InUse => "source-in-use",
            DropReason::Congestion => "congestion",
            DropReason::Checksum => "checksum",
        }
    }

    /// The reason for a write to a TAP that failed.
    pub(crate) fn of_write(error: &io::Error) -> DropReason {
        match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            Errno::EIO => DropReason::Down,
            Errno::EAGAIN => DropReason::Full,
            Errno::ENOMEM | Errno::ENOBUFS => DropReason::Memory,
            _ => DropReason::Refused,
        }
    }

    /// The reason for a datagram that could not be sent.
    pub(crate) fn of_send(errno: Errno) -> DropReason {
        match errno {
            Errno::EAGAIN => DropReason::Full,
            Errno::ENOMEM | Errno::ENOBUFS => DropReason::Memory,
            Errno::EMSGSIZE => DropReason::TooBig,
            Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ENETDOWN => DropReason::Unreachable,
            _ => DropReason::Refused,
        }
    }
}

/// What became of a question of the TAP for a neighbour's hardware address. Endpoint
/// only, where it answers such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Resolution {
    /// An ARP request was answered.
    Arp,
    /// A neighbour solicitation was answered.
    Discovery,
    /// Duplicate address detection: the owner's to answer, if there is one.
    Duplicate,
    /// For an address of the asker's own side, where its owner hears it.
    OwnSide,
    /// Nobody is known to have the address.
    Unknown,
}

impl Resolution {
    /// All, in the order of their numbers. The first two are answers; the others were
    /// flooded.
    pub const ALL: [Resolution; 5] = [
        Resolution::Arp,
        Resolution::Discovery,
        Resolution::Duplicate,
        Resolution::OwnSide,
        Resolution::Unknown,
    ];

    /// One word, as counters are printed.
    pub const fn name(self) -> &'static str {
        match self {
            Resolution::Arp => "arp-answered",
            Resolution::Discovery => "nd-answered",
            Resolution::Duplicate => "duplicate-check",
            Resolution::OwnSide => "own-side",
            Resolution::Unknown => "unknown",
        }
    }
}

/// What became of a source address that was new or came from another place than before.
/// The packet went its way. Endpoint only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Learning {
    /// It is at the new place from now on.
    Moved,
    /// It went back to the place that had it before and still sends.
    Returned,
    /// It stays: the place that has it still sends.
    Contested,
    /// It was not learned: its remote end has as many as one may have.
    Quota,
    /// It was not learned: the table is full.
    Full,
}

impl Learning {
    /// All, in the order of their numbers.
    pub const ALL: [Learning; 5] =
        [Learning::Moved, Learning::Returned, Learning::Contested, Learning::Quota, Learning::Full];

    /// One word, as counters are printed.
    pub const fn name(self) -> &'static str {
        match self {
            Learning::Moved => "moved",
            Learning::Returned => "returned",
            Learning::Contested => "contested",
            Learning::Quota => "quota",
            Learning::Full => "table-full",
        }
    }
}

/// One direction of a bridge or of a network, or what an endpoint dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters<T = u64> {
    /// Frames read from a TAP, a GSO packet being one; or VXLAN packets received,
    /// a merged datagram being several.
    pub received: T,
    /// Bytes of their Ethernet frames.
    pub received_bytes: T,
    /// Of these, how many were passed on.
    pub forwarded: T,
    /// Bytes of the Ethernet frames of `forwarded`.
    pub forwarded_bytes: T,
    /// Answered instead: ARP requests, neighbour solicitations; packets too long for
    /// the path.
    pub answered: T,
    /// Forwarded by the kernel without crossing into user space; part of `received`
    /// and `forwarded`. Bridge only.
    pub in_kernel: T,
    /// GSO packets that had to be cut for the other side. Bridge only.
    pub cut: T,
    /// Pieces that were made of these. Bridge only.
    pub pieces: T,
    /// System calls' worth of packets that went out: datagrams handed to the kernel
    /// (uncut), or frames written to the TAP (merged). Endpoint only.
    pub handed_over: T,
    /// Copies sent besides the one that counts as forwarded. Endpoint only.
    pub replicas: T,
    /// Copies besides it that could not be sent. Endpoint only.
    pub replicas_lost: T,
    /// Addresses that were new or at another place, by [`Learning`].
    pub learnings: [T; Learning::ALL.len()],
    /// Questions for neighbours, by [`Resolution`].
    pub resolutions: [T; Resolution::ALL.len()],
    /// Packets dropped, indexed by [`DropReason`].
    pub drops: [T; DropReason::ALL.len()],
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

    /// Addresses of which that became.
    pub fn learned(&self, learning: Learning) -> u64 {
        self.learnings[learning as usize]
    }

    /// Addresses that were not learned for want of room.
    pub fn unlearned(&self) -> u64 {
        self.learned(Learning::Quota) + self.learned(Learning::Full)
    }

    /// Questions for neighbours with that outcome.
    pub fn resolved(&self, resolution: Resolution) -> u64 {
        self.resolutions[resolution as usize]
    }

    /// How many were dropped, and of each reason that there was:
    /// `3 (down 2, full 1)`.
    pub fn dropped_in_words(&self) -> String {
        let reasons: Vec<String> = DropReason::ALL
            .into_iter()
            .filter(|reason| self.dropped_by(*reason) > 0)
            .map(|reason| format!("{} {}", reason.name(), self.dropped_by(reason)))
            .collect();
        match reasons.is_empty() {
            true => "0".to_owned(),
            false => format!("{} ({})", self.dropped(), reasons.join(", ")),
        }
    }

    /// All threads' together. What has become of packets is read before how many came, so
    /// that a packet under way is one that came.
    pub(crate) fn sum<'a>(tallies: impl Iterator<Item = &'a Tally>) -> Counters {
        let mut sum = Counters::default();
        for Tally(tally) in tallies {
            let drops = sum.drops.iter_mut().zip(&tally.drops);
            let resolutions = sum.resolutions.iter_mut().zip(&tally.resolutions);
            let learnings = sum.learnings.iter_mut().zip(&tally.learnings);
            for (sum, more) in drops.chain(resolutions).chain(learnings).chain([
                (&mut sum.forwarded, &tally.forwarded),
                (&mut sum.forwarded_bytes, &tally.forwarded_bytes),
                (&mut sum.answered, &tally.answered),
                (&mut sum.in_kernel, &tally.in_kernel),
                (&mut sum.cut, &tally.cut),
                (&mut sum.pieces, &tally.pieces),
                (&mut sum.handed_over, &tally.handed_over),
                (&mut sum.replicas, &tally.replicas),
                (&mut sum.replicas_lost, &tally.replicas_lost),
                (&mut sum.received, &tally.received),
                (&mut sum.received_bytes, &tally.received_bytes),
            ]) {
                *sum += more.load(Ordering::Acquire);
            }
        }
        sum
    }
}

/// One thread's counters of one direction: one thread writes, anyone reads.
/// Aligned so that two threads' never share a cache line (or a pair of them,
/// which processors fetch together).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally(Counters<AtomicU64>);

/// Adds without a locked instruction: there is one writer. Who sees it sees all that was
/// counted before.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
}

impl Tally {
    pub(crate) fn receive(&self, bytes: usize) {
        add(&self.0.received, 1);
        add(&self.0.received_bytes, bytes as u64);
    }

    pub(crate) fn forward(&self, packets: u64, bytes: u64) {
        add(&self.0.forwarded, packets);
        add(&self.0.forwarded_bytes, bytes);
    }

    pub(crate) fn answer(&self) {
        add(&self.0.answered, 1);
    }

    pub(crate) fn resolve(&self, resolution: Resolution) {
        add(&self.0.resolutions[resolution as usize], 1);
    }

    pub(crate) fn cut(&self, pieces: usize) {
        add(&self.0.cut, 1);
        add(&self.0.pieces, pieces as u64);
    }

    pub(crate) fn hand_over(&self) {
        add(&self.0.handed_over, 1);
    }

    pub(crate) fn replicate(&self, copies: u64) {
        add(&self.0.replicas, copies);
    }

    pub(crate) fn lose_replicas(&self, copies: u64) {
        add(&self.0.replicas_lost, copies);
    }

    pub(crate) fn learn(&self, learning: Learning) {
        add(&self.0.learnings[learning as usize], 1);
    }

    pub(crate) fn discard(&self, reason: DropReason, packets: u64) {
        add(&self.0.drops[reason as usize], packets);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn no_packet_has_a_fate_before_it_came() {
        let (tally, ended) = (Tally::default(), AtomicBool::new(false));
        let summed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    for fate in 0..3 {
                        tally.receive(64);
                        match fate {
                            0 => tally.forward(1, 64),
                            1 => tally.answer(),
                            _ => tally.discard(DropReason::Malformed, 1),
                        }
                    }
                }
            });
            let summed: Vec<Counters> =
                (0..100_000).map(|_| Counters::sum([&tally].into_iter())).collect();
            ended.store(true, Ordering::Relaxed);
            summed
        });
        for c in summed {
            assert!(c.forwarded + c.answered + c.dropped() <= c.received, "{c:?}");
            assert!(c.forwarded_bytes <= c.received_bytes, "{c:?}");
        }
    }

    #[test]
    fn reasons_are_numbered_as_listed() {
        for (number, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number, "{}", reason.name());
        }
        for (number, learning) in Learning::ALL.into_iter().enumerate() {
            assert_eq!(learning as usize, number, "{}", learning.name());
        }
    }
}
