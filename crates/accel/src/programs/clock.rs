//! The clock of heartbeats and of timestamps in the maps.

use nix::time::{ClockId, clock_gettime};

/// Returns `CLOCK_MONOTONIC` in ns, the clock of `bpf_ktime_get_ns`.
pub(super) fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs()
    })
}
