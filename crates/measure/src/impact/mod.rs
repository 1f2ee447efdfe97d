//! Do no harm: bounds on the test's own load, on machines that carry others' traffic.
//!
//! A test sends in short pulses and rests between them. How long it rests follows from
//! what the last pulse really took of CPUs and link: over pulse and rest together the test
//! stays below its share of each (`governor`). Where a host's own traffic suffers during
//! pulses ([`Fare`]), the share is halved, and comes back slowly. All of that holds for the
//! server's machine as for this one, where it is another (`run/pacing.rs`).
//!
//! [`Fare`]: crate::sampler::Fare
//!
//! The share of CPUs falls with the square of what others leave: the part of the rests in which
//! CPUs are idle. Once because it is a share of that; and once because others catch up with what
//! a pulse has delayed in the idle time only. It falls to a sixty-fourth at most.
//!
//! Within a pulse, requests one at a time rest, too, after each answer: a CPU that is taken
//! for as long as a pulse lasts shows in the 99th percentile of whatever else runs, however
//! long the rest after it is. Their figure is the latency, which a rest leaves as it is. Other
//! loads have no such rests, and take a CPU for as long as a pulse lasts.
//!
//! The threads that read counters are a burst of work, and give way to all other programs.
//! Those that send and answer do not: their latency would be that of the scheduler.

mod governor;

use std::time::Duration;

pub(crate) use governor::{CpuTime, Governor, HERE, Pulse, REMEMBERED, median_of, remember};

/// Bound on the load that a test may put on a host and its link, on average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Impact {
    /// Most that the test takes of all CPUs, and of the link, on average, 0..1.
    pub share: f64,
}

impl Impact {
    /// What a pulse measures, unless asked otherwise.
    pub const PULSE: Duration = Duration::from_millis(250);
    /// What it discards before.
    pub const WARMUP: Duration = Duration::from_millis(20);
    /// What a pulse measures of loads without a rest between two requests: it takes a CPU.
    pub const BURST: Duration = Duration::from_millis(50);
    /// What such a pulse discards before.
    pub const BURST_WARMUP: Duration = Duration::from_millis(10);
}
