//! Figures by label, for a bounded number of labels.
//!
//! What has no room is summed up under one label of its own. A label that nothing was added to
//! for [`Bounded::IDLE`] makes room for a new one. Each sum grows, or is gone: a reader never
//! sees one shrink.

use std::collections::BTreeMap;
use std::time::Duration;

/// Figures of at most so many labels.
#[derive(Debug)]
pub struct Bounded<K, V> {
    most: usize,
    figures: BTreeMap<K, Entry<V>>,
    other: Option<V>,
    /// No label is idle for long enough before.
    full_until: Duration,
}

#[derive(Debug)]
struct Entry<V> {
    figures: V,
    touched: Duration,
}

impl<K: Ord + Clone, V: Default> Bounded<K, V> {
    /// How long a label keeps its place without anything new.
    pub const IDLE: Duration = Duration::from_secs(600);

    /// Room for so many labels.
    pub fn new(most: usize) -> Bounded<K, V> {
        Bounded { most, figures: BTreeMap::new(), other: None, full_until: Duration::ZERO }
    }

    /// Figures of a label, to add to; `now` is a clock that never goes back.
    pub fn of(&mut self, label: K, now: Duration) -> &mut V {
        if !self.figures.contains_key(&label) && !self.has_room(now) {
            // More labels than a scraper should keep: the sum stays right.
            return self.other.get_or_insert_default();
        }
        let fresh = || Entry { figures: V::default(), touched: now };
        let entry = self.figures.entry(label).or_insert_with(fresh);
        entry.touched = now;
        &mut entry.figures
    }

    /// Whether a new label has a place, which may be that of an idle one.
    fn has_room(&mut self, now: Duration) -> bool {
        if self.figures.len() < self.most {
            return true;
        }
        if now < self.full_until {
            return false;
        }
        let oldest = self.figures.iter().min_by_key(|(_, entry)| entry.touched);
        let oldest = oldest.map(|(label, entry)| (label.clone(), entry.touched));
        let Some((label, touched)) = oldest else { return false };
        self.full_until = touched + Self::IDLE;
        now >= self.full_until && self.figures.remove(&label).is_some()
    }

    /// Each label and its figures; those of all others under `other`.
    pub fn iter<'a>(&'a self, other: &'a K) -> impl Iterator<Item = (&'a K, &'a V)> {
        let own = self.figures.iter().map(|(label, entry)| (label, &entry.figures));
        own.chain(self.other.iter().map(move |figures| (other, figures)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_has_no_room_is_summed_up() {
        let mut bounded = Bounded::<u32, u64>::new(2);
        for label in 0..1000 {
            *bounded.of(label, at(0)) += 1;
            *bounded.of(0, at(0)) += 1;
        }
        let all: Vec<(u32, u64)> = bounded.iter(&9999).map(|(k, v)| (*k, *v)).collect();
        assert_eq!(all, [(0, 1001), (1, 1), (9999, 998)]);
    }

    #[test]
    fn an_idle_label_makes_room_and_a_busy_one_does_not() {
        let mut bounded = Bounded::<&str, u64>::new(2);
        *bounded.of("gone", at(0)) += 1;
        for second in 0..600 {
            *bounded.of("busy", at(second)) += 1;
            *bounded.of("new", at(second)) += 1;
        }
        let labels = |bounded: &Bounded<&'static str, u64>| {
            bounded.iter(&"other").map(|(k, v)| (*k, *v)).collect::<Vec<_>>()
        };
        assert_eq!(labels(&bounded), [("busy", 600), ("gone", 1), ("other", 600)]);
        *bounded.of("new", at(600)) += 1;
        assert_eq!(labels(&bounded), [("busy", 600), ("new", 1), ("other", 600)]);
        *bounded.of("newer", at(601)) += 1;
        assert_eq!(labels(&bounded), [("busy", 600), ("new", 1), ("other", 601)]);
    }
}
