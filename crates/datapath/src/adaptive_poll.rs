//! Whether looking again, for a while, for what is not there yet is worth while: as
//! long as something has come meanwhile. Where nothing came, the next occasions are let
//! pass, twice as many each time.

use std::time::{Duration, Instant};

/// Disappointments in a row that count.
const MOST: u32 = 6;

/// State of polling one source: how long it goes on, and how many occasions are let pass.
#[derive(Debug)]
pub(crate) struct AdaptivePoll {
    limit: Duration,
    until: Option<Instant>,
    /// Disappointments in a row.
    misses: u32,
    /// Occasions to let pass.
    skip: u32,
}

impl AdaptivePoll {
    /// For so long at most; zero: never.
    pub(crate) fn new(limit: Duration) -> AdaptivePoll {
        AdaptivePoll { limit, until: None, misses: 0, skip: 0 }
    }

    /// Notes that something has come. Where it was waited for, `misses` begins at 0 again.
    pub(crate) fn came(&mut self) {
        if self.until.take().is_some() {
            self.misses = 0;
        }
    }

    /// There is nothing: whether to look again.
    pub(crate) fn expects(&mut self, now: impl Fn() -> Instant) -> bool {
        match self.until {
            _ if self.limit.is_zero() => false,
            Some(until) if now() < until => true,
            Some(_) => {
                self.until = None;
                self.misses = (self.misses + 1).min(MOST);
                self.skip = 1 << self.misses;
                false
            }
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

    /// Occasions of `count` at which it waits in vain; the time goes on meanwhile.
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
    fn it_waits_as_long_as_something_comes() {
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
        // After 2, 4, … 64 that were let pass, then each 64.
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
