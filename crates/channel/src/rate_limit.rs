//! Rate limit for requests of a client.

use std::time::{Duration, Instant};

/// Rate limiter of one session. Requests above the limit are delayed.
#[derive(Debug)]
pub struct RateLimit {
    most: u32,
    since: Instant,
    count: u32,
}

impl RateLimit {
    /// Creates a limiter with at most `most` requests per second.
    pub fn new(most: u32) -> RateLimit {
        RateLimit { most, since: Instant::now(), count: 0 }
    }

    /// Counts a request. Sleeps up to a second if the limit is exceeded.
    pub fn keep(&mut self) {
        self.count += 1;
        let elapsed = self.since.elapsed();
        if elapsed >= Duration::from_secs(1) {
            *self = RateLimit::new(self.most);
        } else if self.count > self.most {
            std::thread::sleep(Duration::from_secs(1) - elapsed);
            *self = RateLimit::new(self.most);
        }
    }
}
