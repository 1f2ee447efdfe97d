//! Bounds on the test's own load, for machines that carry other traffic.
//!
//! A test sends in short pulses and rests between them. The rest follows from the CPU time and
//! link capacity that the last pulse used: over pulse and rest together, the test stays below its
//! share of each (`governor`). If a host's own traffic suffers during pulses ([`HostLoad`]), the share
//! is halved and recovers slowly. The same applies to the server's machine if it is another one
//! (`run/pacing.rs`).
//!
//! [`HostLoad`]: crate::sampler::HostLoad
//!
//! The CPU share is proportional to the square of the idle part of the rests: once because it is
//! a share of idle time, and once because other programs catch up with delayed work only in idle
//! time. It falls to a sixty-fourth at most.
//!
//! Within a pulse, requests sent one at a time also rest after each answer. A CPU that is taken
//! for a whole pulse shows in the 99th percentile of other programs, however long the rest
//! afterwards is. The figure of such requests is latency, which a rest does not change. Other
//! loads have no such rests and occupy a CPU for the whole pulse.
//!
//! Threads that read counters run in bursts and yield to all other programs. Threads that send and
//! answer do not, since the scheduler's latency would add to the measured one.

mod governor;

use std::time::Duration;

pub(crate) use governor::{CpuTime, Governor, HERE, Pulse, REMEMBERED, median_of, remember};

/// Bound on the average load of a test on a host and its link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Impact {
    /// Maximum share of all CPUs, and of the link, on average, 0..1.
    pub share: f64,
}

impl Impact {
    /// Default measured interval of a pulse.
    pub const PULSE: Duration = Duration::from_millis(250);
    /// Warm-up of a pulse.
    pub const WARMUP: Duration = Duration::from_millis(20);
    /// Measured interval of a pulse whose requests have no rest between: it occupies a CPU.
    pub const BURST: Duration = Duration::from_millis(50);
    /// Warm-up of such a pulse.
    pub const BURST_WARMUP: Duration = Duration::from_millis(10);
}
