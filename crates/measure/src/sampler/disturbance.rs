//! Limits on disturbance: CPU time taken by the hypervisor, by throttling and by processes outside
//! the measurement.

use std::fmt::Write as _;

pub use results::Disturbance;

/// Shares above which a sample counts as disturbed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Limit of [`Disturbance::steal_share`].
    pub steal_share: f64,
    /// Limit of [`Disturbance::throttled_share`].
    pub throttled_share: f64,
    /// Limit of [`Disturbance::other_share`].
    pub other_share: f64,
    /// Limit of [`Disturbance::busiest_share`].
    pub busiest_share: f64,
}

/// Rule that judges the disturbance of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// The run's own background, learned before and during it. A sample that exceeds it is
    /// retaken; the second sample counts.
    Background,
    /// Fixed limits. A sample that exceeds them is retaken; it is void if it exceeds them again.
    Strict(Limits),
}

impl Limits {
    /// 5% steal, 1% throttled, 10% other load, a quarter of one CPU. Throttling stops all threads
    /// at once for milliseconds, so even a little shows in latencies.
    ///
    /// Under [`Rule::Background`] these are the minimum allowances above the background, which
    /// makes no difference on an idle machine.
    pub const DEFAULT: Limits =
        Limits { steal_share: 0.05, throttled_share: 0.01, other_share: 0.10, busiest_share: 0.25 };

    /// Limits that no sample exceeds.
    pub const LIFTED: Limits = Limits {
        steal_share: f64::INFINITY,
        throttled_share: f64::INFINITY,
        other_share: f64::INFINITY,
        busiest_share: f64::INFINITY,
    };

    /// Describes the exceeded limits; `None` if there are none. A share that is not a number
    /// exceeds any limit.
    pub fn passed(&self, by: &Disturbance) -> Option<String> {
        let mut reason = String::new();
        for (name, share, limit) in [
            ("stolen by the hypervisor", by.steal_share, self.steal_share),
            ("throttled by a control group", by.throttled_share, self.throttled_share),
            ("used by other processes", by.other_share, self.other_share),
            ("of one CPU used by other processes", by.busiest_share, self.busiest_share),
        ] {
            // NaN compares false, and thus exceeds the limit.
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

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_share_has_its_own_limit() {
        let at = Disturbance {
            steal_share: 0.05,
            throttled_share: 0.01,
            other_share: 0.10,
            busiest_share: 0.25,
        };
        let beyond = |by: &Disturbance| Limits::DEFAULT.passed(by);
        assert_eq!(beyond(&at), None);
        let steal = Disturbance { steal_share: 0.071, ..at };
        assert_eq!(beyond(&steal).unwrap(), "7.1% stolen by the hypervisor (limit 5.0%)");
        let both = Disturbance { throttled_share: 0.02, other_share: 0.5, ..at };
        assert_eq!(
            beyond(&both).unwrap(),
            "2.0% throttled by a control group (limit 1.0%), \
             50.0% used by other processes (limit 10.0%)"
        );
        let one = Disturbance { busiest_share: 0.9, ..at };
        assert_eq!(beyond(&one).unwrap(), "90.0% of one CPU used by other processes (limit 25.0%)");
        let unknown = Disturbance { other_share: f64::NAN, ..at };
        assert!(beyond(&unknown).is_some());
        assert_eq!(Limits::LIFTED.passed(&both), None);
    }
}
