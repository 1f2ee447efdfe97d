//! The clock of heartbeats and of what programs note.

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, as `bpf_ktime_get_ns`, ns.
pub(super) fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs()
    })
}
