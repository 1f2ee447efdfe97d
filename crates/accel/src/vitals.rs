//! Liveness and counters of the reconciler thread. The thread writes them without waiting for
//! readers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A reconciler without a heartbeat for this time hangs. Reading a large machine takes less.
/// Packets take the slow path after 100 ms already.
const FRESH: Duration = Duration::from_secs(5);

/// Why the whole state was read and planned again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The fast path started.
    Start,
    /// The kernel notified a change that affects more than single entries or rules.
    Change,
    /// Other devices are wanted, or a sandbox came or went.
    Wanted,
    /// State without notifications has changed.
    Unnotified,
    /// Ports that had spent their budget of changes may cause changes again.
    Budget,
    /// The periodic audit found a difference.
    Audit,
    /// The last read was outdated before it was complete, or by a program that was attached after it.
    Retry,
}

impl Cause {
    pub const ALL: [Cause; 7] = [
        Cause::Start,
        Cause::Change,
        Cause::Wanted,
        Cause::Unnotified,
        Cause::Budget,
        Cause::Audit,
        Cause::Retry,
    ];

    /// Name in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Cause::Start => "start",
            Cause::Change => "change",
            Cause::Wanted => "wanted",
            Cause::Unnotified => "unnotified",
            Cause::Budget => "budget",
            Cause::Audit => "audit",
            Cause::Retry => "retry",
        }
    }
}

/// Liveness and counters of the fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vitals {
    /// Time since the reconciler's last heartbeat.
    pub heartbeat_age: Duration,
    /// Whether a plan was ever in force.
    pub was_in_force: bool,
    /// Times that all packets were sent to the slow path.
    pub withdrawals: u64,
    /// Times that the whole state was read and planned again, in the order of [`Cause::ALL`].
    pub rebuilds: [u64; Cause::ALL.len()],
    /// Single forwarding entries that were revoked.
    pub revoked_entries: u64,
    /// Whether the process that finds sandboxes has ended.
    pub finder_lost: bool,
}

impl Vitals {
    /// Times that the whole state was read and planned again for a cause.
    pub fn rebuilds(&self, cause: Cause) -> u64 {
        self.rebuilds[cause as usize]
    }

    /// Whether the reconciler thread is running.
    pub fn is_alive(&self) -> bool {
        self.heartbeat_age < FRESH
    }
}

/// Atomics that the reconciler's threads write.
pub(crate) struct Pulse {
    start: Instant,
    /// Time of the last heartbeat, ns after `start`.
    beat: AtomicU64,
    in_force: AtomicBool,
    withdrawals: AtomicU64,
    rebuilds: [AtomicU64; Cause::ALL.len()],
    revoked: AtomicU64,
    finder_lost: AtomicBool,
}

impl Pulse {
    pub(crate) fn new() -> Pulse {
        Pulse {
            start: Instant::now(),
            beat: AtomicU64::new(0),
            in_force: AtomicBool::new(false),
            withdrawals: AtomicU64::new(0),
            rebuilds: Default::default(),
            revoked: AtomicU64::new(0),
            finder_lost: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos().try_into().unwrap_or(u64::MAX)
    }

    pub(crate) fn beat(&self) {
        self.beat.store(self.now(), Ordering::Release);
    }

    pub(crate) fn in_force(&self) {
        self.in_force.store(true, Ordering::Release);
    }

    pub(crate) fn withdrawn(&self) {
        self.withdrawals.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn rebuilt(&self, cause: Cause) {
        self.rebuilds[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn revoked(&self, entries: usize) {
        self.revoked.fetch_add(entries as u64, Ordering::Relaxed);
    }

    pub(crate) fn finder_lost(&self) {
        self.finder_lost.store(true, Ordering::Release);
    }

    pub(crate) fn vitals(&self) -> Vitals {
        let beat = self.beat.load(Ordering::Acquire);
        Vitals {
            heartbeat_age: Duration::from_nanos(self.now().saturating_sub(beat)),
            was_in_force: self.in_force.load(Ordering::Acquire),
            withdrawals: self.withdrawals.load(Ordering::Relaxed),
            rebuilds: std::array::from_fn(|at| self.rebuilds[at].load(Ordering::Relaxed)),
            revoked_entries: self.revoked.load(Ordering::Relaxed),
            finder_lost: self.finder_lost.load(Ordering::Acquire),
        }
    }
}
