//! State of namespaces that is kept for a short time. Sockets keep a namespace alive that was
//! deleted, so they are closed soon, even if its packets are still dropped.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time after the last use.
const IDLE: Duration = Duration::from_secs(5);
/// Time after the state was opened.
const OLD: Duration = Duration::from_secs(30);
/// Limit of namespaces.
const MOST: usize = 32;

/// State by inode of the namespace.
pub struct Recent<V> {
    kept: BTreeMap<u32, Kept<V>>,
}

struct Kept<V> {
    state: V,
    opened: Instant,
    used: Instant,
}

impl<V> Default for Recent<V> {
    fn default() -> Recent<V> {
        Recent { kept: BTreeMap::new() }
    }
}

impl<V> Recent<V> {
    /// Returns the state of a namespace, which is then in use.
    pub fn get(&mut self, inode: u32, now: Instant) -> Option<&mut V> {
        self.forget(now);
        let kept = self.kept.get_mut(&inode)?;
        kept.used = now;
        Some(&mut kept.state)
    }

    /// Adds the state of a namespace, in place of the one that was not used for longest.
    pub fn put(&mut self, inode: u32, state: V, now: Instant) -> &mut V {
        let longest = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(inode, _)| *inode);
        if let Some(longest) = longest.filter(|_| self.kept.len() >= MOST) {
            self.kept.remove(&longest);
        }
        self.kept.remove(&inode);
        let kept = Kept { state, opened: now, used: now };
        &mut self.kept.entry(inode).or_insert(kept).state
    }

    /// Drops states that were not used for some time, or are old.
    pub fn forget(&mut self, now: Instant) {
        let age = |since: Instant| now.saturating_duration_since(since);
        self.kept.retain(|_, kept| age(kept.used) < IDLE && age(kept.opened) < OLD);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn idle_and_old_states_are_dropped() {
        let (mut recent, begun) = (Recent::default(), Instant::now());
        let state = Rc::new(());
        recent.put(1, Rc::clone(&state), begun);
        // In use all the time.
        for second in 1..OLD.as_secs() {
            assert!(recent.get(1, begun + Duration::from_secs(second)).is_some(), "{second} s");
        }
        assert!(recent.get(1, begun + OLD).is_none());
        recent.put(2, Rc::clone(&state), begun);
        recent.forget(begun + IDLE / 2);
        assert_eq!(Rc::strong_count(&state), 2);
        recent.forget(begun + IDLE);
        assert_eq!(Rc::strong_count(&state), 1);
    }

    #[test]
    fn the_number_is_limited() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        for inode in 0..=MOST as u32 {
            recent.put(inode, (), now + Duration::from_millis(inode.into()));
        }
        assert_eq!(recent.kept.len(), MOST);
        assert!(!recent.kept.contains_key(&0));
    }
}
