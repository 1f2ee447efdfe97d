//! Rate limit for requests of a client.

use std::time::{Duration, Instant};

/// Rate limiter of one session. Requests above the limit are delayed.
#[derive(Debug)]
pub struct Pace {
    most: u32,
    since: Instant,
    count: u32,
}

impl Pace {
    /// Creates a limiter with at most `most` requests per second.
    pub fn new(most: u32) -> Pace {
        Pace { most, since: Instant::now(), count: 0 }
    }

    /// Counts a request. Sleeps up to a second if the limit is exceeded.
    pub fn keep(&mut self) {
        self.count += 1;
        let elapsed = self.since.elapsed();
        if elapsed >= Duration::from_secs(1) {
            *self = Pace::new(self.most);
        } else if self.count > self.most {
            std::thread::sleep(Duration::from_secs(1) - elapsed);
            *self = Pace::new(self.most);
        }
    }
}
