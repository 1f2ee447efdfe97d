//! Figures by label, for a bounded number of labels.
//!
//! What has no room is summed up under one label of its own. A label that nothing was added to
//! for [`Bounded::IDLE`] makes room for a new one. Where labels have owners, the owner with most
//! places makes room for one with fewer: nobody's labels take the others' away. Each sum grows,
//! or is gone: a reader never sees one shrink.

use std::collections::BTreeMap;
use std::time::Duration;

/// Figures of at most so many labels.
#[derive(Debug)]
pub struct Bounded<K, V> {
    most: usize,
    figures: BTreeMap<K, Entry<V>>,
    owner: fn(&K) -> &str,
    /// How many places each owner has.
    places: BTreeMap<String, usize>,
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

    /// Room for so many labels, whosoever they are.
    pub fn new(most: usize) -> Bounded<K, V> {
        Bounded::shared(most, |_| "")
    }

    /// Room for so many labels, which their owners share.
    pub fn shared(most: usize, owner: fn(&K) -> &str) -> Bounded<K, V> {
        let (figures, places) = (BTreeMap::new(), BTreeMap::new());
        Bounded { most, figures, owner, places, other: None, full_until: Duration::ZERO }
    }

    /// Figures of a label, to add to; `now` is a clock that never goes back.
    pub fn of(&mut self, label: K, now: Duration) -> &mut V {
        if !self.figures.contains_key(&label) {
            let owner = (self.owner)(&label).to_owned();
            if !self.has_room(now) && !self.makes_room(&owner) {
                // More labels than a scraper should keep: the sum stays right.
                return self.other.get_or_insert_default();
            }
            *self.places.entry(owner).or_default() += 1;
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
        now >= self.full_until && self.remove(&label)
    }

    /// Whether the owner with most places has more than one more than this one: that one's
    /// label that was touched least lately is gone then.
    fn makes_room(&mut self, owner: &str) -> bool {
        let own = self.places.get(owner).copied().unwrap_or(0);
        let Some((rich, most)) = self.places.iter().max_by_key(|(_, places)| **places) else {
            return false;
        };
        if *most <= own + 1 {
            return false;
        }
        let theirs = self.figures.iter().filter(|(label, _)| (self.owner)(label) == rich);
        let oldest = theirs.min_by_key(|(_, entry)| entry.touched);
        let oldest = oldest.map(|(label, _)| label.clone());
        oldest.is_some_and(|label| self.remove(&label))
    }

    fn remove(&mut self, label: &K) -> bool {
        let owner = (self.owner)(label);
        if let Some(places) = self.places.get_mut(owner) {
            *places -= 1;
            if *places == 0 {
                self.places.remove(owner);
            }
        }
        self.figures.remove(label).is_some()
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
    fn nobody_takes_the_places_of_all_others() {
        fn owner(label: &(&'static str, u32)) -> &'static str {
            label.0
        }
        let mut bounded = Bounded::<(&'static str, u32), u64>::shared(100, |label| owner(label));
        for _ in 0..5 {
            for device in 0..1000 {
                *bounded.of(("tenant", device), at(0)) += 1;
            }
            for device in 0..60 {
                *bounded.of(("host", device), at(0)) += 1;
            }
            *bounded.of(("other tenant", 0), at(0)) += 1;
        }
        let of = |owner: &str| bounded.figures.keys().filter(|label| label.0 == owner).count();
        assert_eq!(bounded.figures.len(), 100);
        assert_eq!(of("other tenant"), 1);
        assert!(of("host") >= 49, "{}", of("host"));
        assert_eq!(bounded.places.values().sum::<usize>(), 100);
        // What is there from the beginning keeps its place and its sum.
        assert_eq!(*bounded.of(("host", 0), at(1)), 5);
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
