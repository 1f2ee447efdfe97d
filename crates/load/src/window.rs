//! Requests in flight over UDP, identified by a number in the datagram.
//!
//! The number takes as many bytes as the message has room for, at most eight. A one-byte message
//! counts modulo 256, so only 256 consecutive requests can be distinguished; a later answer would
//! be assigned to another request.
//!
//! A request counts as lost when its time limit has passed, or when a request [`OVERTAKEN`] places
//! later has been answered. Reordering moves packets of one flow by a few tens of places at most.
//! A lost request must not occupy its place until the time limit, since a few of them would block
//! all others. Answers to lost requests are ignored.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum length of the number, bytes.
pub(super) const NUMBER_BYTES: usize = 8;

/// Distance after which an answered request proves that an earlier one is lost: half of the
/// numbers of one byte.
const OVERTAKEN: u64 = 128;

/// A request with its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// Due time; in a closed loop the time of sending.
    pub intended: Instant,
    /// Time of sending.
    pub sent: Instant,
}

/// The requests from the oldest in flight to the newest.
#[derive(Debug)]
pub(super) struct Window {
    /// In order of number; `None` if answered.
    requests: VecDeque<Option<Request>>,
    /// Number of the oldest request.
    first: u64,
    /// Number after the newest answered request.
    answered: u64,
    under_way: usize,
    /// Maximum requests in flight.
    bound: usize,
    number_bytes: usize,
    lost_after: Duration,
}

impl Window {
    /// Creates a window for messages of `message_bytes` with at most `bound` requests in flight.
    pub fn new(message_bytes: usize, bound: usize, lost_after: Duration) -> Window {
        Window {
            requests: VecDeque::new(),
            first: 0,
            answered: 0,
            under_way: 0,
            bound,
            number_bytes: message_bytes.min(NUMBER_BYTES),
            lost_after,
        }
    }

    /// Returns whether another request may be sent.
    pub fn has_room(&self) -> bool {
        // Bound the window, so that numbers in flight stay unique.
        let numbers = if self.number_bytes == 1 { 256 } else { 65536 };
        self.under_way < self.bound && self.requests.len() < numbers
    }

    /// Returns requests that are neither answered nor lost, oldest first.
    pub fn under_way(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().flatten()
    }

    fn oldest(&self) -> Option<&Request> {
        // Answered requests are removed from the front.
        self.requests.front().and_then(Option::as_ref)
    }

    /// Writes the next request's number into its message.
    pub fn number(&self, message: &mut [u8]) {
        let number = (self.first + self.requests.len() as u64).to_le_bytes();
        message[..self.number_bytes].copy_from_slice(&number[..self.number_bytes]);
    }

    /// Records that the request with that number has been sent.
    pub fn push(&mut self, request: Request) {
        self.requests.push_back(Some(request));
        self.under_way += 1;
    }

    /// Returns the request that a message answers; `None` if none in flight matches.
    pub fn answer(&mut self, message: &[u8]) -> Option<Request> {
        let mut number = [0; NUMBER_BYTES];
        number[..self.number_bytes].copy_from_slice(message.get(..self.number_bytes)?);
        let beyond = u64::from_le_bytes(number).wrapping_sub(self.first);
        let ahead = match self.number_bytes {
            NUMBER_BYTES => beyond,
            // Short numbers wrap around: compare modulo their range.
            short => beyond & ((1 << (8 * short)) - 1),
        };
        let request = self.requests.get_mut(usize::try_from(ahead).ok()?)?.take()?;
        self.answered = self.answered.max(self.first + ahead + 1);
        self.under_way -= 1;
        self.trim();
        Some(request)
    }

    /// Removes the oldest request if it is lost.
    pub fn lost(&mut self, now: Instant) -> Option<Request> {
        let oldest = self.oldest()?;
        // An answer this late counts as lost, or the window would fill with old requests.
        let late = now.saturating_duration_since(oldest.sent) >= self.lost_after;
        if !late && self.answered <= self.first + OVERTAKEN {
            return None;
        }
        let lost = self.requests.pop_front().flatten();
        self.first += 1;
        self.under_way -= 1;
        self.trim();
        lost
    }

