//! State shared by the threads of an endpoint and the coordinating thread: the phase, in one
//! direction, and counters in the other. Neither touches the data path, so a broken path cannot
//! break the control.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::EngineError;

/// Maximum time that a thread blocks in the kernel before it checks the phase.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// Phase of an endpoint. Phases only advance. Continuous workloads skip
/// [`Settle`](Phase::Settle) and [`Drain`](Phase::Drain).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Phase {
    /// Connect, and prove the path.
    Setup,
    /// Unmeasured traffic.
    Warmup,
    /// No traffic, so that counters can be read between datagrams.
    Settle,
    /// Measured traffic.
    Measure,
    /// Sending has stopped; datagrams in flight are still received.
    Drain,
    /// Prove that the path still works.
    Closing,
    /// The load is over: threads end.
    Done,
}

const PHASES: [Phase; 7] = [
    Phase::Setup,
    Phase::Warmup,
    Phase::Settle,
    Phase::Measure,
    Phase::Drain,
    Phase::Closing,
    Phase::Done,
];

/// Counters of one flow at one end. Each has a single writer. The alignment keeps flows on
/// separate cache lines (two each: adjacent lines are fetched in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Tally {
    /// Units received or completed.
    pub units: Counter,
    /// Payload received, bytes.
    pub bytes: Counter,
    /// Units begun or accepted by the kernel.
    pub sent: Counter,
    /// Times that a datagram receiver found its queue empty.
    pub emptied: Counter,
    /// The path is proved and the flow waits for traffic.
    pub ready: AtomicBool,
    /// Last phase that the flow has acted on.
    pub reached: AtomicU8,
}

/// A counter with a single writer.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Adds without a locked instruction, which only several writers would need.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Snapshot of a flow's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowCount {
    /// Units received or completed so far.
    pub units: u64,
    /// Payload received so far, bytes.
    pub bytes: u64,
    /// Units sent so far.
    pub sent: u64,
    /// Times that a datagram receiver found its queue empty.
    pub emptied: u64,
}

impl Tally {
    /// Records that the flow has acted on a phase.
    pub fn reach(&self, phase: Phase) {
        self.reached.store(phase as u8, Ordering::Release);
    }
}

/// State shared by the threads of one endpoint.
#[derive(Debug)]
pub(super) struct Control {
    phase: AtomicU8,
    turned_at: [OnceLock<Instant>; PHASES.len()],
    failed: AtomicBool,
    failure: Mutex<Option<EngineError>>,
    turned: Condvar,
    pub tallies: Box<[Tally]>,
}

impl Control {
    pub fn new(flows: u32) -> Control {
        Control {
            phase: AtomicU8::new(Phase::Setup as u8),
            turned_at: [const { OnceLock::new() }; PHASES.len()],
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            turned: Condvar::new(),
            tallies: (0..flows).map(|_| Tally::default()).collect(),
        }
    }

    pub fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Ordering::Acquire))]
    }

    pub fn is_done(&self) -> bool {
        self.phase() == Phase::Done
    }

    pub fn turn_to(&self, phase: Phase) {
        // Take the lock: otherwise a thread could miss the change between its check and its wait.
        let _guard = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        // Set before the phase, so that a thread that sees the phase also sees its start.
        self.turned_at[usize::from(phase as u8)].get_or_init(Instant::now);
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        self.turned.notify_all();
    }

    /// Returns the start of a phase; `None` if it has not begun or was skipped.
    pub fn turned_at(&self, phase: Phase) -> Option<Instant> {
        self.turned_at[usize::from(phase as u8)].get().copied()
    }

    /// Returns the start of the first phase with traffic.
    pub fn traffic_since(&self) -> Option<Instant> {
        self.turned_at.iter().skip(1).find_map(OnceLock::get).copied()
    }

    /// Waits until the phase is past this one.
    pub fn wait_past(&self, phase: Phase) -> Phase {
        let mut guard = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = self.phase();
            if now > phase {
                return now;
            }
            guard = self.turned.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Keeps the first failure. Failures after the end are consequences of ending.
    pub fn fail(&self, error: EngineError) {
        let mut guard = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_done() && guard.is_none() {
            *guard = Some(error);
            self.failed.store(true, Ordering::Release);
        }
    }

    pub fn take_failure(&self) -> Option<EngineError> {
        // Called each millisecond: take no lock unless something has failed.
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub fn counts(&self) -> Vec<FlowCount> {
        self.tallies
            .iter()
            .map(|t| FlowCount {
                units: t.units.get(),
                bytes: t.bytes.get(),
                sent: t.sent.get(),
                emptied: t.emptied.get(),
            })
            .collect()
    }

    /// Returns the first flow that is not ready for traffic.
    pub fn first_not_ready(&self) -> Option<u32> {
        self.first(|t| !t.ready.load(Ordering::Acquire))
    }

    /// Returns the first flow that has not acted on the phase.
    pub fn first_not_at(&self, phase: Phase) -> Option<u32> {
        self.first(|t| t.reached.load(Ordering::Acquire) < phase as u8)
    }

    fn first(&self, is: impl Fn(&Tally) -> bool) -> Option<u32> {
        self.tallies.iter().zip(0..).find(|(tally, _)| is(tally)).map(|(_, flow)| flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_only_go_forward() {
        let control = Control::new(1);
        assert_eq!(control.traffic_since(), None);
        for phase in PHASES {
            control.turn_to(phase);
            assert_eq!(control.phase(), phase);
        }
        let measured = control.turned_at(Phase::Measure);
        assert!(control.traffic_since() <= measured && measured.is_some());
        control.turn_to(Phase::Warmup);
        assert_eq!(control.phase(), Phase::Done);
    }

    #[test]
    fn waiting_ends_with_the_turn() {
        let control = Control::new(1);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| control.wait_past(Phase::Setup));
            control.turn_to(Phase::Done);
            assert_eq!(waiter.join().unwrap(), Phase::Done);
        });
    }

    #[test]
    fn the_first_failure_is_kept_and_none_after_the_end() {
        let control = Control::new(1);
        assert!(control.take_failure().is_none());
        control.fail(EngineError::AllLost { sent: 1, message_bytes: 1 });
        control.fail(EngineError::Stopped);
        assert!(matches!(control.take_failure(), Some(EngineError::AllLost { .. })));
        control.turn_to(Phase::Done);
        control.fail(EngineError::AllLost { sent: 1, message_bytes: 1 });
        assert!(control.take_failure().is_none());
    }
}
