//! What the threads of an endpoint share with the thread that coordinates them:
//! the phase, going one way only, and counters, coming back. Neither touches
//! the data path, so a path that breaks cannot take the control with it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::EngineError;

/// Longest that a thread waits in the kernel before it looks at the phase.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// What an endpoint is doing. Phases only go forward; the continuous workloads leave
/// out [`Settle`](Phase::Settle) and [`Drain`](Phase::Drain).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Phase {
    /// Connecting, and proving the path.
    Setup,
    /// Traffic that is not measured.
    Warmup,
    /// No traffic, so that counters can be read between datagrams.
    Settle,
    /// Traffic that is measured.
    Measure,
    /// No more sending; what is under way is still received.
    Drain,
    /// Proving that the path is still alive.
    Closing,
    /// Over: the threads end.
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

/// One flow's counters at one end, each written by one thread only. On cache
/// lines of its own (two: adjacent lines are fetched in pairs), so that flows
/// do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Tally {
    /// Units received or completed.
    pub units: Counter,
    /// Payload received, bytes.
    pub bytes: Counter,
    /// Units begun or accepted by the kernel.
    pub sent: Counter,
    /// Times that a receiver of datagrams has found nothing left to read.
    pub emptied: Counter,
    /// The path has been proved and the flow waits for traffic.
    pub ready: AtomicBool,
    /// The last phase that the flow has acted on.
    pub reached: AtomicU8,
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Adds, without the locked instruction that several writers would need.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// A copy of a flow's counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowCount {
    /// Units received or completed so far.
    pub units: u64,
    /// Payload received so far, bytes.
    pub bytes: u64,
    /// Units sent so far.
    pub sent: u64,
    /// Times that a receiver of datagrams has found nothing left to read.
    pub emptied: u64,
}

impl Tally {
    /// States that the flow has acted on a phase.
    pub fn reach(&self, phase: Phase) {
        self.reached.store(phase as u8, Ordering::Release);
    }
}

/// Shared by the threads of one endpoint.
#[derive(Debug)]
pub(super) struct Control {
    phase: AtomicU8,
    /// When each phase began.
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
        // Under the lock, or a thread could miss it between looking and waiting.
        let _guard = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the phase: who sees it sees when it began.
        self.turned_at[usize::from(phase as u8)].get_or_init(Instant::now);
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        self.turned.notify_all();
    }

    /// When a phase began; `None` when it has not, or was left out.
    pub fn turned_at(&self, phase: Phase) -> Option<Instant> {
        self.turned_at[usize::from(phase as u8)].get().copied()
    }

    /// When the first phase of traffic began.
    pub fn traffic_since(&self) -> Option<Instant> {
        self.turned_at.iter().skip(1).find_map(OnceLock::get).copied()
    }

    /// Waits until the phase is past the one given.
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

    /// Keeps the first failure; what comes of ending is none.
    pub fn fail(&self, error: EngineError) {
        let mut guard = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_done() && guard.is_none() {
            *guard = Some(error);
            self.failed.store(true, Ordering::Release);
        }
    }

    pub fn take_failure(&self) -> Option<EngineError> {
        // Asked each millisecond: no lock is taken where nothing has failed.
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

    /// The first flow that is not ready for traffic.
    pub fn first_not_ready(&self) -> Option<u32> {
        self.first(|t| !t.ready.load(Ordering::Acquire))
    }

    /// The first flow that has not acted on the phase.
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
