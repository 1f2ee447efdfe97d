//! What disturbed a measurement: time taken by the hypervisor, by throttling
//! and by processes that are not part of it. What is past a limit stands out.

use std::fmt::Write as _;

pub use results::Disturbance;

/// Shares above which a sample stands out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Of [`Disturbance::steal_share`].
    pub steal_share: f64,
    /// Of [`Disturbance::throttled_share`].
    pub throttled_share: f64,
    /// Of [`Disturbance::other_share`].
    pub other_share: f64,
    /// Of [`Disturbance::busiest_share`].
    pub busiest_share: f64,
}

/// What a sample's disturbance is judged by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// By the run's own background, learned before and during it: what stands out is
    /// taken once more, and counts then.
    Background,
    /// By fixed limits: what is past them is taken once more, and is void if it is past
    /// them again.
    Strict(Limits),
}

impl Limits {
    /// 5% steal, 1% throttled, 10% other load, a quarter of one CPU. Throttling stops
    /// every thread at once for milliseconds, so little of it already shows in latencies.
    ///
    /// Under [`Rule::Background`] they are what is allowed above the background at least.
    /// On an idle machine that is the same.
    pub const DEFAULT: Limits =
        Limits { steal_share: 0.05, throttled_share: 0.01, other_share: 0.10, busiest_share: 0.25 };

    /// Limits that no sample passes.
    pub const LIFTED: Limits = Limits {
        steal_share: f64::INFINITY,
        throttled_share: f64::INFINITY,
        other_share: f64::INFINITY,
        busiest_share: f64::INFINITY,
    };

    /// What is past these limits, or `None`. A share that is not a number is beyond any
    /// limit.
    pub fn passed(&self, by: &Disturbance) -> Option<String> {
        let mut reason = String::new();
        for (name, share, limit) in [
            ("stolen by the hypervisor", by.steal_share, self.steal_share),
            ("throttled by a control group", by.throttled_share, self.throttled_share),
            ("used by other processes", by.other_share, self.other_share),
            ("of one CPU used by others", by.busiest_share, self.busiest_share),
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
        assert_eq!(beyond(&one).unwrap(), "90.0% of one CPU used by others (limit 25.0%)");
        let unknown = Disturbance { other_share: f64::NAN, ..at };
        assert!(beyond(&unknown).is_some());
        assert_eq!(Limits::LIFTED.passed(&both), None);
    }
}
