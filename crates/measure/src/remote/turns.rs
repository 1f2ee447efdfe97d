//! Turns of clients: one load at a time, in the order of the requests.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which a waiting session checks the stop flag.
const STOP_LOOK: Duration = Duration::from_millis(200);

/// The queue for the right to run a load.
#[derive(Debug, Default)]
pub(super) struct Turns {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// Waiting requests, oldest first.
    waiting: VecDeque<u64>,
    running: bool,
}

/// The right to run a load; released on drop.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for the turn after all earlier requests. `None` if it does not come within `limit`, or
    /// `stop` is set.
    pub fn take(&self, limit: Duration, stop: &AtomicBool) -> Option<Turn<'_>> {
        let deadline = Instant::now() + limit;
        let mut queue = self.lock();
        let own = queue.next;
        queue.next += 1;
        queue.waiting.push_back(own);
        loop {
            if !queue.running && queue.waiting.front() == Some(&own) {
                queue.waiting.pop_front();
                queue.running = true;
                return Some(Turn(self));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // The client asks again; the connection must not wait longer than its own time limit.
            if left.is_zero() || stop.load(Ordering::Relaxed) {
                queue.waiting.retain(|other| *other != own);
                // The next request may now be the first one.
                self.changed.notify_all();
                return None;
            }
            let wait = self.changed.wait_timeout(queue, left.min(STOP_LOOK));
            queue = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns whether a load is running.
    pub fn is_taken(&self) -> bool {
        self.lock().running
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().running = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO: AtomicBool = AtomicBool::new(false);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_request_in_vain_does_not_end_the_running_turn() {
        let turns = Turns::default();
        let turn = turns.take(LONG, &GO).unwrap();
        for _ in 0..3 {
            assert!(turns.take(Duration::ZERO, &GO).is_none());
            assert!(turns.is_taken());
        }
        assert!(turns.take(LONG, &AtomicBool::new(true)).is_none());
        drop(turn);
        assert!(!turns.is_taken());
        assert!(turns.take(Duration::ZERO, &GO).is_some());
    }

    #[test]
    fn turns_come_in_the_order_of_the_requests() {
        let turns = Turns::default();
        let order = Mutex::new(Vec::new());
        let first = turns.take(LONG, &GO).unwrap();
        std::thread::scope(|scope| {
            for number in 0..4_usize {
                let (turns, order) = (&turns, &order);
                scope.spawn(move || {
                    let turn = turns.take(LONG, &GO).unwrap();
                    order.lock().unwrap().push(number);
                    drop(turn);
                });
                while turns.lock().waiting.len() <= number {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
    }
}
