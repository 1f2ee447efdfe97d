//! Due times of a flow's requests. They are evenly spaced, and the flows take turns. Each time is
//! computed from the start, so that errors do not add up, and never moved: a request that cannot
//! be sent in time keeps its due time.

use std::time::{Duration, Instant};

/// One flow's part of a schedule.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    start: Instant,
    /// Interval between two requests of this flow, ns.
    gap: f64,
    /// Offset of this flow's first request from the start, in intervals, 0..1.
    offset: f64,
    number: u64,
    next: Instant,
}

impl Schedule {
    /// Creates the schedule of flow `flow` of `flows`, for `per_s` requests per second over all
    /// flows, beginning at `start`.
    pub fn new(start: Instant, per_s: f64, flow: u32, flows: u32) -> Schedule {
        let mut schedule = Schedule {
            start,
            gap: 1e9 * f64::from(flows) / per_s,
            offset: f64::from(flow) / f64::from(flows),
            number: 0,
            next: start,
        };
        schedule.next = schedule.time_of(0);
        schedule
    }

    /// Returns the due time of the next request.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Records that the next request has been sent.
    pub fn advance(&mut self) {
        self.number += 1;
        self.next = self.time_of(self.number);
    }

    /// Returns the number of unsent requests that are due before `until`.
    pub fn due_before(&self, until: Instant) -> u64 {
        // Nothing is due before the start.
        let Some(since) = until.checked_duration_since(self.start) else { return 0 };
        // Request numbers are below this. The conversion from f64 saturates.
        let end = (since.as_nanos() as f64 / self.gap - self.offset).ceil().max(0.0) as u64;
        end.saturating_sub(self.number)
    }

    /// Returns the due time of the request `ahead` places after the next one.
    pub fn time_ahead(&self, ahead: u64) -> Instant {
        self.time_of(self.number.saturating_add(ahead))
    }

    fn time_of(&self, number: u64) -> Instant {
        // Exact to the ns for 104 days (2^53 ns).
        let after = (number as f64 + self.offset) * self.gap;
        self.start + Duration::from_nanos(after as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn flows_take_turns() {
        let start = Instant::now();
        let mut flows: Vec<Schedule> =
            (0..4).map(|flow| Schedule::new(start, 1000.0, flow, 4)).collect();
        for millisecond in 0..20 {
            let flow = &mut flows[millisecond % 4];
            assert_eq!(flow.next() - start, Duration::from_millis(millisecond as u64));
            flow.advance();
        }
    }

    proptest! {
        #[test]
        fn no_request_is_left_out_and_errors_do_not_add_up(
            per_s in 0.5..2e6f64,
            flows in 1..64u32,
            number in 0..1_000_000u64,
        ) {
            let start = Instant::now();
            let flow = flows - 1;
            let mut schedule = Schedule::new(start, per_s, flow, flows);
            schedule.number = number;
            schedule.next = schedule.time_of(number);
            let exact = (number as f64 * f64::from(flows) + f64::from(flow)) / per_s;
            let got = (schedule.next() - start).as_secs_f64();
            prop_assert!((got - exact).abs() <= 2e-9 + exact * 1e-12, "{} {}", got, exact);
            let before = schedule.next();
            schedule.advance();
            prop_assert!(schedule.next() >= before);
        }

        #[test]
        fn what_is_due_is_counted(
            per_s in 0.5..2e6f64,
            flows in 1..64u32,
            sent in 0..50u64,
            after_ns in 0..10_000_000u64,
        ) {
            let start = Instant::now();
            let mut schedule = Schedule::new(start, per_s, flows / 2, flows);
            (0..sent).for_each(|_| schedule.advance());
            let until = start + Duration::from_nanos(after_ns);
            let due = schedule.due_before(until);
            // Allow one ns of rounding on either side.
            let slack = Duration::from_nanos(1);
            if due > 0 {
                prop_assert!(schedule.time_ahead(due - 1) < until + slack);
            }
            prop_assert!(schedule.time_ahead(due) + slack >= until);
        }
    }
}
