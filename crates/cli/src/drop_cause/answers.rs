//! Answers about drops, kept for a second; looking them up takes a limited share of the time.
//!
//! A flood of drops of one flow costs one look-up per second. A flood of drops of many flows gets as
//! many answers as the share allows.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Time for which an answer is kept.
const FRESH: Duration = Duration::from_secs(1);
/// Look-ups take at most one part in this many of the time.
const SHARE: u32 = 10;
/// Look-ups may be ahead of their share by this much.
const AHEAD: Duration = Duration::from_secs(1);
/// Limit of kept answers.
const MOST: usize = 1024;

/// Answers by question.
pub struct Answers<K> {
    known: HashMap<K, (Option<String>, Instant)>,
    /// When the look-ups so far will have had their share.
    paid: Option<Instant>,
}

impl<K> Default for Answers<K> {
    fn default() -> Answers<K> {
        Answers { known: HashMap::new(), paid: None }
    }
}

impl<K: Eq + Hash> Answers<K> {
    /// Returns the answer, `None` inside for "unknown"; `None`: it has to be looked up.
    pub fn get(&self, key: &K, now: Instant) -> Option<Option<String>> {
        let (answer, at) = self.known.get(key)?;
        (now.saturating_duration_since(*at) < FRESH).then(|| answer.clone())
    }

    /// Returns whether a look-up may begin.
    pub fn is_room(&mut self, now: Instant) -> bool {
        // The share of time for look-ups is used up for now.
        if self.paid.is_some_and(|paid| paid > now + AHEAD) {
            return false;
        }
        if self.known.len() >= MOST {
            self.known.retain(|_, (_, at)| now.saturating_duration_since(*at) < FRESH);
        }
        self.known.len() < MOST
    }

    /// Keeps an answer that was looked up from `begun` to `now`.
    pub fn put(&mut self, key: K, answer: Option<String>, begun: Instant, now: Instant) {
        let took = now.saturating_duration_since(begun);
        self.paid = Some(self.paid.unwrap_or(begun).max(begun) + took * SHARE);
        self.known.insert(key, (answer, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for these keys, one each millisecond, and returns the number of look-ups.
    fn look_ups(keys: impl Iterator<Item = u64>, takes: Duration) -> u32 {
        let mut answers = Answers::default();
        let mut now = Instant::now();
        let mut count = 0;
        for key in keys {
            now += Duration::from_millis(1);
            if answers.get(&key, now).is_some() || !answers.is_room(now) {
                continue;
            }
            count += 1;
            answers.put(key, Some(key.to_string()), now, now + takes);
            assert_eq!(answers.get(&key, now + takes), Some(Some(key.to_string())));
            now += takes;
        }
        count
    }

    #[test]
    fn a_flow_is_looked_up_once_a_second() {
        let of_one = std::iter::repeat_n(7, 10_000);
        assert!((9..=11).contains(&look_ups(of_one, Duration::from_millis(1))));
    }

    #[test]
    fn many_flows_take_their_share_of_the_time() {
        // 10,000 drops in 10 s and the time of the look-ups, of which they have a tenth.
        let count = look_ups(0..10_000, Duration::from_millis(20));
        assert!((50..=70).contains(&count), "{count}");
        // One long look-up, and then none until it has had its share, but for a second.
        assert_eq!(look_ups(0..3000, Duration::from_millis(500)), 1);
    }

    #[test]
    fn few_answers_are_kept() {
        let mut answers = Answers::default();
        let now = Instant::now();
        for key in 0..MOST {
            assert!(answers.is_room(now));
            answers.put(key, None, now, now);
        }
        assert!(!answers.is_room(now));
        assert!(answers.is_room(now + FRESH));
        assert!(answers.known.is_empty());
    }
}