    /// Returns the time at which the oldest request counts as lost.
    pub fn deadline(&self) -> Option<Instant> {
        self.oldest().map(|oldest| oldest.sent + self.lost_after)
    }

    fn trim(&mut self) {
        while let Some(None) = self.requests.front() {
            self.requests.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: Duration = Duration::from_millis(200);

    fn send(window: &mut Window, at: Instant, message: &mut [u8]) {
        window.number(message);
        window.push(Request { intended: at, sent: at });
    }

    #[test]
    fn a_byte_distinguishes_256_requests() {
        let mut window = Window::new(1, 1024, LIMIT);
        let now = Instant::now();
        let mut sent = Vec::new();
        while window.has_room() {
            let mut message = [0];
            send(&mut window, now + Duration::from_nanos(sent.len() as u64), &mut message);
            sent.push(message);
        }
        assert_eq!(sent.len(), 256);
        for (i, message) in sent.iter().enumerate().rev() {
            let request = window.answer(message).unwrap();
            assert_eq!(request.intended - now, Duration::from_nanos(i as u64));
            assert_eq!(window.answer(message), None, "twice");
        }
        assert!(window.has_room() && window.under_way().count() == 0);
    }

    #[test]
    fn an_overtaken_request_is_lost_and_stops_nothing() {
        let now = Instant::now();
        for bytes in [1, 64] {
            let mut window = Window::new(bytes, 1024, LIMIT);
            let mut lost = vec![0; bytes];
            send(&mut window, now, &mut lost);
            for _ in 0..OVERTAKEN {
                assert_eq!(window.lost(now), None);
                let mut message = vec![0; bytes];
                send(&mut window, now, &mut message);
                window.answer(&message).unwrap();
            }
            assert!(window.lost(now).is_some(), "{bytes}");
            assert_eq!(window.lost(now), None);
            assert_eq!(window.answer(&lost), None, "too late");
        }
    }

    #[test]
    fn a_request_without_an_answer_is_lost_in_time() {
        let now = Instant::now();
        let mut window = Window::new(64, 8, LIMIT);
        let mut message = [0; 64];
        send(&mut window, now, &mut message);
        assert_eq!(window.deadline(), Some(now + LIMIT));
        assert_eq!(window.lost(now + LIMIT - Duration::from_nanos(1)), None);
        assert!(window.lost(now + LIMIT).is_some());
        assert_eq!((window.under_way().count(), window.deadline()), (0, None));
    }

    #[test]
    fn another_loads_answer_is_none_of_ours() {
        let mut window = Window::new(64, 8, LIMIT);
        send(&mut window, Instant::now(), &mut [0; 64]);
        assert_eq!(window.answer(&[0xff; 64]), None);
        assert_eq!(window.answer(&[]), None);
        assert_eq!(window.under_way().count(), 1);
    }

    proptest! {
        /// With any loss, delay and reordering, each answer finds its own request, and each request
        /// is answered, lost or in flight.
        #[test]
        fn every_request_has_one_fate(
            bytes in prop_oneof![Just(1usize), Just(2), Just(8), Just(64)],
            bound in 1..300usize,
            steps in proptest::collection::vec((0..100u8, 0..8usize), 0..3000),
        ) {
            let mut window = Window::new(bytes, bound, LIMIT);
            let start = Instant::now();
            let mut path: VecDeque<(Vec<u8>, Instant)> = VecDeque::new();
            let (mut sent, mut answered, mut lost) = (0u64, 0u64, 0u64);
            for (what, place) in steps {
                let now = start + Duration::from_micros(sent);
                while window.lost(now).is_some() {
                    lost += 1;
                }
                if what < 50 && window.has_room() {
                    let mut message = vec![0; bytes];
                    send(&mut window, now, &mut message);
                    sent += 1;
                    path.push_back((message, now));
                } else if what < 55 {
                    path.pop_front();
                } else if let Some((message, at)) = path.remove(place.min(path.len().max(1) - 1))
                    && let Some(request) = window.answer(&message)
                {
                    prop_assert_eq!(request.intended, at);
                    answered += 1;
                }
                let under_way = window.under_way().count();
                prop_assert!(under_way <= bound);
                prop_assert_eq!(sent, answered + lost + under_way as u64);
            }
        }
    }
}
