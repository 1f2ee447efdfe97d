//! Figures by label, for a limited number of labels.
//!
//! If there is no room, a figure is added to the sum of one separate label. A label that has not
//! changed for [`Bounded::IDLE`] is replaced by a new one. If labels have owners, the owner with
//! the most places loses one to an owner with fewer, so that no owner's labels displace all others.
//! A sum only grows or disappears; a reader never sees it decrease.

use std::collections::BTreeMap;
use std::time::Duration;

/// Figures for a limited number of labels.
#[derive(Debug)]
pub struct Bounded<K, V> {
    most: usize,
    figures: BTreeMap<K, Entry<V>>,
    owner: fn(&K) -> &str,
    /// Number of places of each owner.
    places: BTreeMap<String, usize>,
    other: Option<V>,
    /// Until then, no label has been idle long enough to be replaced.
    full_until: Duration,
}

#[derive(Debug)]
struct Entry<V> {
    figures: V,
    touched: Duration,
}

impl<K: Ord + Clone, V: Default> Bounded<K, V> {
    /// How long a label keeps its place without changes.
    pub const IDLE: Duration = Duration::from_secs(600);

    /// Creates figures for up to `most` labels without owners.
    pub fn new(most: usize) -> Bounded<K, V> {
        Bounded::shared(most, |_| "")
    }

    /// Creates figures for up to `most` labels, shared by their owners.
    pub fn shared(most: usize, owner: fn(&K) -> &str) -> Bounded<K, V> {
        let (figures, places) = (BTreeMap::new(), BTreeMap::new());
        Bounded { most, figures, owner, places, other: None, full_until: Duration::ZERO }
    }

    /// Returns the figures of a label, to add to; `now` must be a monotonic clock.
    pub fn of(&mut self, label: K, now: Duration) -> &mut V {
        if !self.figures.contains_key(&label) {
            let owner = (self.owner)(&label).to_owned();
            if !self.has_room(now) && !self.makes_room(&owner) {
                // There are more labels than a scraper should keep; the total stays correct.
                return self.other.get_or_insert_default();
            }
            *self.places.entry(owner).or_default() += 1;
        }
        let fresh = || Entry { figures: V::default(), touched: now };
        let entry = self.figures.entry(label).or_insert_with(fresh);
        entry.touched = now;
        &mut entry.figures
    }

    /// Returns whether there is room for a new label, possibly by removing an idle one.
    fn has_room(&mut self, now: Duration) -> bool {
        if self.figures.len() < self.most {
            return true;
        }
        // Until then no place can be idle: the search through all of them is not needed.
        if now < self.full_until {
            return false;
        }
        let oldest = self.figures.iter().min_by_key(|(_, entry)| entry.touched);
        let oldest = oldest.map(|(label, entry)| (label.clone(), entry.touched));
        // There are no places at all.
        let Some((label, touched)) = oldest else { return false };
        self.full_until = touched + Self::IDLE;
        now >= self.full_until && self.remove(&label)
    }

    /// Makes room for an owner if the owner with the most places has at least two more: the least
    /// recently changed label of that owner is removed. Returns whether there is room.
    fn makes_room(&mut self, owner: &str) -> bool {
        let own = self.places.get(owner).copied().unwrap_or(0);
        // No namespace has a label that could be given away.
        let Some((rich, most)) = self.places.iter().max_by_key(|(_, places)| **places) else {
            return false;
        };
        // Taking a place would only exchange the two owners.
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
            // An owner without places must not use memory.
            if *places == 0 {
                self.places.remove(owner);
            }
        }
        self.figures.remove(label).is_some()
    }

    /// Returns all labels with their figures; the sum of all others is under `other`.
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
    fn entries_without_room_are_summed_up() {
        let mut bounded = Bounded::<u32, u64>::new(2);
        for label in 0..1000 {
            *bounded.of(label, at(0)) += 1;
            *bounded.of(0, at(0)) += 1;
        }
        let all: Vec<(u32, u64)> = bounded.iter(&9999).map(|(k, v)| (*k, *v)).collect();
        assert_eq!(all, [(0, 1001), (1, 1), (9999, 998)]);
    }

    #[test]
    fn no_source_takes_the_places_of_all_others() {
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
        // Labels that exist from the start keep their place and sum.
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
