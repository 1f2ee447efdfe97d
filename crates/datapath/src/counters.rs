//! Counts the outcome of every packet, in the thread that decides it.
//!
//! For each direction: received = forwarded + answered + dropped.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

/// Why a packet was dropped. The two-TAP bridge only uses the first six reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// The destination TAP is down.
    Down,
    /// The destination socket or TAP is full.
    Full,
    /// The kernel had no memory for it, or this process may take no more memory for a guest's
    /// buffers.
    Memory,
    /// The kernel rejected it for any other reason.
    Refused,
    /// Shorter than its headers state, or inconsistent.
    Malformed,
    /// It needs segmentation or a checksum, but its headers do not allow that.
    Uncuttable,
    /// No remote endpoint is known for it.
    NoRemote,
    /// It exceeds the path MTU, and the sender could not be notified.
    TooBig,
    /// The remote endpoint is not reachable.
    Unreachable,
    /// Longer than the receive buffer.
    Truncated,
    /// Reserved bits of the VXLAN header are set, by another protocol.
    Reserved,
    UnknownVni,
    /// It came from a remote endpoint that is not configured.
    UnknownRemote,
    /// Its source address is not a valid source.
    Source,
    /// Its source address is the TAP's own: a loop.
    Looped,
    /// A static entry locates its source address elsewhere.
    Spoofed,
    /// Its source address belongs to a tenant on this side that still sends.
    InUse,
    /// Congestion was marked, and the inner packet can only signal it by a drop (RFC 6040).
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
        DropReason::UnknownRemote,
        DropReason::Source,
        DropReason::Looped,
        DropReason::Spoofed,
        DropReason::InUse,
        DropReason::Congestion,
        DropReason::Checksum,
    ];

    /// Returns the word used in printed counters.
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
            DropReason::UnknownRemote => "stranger",
            DropReason::Source => "source",
            DropReason::Looped => "looped",
            DropReason::Spoofed => "spoofed",
            DropReason::InUse => "source-in-use",
            DropReason::Congestion => "congestion",
            DropReason::Checksum => "checksum",
        }
    }

    /// Returns the reason for a failed write to a TAP.
    pub(crate) fn of_write(error: &io::Error) -> DropReason {
        match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            // TAP devices refuse writes while they are down.
            Errno::EIO => DropReason::Down,
            // The socket buffer of the device is full.
            Errno::EAGAIN => DropReason::Full,
            Errno::ENOMEM | Errno::ENOBUFS => DropReason::Memory,
            _ => DropReason::Refused,
        }
    }

    /// Returns the reason for a datagram that could not be sent.
    pub(crate) fn of_send(errno: Errno) -> DropReason {
        match errno {
            Errno::EAGAIN => DropReason::Full,
            Errno::ENOMEM | Errno::ENOBUFS => DropReason::Memory,
            // With Don't Fragment the kernel refuses datagrams above the path MTU.
            Errno::EMSGSIZE => DropReason::TooBig,
            Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ENETDOWN => DropReason::Unreachable,
            _ => DropReason::Refused,
        }
    }
}

/// Outcome of a request for a neighbour's hardware address from the TAP. Only for endpoints with
/// neighbour suppression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Resolution {
    /// An ARP request was answered.
    Arp,
    /// A neighbour solicitation was answered.
    Discovery,
    /// Flooded: duplicate address detection, which only the owner can answer.
    Duplicate,
    /// Flooded: the address is on the requester's own side, where its owner receives the request.
    OwnSide,
    /// Flooded: the owner is unknown.
    Unknown,
}

impl Resolution {
    /// All, in the order of their numbers. The first two are answered; the others are flooded.
    pub const ALL: [Resolution; 5] = [
        Resolution::Arp,
        Resolution::Discovery,
        Resolution::Duplicate,
        Resolution::OwnSide,
        Resolution::Unknown,
    ];

    /// Returns the word used in printed counters.
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

/// Outcome of learning a source address that was new or had moved. The packet was forwarded in any
/// case. Endpoint only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Learning {
    /// The address moved to the new place.
    Moved,
    /// The address went back to a place that had it before and still sends.
    Returned,
    /// The address did not move: the place that has it still sends.
    Contested,
    /// Not learned: its remote endpoint has used up its share.
    Quota,
    /// Not learned: the table is full.
    Full,
}

impl Learning {
    /// All, in the order of their numbers.
    pub const ALL: [Learning; 5] =
        [Learning::Moved, Learning::Returned, Learning::Contested, Learning::Quota, Learning::Full];

    /// Returns the word used in printed counters.
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

/// Counters of one direction of a bridge or of a network, or of the packets that an endpoint
/// dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters<T = u64> {
    /// Frames read from a TAP, where a GSO packet counts as one; or VXLAN packets received, where a
    /// merged datagram counts as several.
    pub received: T,
    /// Bytes of their Ethernet frames.
    pub received_bytes: T,
    /// Number of these that were forwarded.
    pub forwarded: T,
    /// Bytes of the Ethernet frames of `forwarded`.
    pub forwarded_bytes: T,
    /// Packets answered instead of forwarded: ARP requests, neighbour solicitations, and packets
    /// that exceed the path MTU.
    pub answered: T,
    /// Forwarded in the kernel without crossing into user space. Included in `received` and
    /// `forwarded`. Bridge only.
    pub in_kernel: T,
    /// GSO packets that had to be segmented for the other side. Bridge only.
    pub cut: T,
    /// Segments made from these. Bridge only.
    pub pieces: T,
    /// Sent units: datagrams passed to the kernel (unsegmented), or frames written to the TAP
    /// (merged). Endpoint only.
    pub handed_over: T,
    /// Additional copies sent, besides the one that counts as forwarded. Endpoint only.
    pub replicas: T,
    /// Additional copies that could not be sent. Endpoint only.
    pub replicas_lost: T,
    /// Source addresses that were new or had moved, by [`Learning`].
    pub learnings: [T; Learning::ALL.len()],
    /// Requests for neighbours, by [`Resolution`].
    pub resolutions: [T; Resolution::ALL.len()],
    /// Dropped packets, by [`DropReason`].
    pub drops: [T; DropReason::ALL.len()],
}

impl Counters {
    /// Returns the number of dropped packets.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Returns the number of packets dropped for one reason.
    pub fn dropped_by(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Returns the number of source addresses with that outcome.
    pub fn learned(&self, learning: Learning) -> u64 {
        self.learnings[learning as usize]
    }

    /// Returns the number of addresses that were not learned because there was no room.
    pub fn unlearned(&self) -> u64 {
        self.learned(Learning::Quota) + self.learned(Learning::Full)
    }

    /// Returns the number of neighbour requests with that outcome.
    pub fn resolved(&self, resolution: Resolution) -> u64 {
        self.resolutions[resolution as usize]
    }

    /// Returns the number of drops, with the reasons: `3 (down 2, full 1)`.
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

    /// Sums up the counters of all threads. Outcomes are read before `received`, so that a packet
    /// in progress counts as received.
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

/// Counters of one thread for one direction: one writer, any number of readers. The alignment
/// prevents that two threads share a cache line, or a pair of cache lines that processors fetch
/// together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally(Counters<AtomicU64>);

/// Adds without a locked instruction, because there is one writer. A reader that sees the new value
/// also sees everything counted before.
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
