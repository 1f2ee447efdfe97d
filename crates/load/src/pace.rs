//! Pacing: due times of scheduled messages, waiting, and lateness.
//!
//! Each message is handed to the kernel alone when it is due. A sender that keeps up sends no
//! bursts.
//!
//! A sender that is late hands over several messages at a time, at most [`BURST`] worth of the
//! schedule, and catches up at no more than [`CATCH_UP`] times its rate. Otherwise a sender that
//! was off its CPU for some milliseconds would fill every queue of the path. Messages later than
//! [`LATEST`] are not sent, so a missed schedule shows in the counts.
//!
//! Timers wake a thread some microseconds late. The thread therefore sleeps until shortly before
//! the due time, by a margin learned from earlier wake-ups, and spins for the rest.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::control::TICK;
use results::Pacing;

/// Part of the schedule that may be handed over at once.
pub(super) const BURST: Duration = Duration::from_micros(20);
/// Maximum rate of a late sender, relative to the schedule.
const CATCH_UP: f64 = 1.5;
/// Lateness after which a message is not sent.
pub(super) const LATEST: Duration = Duration::from_millis(10);
/// Time limit for a stopped sender to send what is due. It needs less than [`LATEST`] if the
/// kernel accepts the messages.
const WIND_UP: Duration = Duration::from_millis(30);
/// Bounds of the spinning time before a message is due, ns.
const SPIN: (f64, f64) = (5_000.0, 200_000.0);
/// Upper bound of the lateness histogram, ns.
const LATEST_NS: u64 = 60_000_000_000;

/// Schedule of one flow and its progress. Times are nanoseconds since its start.
#[derive(Debug)]
pub(super) struct Pacer {
    begun: Instant,
    /// Interval between two messages of the schedule, ns.
    gap: f64,
    /// Due time of the first message.
    first: f64,
    /// Number of the next message.
    next: u64,
    /// Messages not sent because they were later than [`LATEST`].
    given_up: u64,
    /// Earliest next send, to bound the catch-up rate.
    not_before: f64,
    /// Maximum messages handed over at once.
    burst: u64,
    /// Time at which the messages in hand were taken.
    taken_at: f64,
    /// Learned wake-up delay of timers, ns.
    oversleep: f64,
    end: Option<StopState>,
    late: Histogram<u64>,
}

/// State when the sender was asked to stop.
#[derive(Debug, Clone, Copy)]
struct StopState {
    at: f64,
    due: u64,
    on_time: u64,
}

/// Adherence of a flow to its schedule, in messages.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    /// Rate of the schedule, messages/s.
    pub per_s: f64,
    /// Messages due until the sender was asked to stop.
    pub intended: u64,
    /// Messages sent until then.
    pub on_time: u64,
    /// Lateness of each message, ns.
    pub late: Histogram<u64>,
}

/// Returns an empty histogram for lateness, in ns, with two digits.
pub(super) fn late_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATEST_NS, 2).expect("1 ns to 60 s in 2 digits is in range")
}

impl Pacer {
    /// Creates a schedule of `per_s` messages per second that begins now. The first message is due
    /// after `share` (0 to 1) of an interval, so that several flows take turns. At most `most`
    /// messages are handed over at once.
    pub fn new(per_s: f64, share: f64, most: usize) -> Pacer {
        let gap = 1e9 / per_s;
        // A float-to-integer cast saturates.
        let burst = (BURST.as_nanos() as f64 / gap) as u64;
        Pacer {
            begun: Instant::now(),
            gap,
            first: gap * share,
            next: 0,
            given_up: 0,
            not_before: 0.0,
            burst: burst.clamp(1, most.max(1) as u64),
            taken_at: 0.0,
            oversleep: 50_000.0,
            end: None,
            late: late_histogram(),
        }
    }

    fn now(&self) -> f64 {
        self.begun.elapsed().as_nanos() as f64
    }

    fn due_at(&self, message: u64) -> f64 {
        self.first + self.gap * message as f64
    }

    /// Returns the number of messages due at `now`, since the start.
    fn due_by(&self, now: f64) -> u64 {
        if now < self.first { 0 } else { ((now - self.first) / self.gap) as u64 + 1 }
    }

