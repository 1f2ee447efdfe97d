//! Whether waiting for more of a TAP's frames is worth while.
//!
//! A TAP takes a frame from its sender's account as soon as it is queued, so that TCP
//! does not hold back small writes until they fill a super-packet, as it does before a
//! device that is busy (`tcp_should_autocork`). A thread that is awake would then carry
//! a writer's segments one at a time through everything that follows. So it waits for
//! company, for [`PATIENCE`] at most, where the last frame was a single one as long as
//! the MTU allows: such a sender has more to say. One whose messages have just that
//! length has not; where nobody came, the next occasions are let pass, twice as many
//! each time.

use std::time::{Duration, Instant};

/// How long an empty TAP is waited for: ten segments' time of a writer on another CPU,
/// less than half of a round trip.
const PATIENCE: Duration = Duration::from_micros(30);

/// Disappointments in a row that count.
const MOST: u32 = 6;

/// Of one TAP's queue.
#[derive(Debug, Default)]
pub(super) struct Company {
    until: Option<Instant>,
    /// Disappointments in a row.
    misses: u32,
    /// Occasions to let pass.
    skip: u32,
}

impl Company {
    /// A frame has come.
    pub(super) fn came(&mut self) {
        if self.until.take().is_some() {
            self.misses = 0;
        }
    }

    /// The TAP is empty behind a full segment: whether to look again.
    pub(super) fn expected(&mut self, now: Instant) -> bool {
        match self.until {
            Some(until) if now < until => true,
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
                self.until = Some(now + PATIENCE);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Occasions of `count` at which it waits in vain; the time goes on meanwhile.
    fn waits(company: &mut Company, count: usize) -> usize {
        let mut now = Instant::now();
        let mut waited = 0;
        for _ in 0..count {
            let mut looks = 0;
            while company.expected(now) {
                now += PATIENCE / 3;
                looks += 1;
            }
            waited += usize::from(looks > 0);
        }
        waited
    }

    #[test]
    fn it_waits_as_long_as_somebody_comes() {
        let mut company = Company::default();
        let now = Instant::now();
        for _ in 0..1000 {
            assert!(company.expected(now));
            company.came();
        }
    }

    #[test]
    fn it_gives_up_where_nobody_comes_and_tries_again_rarely() {
        let mut company = Company::default();
        // After 2, 4, … 64 that were let pass, then each 64.
        assert_eq!(waits(&mut company, 1000), 6 + 1 + (1000 - 6 - 126 - 1) / 65);
    }

    #[test]
    fn somebody_makes_up_for_it() {
        let mut company = Company::default();
        waits(&mut company, 1000);
        let now = Instant::now();
        while !company.expected(now) {}
        company.came();
        assert!(company.expected(now));
    }
}
