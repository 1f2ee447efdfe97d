//! How fast a client may ask.

use std::time::{Duration, Instant};

/// Requests of one session: beyond so many a second the server takes its time.
#[derive(Debug)]
pub struct Pace {
    most: u32,
    since: Instant,
    count: u32,
}

impl Pace {
    /// At most so many a second.
    pub fn new(most: u32) -> Pace {
        Pace { most, since: Instant::now(), count: 0 }
    }

    /// One more request; sleeps when they come too fast, at most a second.
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
