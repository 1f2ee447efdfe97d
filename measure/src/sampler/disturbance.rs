//! What disturbed a measurement: time taken by the hypervisor, by throttling
//! and by processes that are not part of it.

use std::fmt::Write as _;

/// Disturbance of one sample, as shares of its CPU or wall time.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Disturbance {
    /// CPU time taken by the hypervisor, as a share of all CPUs' time, 0..1.
    pub steal_share: f64,
    /// Wall time in which this process's control group was throttled, 0..1.
    pub throttled_share: f64,
    /// CPU time of processes that neither are nor descend from this process, as
    /// a share of all CPUs' time, 0..1. Kernel threads are left out: they may
    /// work for the traffic. Softirqs that happened to run on a process count
    /// as its own, as the kernel has it.
    pub other_share: f64,
}

/// Shares above which a sample is void.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Of [`Disturbance::steal_share`].
    pub steal_share: f64,
    /// Of [`Disturbance::throttled_share`].
    pub throttled_share: f64,
    /// Of [`Disturbance::other_share`].
    pub other_share: f64,
}

impl Limits {
    /// 5% steal, 1% throttled, 10% other load. Throttling stops every thread at
    /// once for milliseconds, so little of it already shows in latencies.
    pub const DEFAULT: Limits =
        Limits { steal_share: 0.05, throttled_share: 0.01, other_share: 0.10 };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

impl Disturbance {
    /// Why the sample is void, or `None` when it counts. A share that is not a
    /// number is beyond any limit.
    pub fn beyond(&self, limits: &Limits) -> Option<String> {
        let mut reason = String::new();
        for (name, share, limit) in [
            ("stolen by the hypervisor", self.steal_share, limits.steal_share),
            ("throttled by a control group", self.throttled_share, limits.throttled_share),
            ("used by other processes", self.other_share, limits.other_share),
        ] {
            let within = share <= limit;
            if !within {
                let separator = if reason.is_empty() { "" } else { ", " };
                let (share, limit) = (share * 100.0, limit * 100.0);
                // Writing to a String cannot fail.
                let _ = write!(reason, "{separator}{share:.1}% {name} (limit {limit:.1}%)");
            }
        }
        Some(reason).filter(|reason| !reason.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_share_has_its_own_limit() {
        let at = Disturbance { steal_share: 0.05, throttled_share: 0.01, other_share: 0.10 };
        assert_eq!(at.beyond(&Limits::DEFAULT), None);
        let steal = Disturbance { steal_share: 0.071, ..at };
        assert_eq!(
            steal.beyond(&Limits::DEFAULT).unwrap(),
            "7.1% stolen by the hypervisor (limit 5.0%)"
        );
        let both = Disturbance { throttled_share: 0.02, other_share: 0.5, ..at };
        assert_eq!(
            both.beyond(&Limits::DEFAULT).unwrap(),
            "2.0% throttled by a control group (limit 1.0%), \
             50.0% used by other processes (limit 10.0%)"
        );
        let unknown = Disturbance { other_share: f64::NAN, ..at };
        assert!(unknown.beyond(&Limits::DEFAULT).is_some());
    }
}
