//! Adaptive busy-polling: polls an empty source for a while, if that has found packets before.
//! After each unsuccessful poll, twice as many opportunities are skipped as before.

use std::time::{Duration, Instant};

/// Maximum number of consecutive misses that are counted.
const MOST: u32 = 6;

/// Polling state of one source.
#[derive(Debug)]
pub(crate) struct AdaptivePoll {
    limit: Duration,
    until: Option<Instant>,
    /// Consecutive polls without success.
    misses: u32,
    /// Opportunities still to skip.
    skip: u32,
}

impl AdaptivePoll {
    /// Creates the state for polls of at most `limit`; zero: never.
    pub(crate) fn new(limit: Duration) -> AdaptivePoll {
        AdaptivePoll { limit, until: None, misses: 0, skip: 0 }
    }

    /// Records that something arrived. If that was during a poll, `misses` restarts at 0.
    pub(crate) fn came(&mut self) {
        // The poll was useful.
        if self.until.take().is_some() {
            self.misses = 0;
        }
    }

    /// Returns whether to poll a source that is empty.
    pub(crate) fn expects(&mut self, now: impl Fn() -> Instant) -> bool {
        match self.until {
            // Polling is disabled.
            _ if self.limit.is_zero() => false,
            Some(until) if now() < until => true,
            Some(_) => {
                self.until = None;
                // Each poll without a packet doubles the pause, so that a quiet queue costs little.
                self.misses = (self.misses + 1).min(MOST);
                self.skip = 1 << self.misses;
                false
            }
            // The last polls were useless, so skip some chances.
            None if self.skip > 0 => {
                self.skip -= 1;
                false
            }
            None => {
                self.until = Some(now() + self.limit);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const LIMIT: Duration = Duration::from_micros(30);

    /// Returns how many of `count` opportunities are used for polls without success, while time
    /// advances.
    fn waits(adaptive_poll: &mut AdaptivePoll, count: usize) -> usize {
        let now = Cell::new(Instant::now());
        let mut waited = 0;
        for _ in 0..count {
            let mut looks = 0;
            while adaptive_poll.expects(|| now.get()) {
                now.set(now.get() + LIMIT / 3);
                looks += 1;
            }
            waited += usize::from(looks > 0);
        }
        waited
    }

    #[test]
    fn it_waits_while_data_arrives() {
        let mut adaptive_poll = AdaptivePoll::new(LIMIT);
        let now = Instant::now();
        for _ in 0..1000 {
            assert!(adaptive_poll.expects(|| now));
            adaptive_poll.came();
        }
    }

    #[test]
    fn it_gives_up_where_nothing_comes_and_tries_again_rarely() {
        let mut adaptive_poll = AdaptivePoll::new(LIMIT);
        // Skips 2, 4, … 64 opportunities, then 64 each time.
        assert_eq!(waits(&mut adaptive_poll, 1000), 6 + 1 + (1000 - 6 - 126 - 1) / 65);
    }

    #[test]
    fn something_makes_up_for_it() {
        let mut adaptive_poll = AdaptivePoll::new(LIMIT);
        waits(&mut adaptive_poll, 1000);
        let now = Instant::now();
        while !adaptive_poll.expects(|| now) {}
        adaptive_poll.came();
        assert!(adaptive_poll.expects(|| now));
    }

    #[test]
    fn without_a_limit_it_never_waits() {
        assert_eq!(waits(&mut AdaptivePoll::new(Duration::ZERO), 1000), 0);
    }
}