    /// Returns the number of messages to hand to the kernel now. 0 after a wait of at most
    /// [`TICK`], so that the caller can check whether to stop.
    pub fn take(&mut self) -> usize {
        let now = self.now();
        match self.take_at(now) {
            Ok(messages) => messages,
            Err(early) => {
                self.wait(early);
                0
            }
        }
    }

    /// Returns the messages to hand over at `now`, or the time until the next one is due.
    fn take_at(&mut self, now: f64) -> Result<usize, f64> {
        let at = self.due_at(self.next).max(self.not_before);
        // The caller waits for the remaining time.
        if now < at {
            return Err(at - now);
        }
        let due = self.end.map_or_else(|| self.due_by(now), |end| end.due);
        let owed = due.saturating_sub(self.next);
        if owed > 1 && now - self.due_at(self.next) > LATEST.as_nanos() as f64 {
            // Give up all but the last: sending them in one burst would be a different load.
            self.given_up += owed - 1;
            self.next += owed - 1;
            self.taken_at = now;
            return Ok(1);
        }
        self.taken_at = now;
        // At most a batch, so it fits a usize.
        Ok(owed.min(self.burst) as usize)
    }

    fn wait(&mut self, early: f64) {
        if early > 2.0 * self.oversleep {
            let nap = (early - self.oversleep).min(TICK.as_nanos() as f64);
            let begun = Instant::now();
            std::thread::sleep(Duration::from_nanos(nap as u64));
            let over = begun.elapsed().as_nanos() as f64 - nap;
            // Increase fast, decrease slowly: a late message is worse than spinning.
            self.oversleep = (over * 1.5).max(self.oversleep * 0.95).clamp(SPIN.0, SPIN.1);
        } else {
            // Do not yield: other threads would run for a whole time slice.
            std::hint::spin_loop();
        }
    }

    /// Records that the kernel accepted the first `messages` of those taken.
    pub fn sent(&mut self, messages: usize) {
        let now = self.now();
        self.sent_at(messages, now);
    }

    fn sent_at(&mut self, messages: usize, now: f64) {
        let messages = messages as u64;
        // Assume that the call sent them evenly spaced.
        let each = (now - self.taken_at).max(0.0) / messages.max(1) as f64;
        for i in 0..messages {
            let late = self.taken_at + each * i as f64 - self.due_at(self.next + i);
            // Saturates at the histogram's upper bound.
            self.late.saturating_record((late as u64).max(1));
        }
        self.next += messages;
        self.not_before = self.taken_at + messages as f64 * self.gap / CATCH_UP;
    }

    /// Called when the sender shall stop. Messages due at the first call are still sent. Returns
    /// whether any are left.
    pub fn winding_up(&mut self) -> bool {
        let now = self.now();
        self.winding_up_at(now)
    }

    fn winding_up_at(&mut self, now: f64) -> bool {
        let end = self.end.unwrap_or_else(|| StopState {
            at: now,
            due: self.due_by(now).max(self.next),
            on_time: self.next - self.given_up,
        });
        self.end = Some(end);
        end.due > self.next && now - end.at < WIND_UP.as_nanos() as f64
    }

    /// Returns the adherence to the schedule, after [`winding_up`](Pacer::winding_up).
    pub fn kept(self) -> Kept {
        let (intended, on_time) =
            self.end.map_or((self.next, self.next - self.given_up), |end| (end.due, end.on_time));
        Kept { per_s: 1e9 / self.gap, intended, on_time, late: self.late }
    }
}

/// Combines the adherence of several flows. `units` is the number of units per message (datagrams
/// of a GSO packet, requests).
pub(super) fn together<'a>(flows: impl Iterator<Item = &'a Kept>, units: f64) -> Option<Pacing> {
    let mut late = late_histogram();
    let (mut per_s, mut sent_per_s, mut any) = (0.0, 0.0, false);
    for kept in flows {
        any = true;
        per_s += kept.per_s * units;
        let share =
            if kept.intended > 0 { kept.on_time as f64 / kept.intended as f64 } else { 1.0 };
        sent_per_s += kept.per_s * units * share;
        late.add(&kept.late).expect("histograms of one shape");
    }
    let us = |ns: u64| ns as f64 / 1e3;
    any.then(|| Pacing {
        intended_per_s: per_s,
        sent_per_s,
        late_p50_us: us(late.value_at_quantile(0.5)),
        late_p99_us: us(late.value_at_quantile(0.99)),
        late_max_us: us(late.max()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: f64 = 1e6;

    /// Ten messages per millisecond.
    fn pacer() -> Pacer {
        Pacer::new(10_000.0, 0.0, 64)
    }

    #[test]
    fn messages_are_due_one_by_one_and_never_early() {
        let mut pacer = pacer();
        assert_eq!(pacer.take_at(0.0), Ok(1));
        pacer.sent_at(1, 1000.0);
        assert_eq!(pacer.take_at(40_000.0), Err(60_000.0));
        assert_eq!(pacer.take_at(100_000.0), Ok(1));
        // Flows take turns.
        let mut second = Pacer::new(10_000.0, 0.5, 64);
        assert_eq!(second.take_at(0.0), Err(50_000.0));
    }

    #[test]
    fn a_rate_that_is_no_whole_number_of_nanoseconds_is_kept() {
        let pacer = Pacer::new(3_000_000.0, 0.0, 64);
        assert_eq!(pacer.due_by(1e9 - 1.0), 3_000_000);
    }

    #[test]
    fn a_late_sender_catches_up_in_small_bursts_at_a_bounded_rate() {
        // 300 per millisecond: 6 in 20 µs.
        let mut pacer = Pacer::new(300_000.0, 0.0, 64);
        let (mut now, mut sent) = (5.0 * MS, 0);
        while sent < 3000 {
            match pacer.take_at(now) {
                Ok(messages) => {
                    assert!((1..=6).contains(&messages), "{messages}");
                    sent += messages as u64;
                    pacer.sent_at(messages, now);
                }
                Err(early) => now += early,
            }
        }
        // 3000 messages at 1.5 times the rate take 6.7 ms.
        assert!((11.6 * MS..11.8 * MS).contains(&now), "{now}");
        assert_eq!(pacer.given_up, 0);
    }

    #[test]
    fn long_overdue_messages_are_given_up_and_count_as_intended() {
        let mut pacer = pacer();
        assert_eq!(pacer.take_at(50.0 * MS), Ok(1));
        pacer.sent_at(1, 50.0 * MS);
        assert_eq!(pacer.given_up, 500);
        assert!(!pacer.winding_up_at(50.0 * MS));
        let kept = pacer.kept();
        assert_eq!((kept.intended, kept.on_time), (501, 1));
        // A slow schedule never owes more than one message.
        let mut slow = Pacer::new(1.0, 0.0, 64);
        assert_eq!(slow.take_at(500.0 * MS), Ok(1));
        assert_eq!(slow.given_up, 0);
    }

    #[test]
    fn messages_due_at_the_end_are_still_sent_and_none_after_it() {
        let mut pacer = pacer();
        assert!(pacer.winding_up_at(0.95 * MS), "ten are due");
        let mut sent = 0;
        let mut now = 0.95 * MS;
        while pacer.winding_up_at(now) {
            match pacer.take_at(now) {
                Ok(messages) => {
                    sent += messages;
                    pacer.sent_at(messages, now);
                }
                Err(early) => now += early,
            }
        }
        assert_eq!(sent, 10);
        let kept = pacer.kept();
        assert_eq!((kept.intended, kept.on_time), (10, 0));
        assert_eq!(kept.late.len(), 10);
    }

    #[test]
    fn winding_up_ends_where_the_kernel_takes_nothing() {
        let mut pacer = pacer();
        assert!(pacer.winding_up_at(1.0 * MS));
        assert!(pacer.winding_up_at(2.0 * MS));
        assert!(!pacer.winding_up_at(32.0 * MS));
    }

    #[test]
    fn lateness_is_that_of_each_message() {
        let mut pacer = pacer();
        pacer.burst = 4;
        // Three are due: 250, 150 and 50 µs late, plus 10 µs for each further one.
        assert_eq!(pacer.take_at(0.25 * MS), Ok(3));
        pacer.sent_at(3, 0.28 * MS);
        let pace = together([pacer.kept()].iter(), 2.0).unwrap();
        assert!((248.0..255.0).contains(&pace.late_max_us), "{pace:?}");
        assert!((158.0..162.0).contains(&pace.late_p50_us), "{pace:?}");
        assert_eq!(pace.intended_per_s, 20_000.0);
        assert!(together([].iter(), 1.0).is_none());
    }
}
