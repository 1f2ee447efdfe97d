//! Table of entries learned from packets, besides static ones. Entries expire, their number is
//! limited, and each endpoint has a share of it. It is the table of neighbours
//! ([`super::neighbour`]), and shares code with the forwarding table ([`super::fdb`]).
//!
//! Learned entries come from packets and so from anyone. The table never exceeds its limit, no
//! endpoint uses up the share of another, and a packet never changes a static entry.

use std::collections::HashMap;
use std::collections::hash_map;
use std::hash::Hash;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::place::Place;
use crate::counters::{Learning, Tally};

/// Seconds over which the moves of an endpoint are counted.
pub const MOVE_WINDOW: u32 = 60;

/// Maximum number of endpoints whose moves are remembered. If any remote endpoint may send, senders
/// choose how many there are.
const MOVERS_MAX: usize = 4096;

/// Limits of learned entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Seconds after which an entry expires, unless a packet confirms it.
    pub ageing: u32,
    /// Maximum number of entries of all remote endpoints together, and the same number for the
    /// TAP's side.
    pub entries: usize,
    /// Maximum number of entries of one remote endpoint.
    pub share: usize,
    /// Maximum number of addresses that one remote endpoint may take over within [`MOVE_WINDOW`]
    /// from places that are not silent.
    pub moves: u32,
}

/// Result of learning from a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// The entry existed and is unchanged.
    Known,
    New,
    /// The entry changed: the address moved to another place.
    Moved,
    /// The address went back to a place that had it before and still sends.
    Returned,
    /// The table is full; nothing was added.
    Full,
    /// The endpoint has used up its share; nothing was added.
    Quota,
    /// A static entry says otherwise; nothing was changed.
    Configured,
    /// Another place has the address and still sends; nothing was changed.
    Contested,
    /// The TAP's side has the address and still sends; nothing was changed.
    Local,
}

impl Tally {
    /// Counts the result for a source address, if there is a counter for it.
    pub(super) fn learn_of(&self, learned: Learned) {
        match learned {
            // These are counted elsewhere: as entries, or as dropped packets.
            Learned::Known | Learned::New | Learned::Configured | Learned::Local => {}
            Learned::Moved => self.learn(Learning::Moved),
            Learned::Returned => self.learn(Learning::Returned),
            Learned::Contested => self.learn(Learning::Contested),
            Learned::Quota => self.learn(Learning::Quota),
            Learned::Full => self.learn(Learning::Full),
        }
    }
}

/// Entries and moves of one endpoint.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    learned: usize,
    moves: u32,
    /// Second in which the current window of moves began.
    window: u32,
}

/// Learned entries per endpoint. For an endpoint without entries, only its moves are kept, until
/// their window ends.
#[derive(Debug, Default)]
pub(super) struct Shares {
    of: HashMap<Place, Share>,
    learned: usize,
    /// Second of the last search for idle endpoints.
    purged: u32,
}

impl Shares {
    /// Returns the number of learned entries of all endpoints.
    pub(super) fn learned(&self) -> usize {
        self.learned
    }

    fn learned_of(&self, place: Place) -> usize {
        self.of.get(&place).map_or(0, |share| share.learned)
    }

    #[cfg(test)]
    pub(super) fn ends(&self) -> usize {
        self.of.len()
    }

    /// Returns the remote endpoint with the most entries, and their number.
    pub(super) fn largest(&self) -> Option<(std::net::IpAddr, usize)> {
        let remotes = self.of.iter().filter_map(|(place, share)| match place {
            Place::Remote(remote) if share.learned > 0 => Some((*remote, share.learned)),
            _ => None,
        });
        remotes.max_by_key(|(_, learned)| *learned)
    }

    /// Returns why `place` may not have another entry; `None` if it may. The TAP's side has the
    /// room of a whole table to itself, so that remote endpoints cannot displace its addresses.
    pub(super) fn refuses(&self, place: Place, limits: &Limits) -> Option<Learned> {
        let (own, local) = (self.learned_of(place), self.learned_of(Place::Local));
        // Addresses that the TAP's side takes over from remote endpoints may exceed its own limit.
        if self.learned >= limits.entries.saturating_mul(2) {
            return Some(Learned::Full);
        }
        match place {
            Place::Local => (own >= limits.entries).then_some(Learned::Full),
            Place::Remote(_) if own >= limits.share => Some(Learned::Quota),
            Place::Remote(_) => (self.learned - local >= limits.entries).then_some(Learned::Full),
        }
    }

    pub(super) fn add(&mut self, place: Place) {
        self.of.entry(place).or_default().learned += 1;
        self.learned += 1;
    }

    pub(super) fn remove(&mut self, place: Place) {
        let Some(share) = self.of.get_mut(&place) else { return };
        share.learned -= 1;
        self.learned -= 1;
        if share.learned == 0 && share.moves == 0 {
            self.of.remove(&place);
        }
    }

    /// Counts a move to `place`; returns false if it has used up its moves.
    pub(super) fn take_move(&mut self, place: Place, now: u32, limits: &Limits) -> bool {
        if self.of.len() >= MOVERS_MAX && !self.of.contains_key(&place) {
            if self.purged != now {
                self.purged = now;
                self.forget_idle(now);
            }
            if self.of.len() >= MOVERS_MAX {
                // All movers are active; more of them would let the table grow without limit.
                return false;
            }
        }
        let share = self.of.entry(place).or_default();
        if now.saturating_sub(share.window) >= MOVE_WINDOW {
            (share.window, share.moves) = (now, 0);
        }
        let allowed = share.moves < limits.moves;
        share.moves += u32::from(allowed);
        allowed
    }

    /// Recounts the entries, and forgets idle endpoints.
    pub(super) fn recount(&mut self, places: impl Iterator<Item = Place>, now: u32) {
        self.of.values_mut().for_each(|share| share.learned = 0);
        self.learned = 0;
        places.for_each(|place| self.add(place));
        self.forget_idle(now);
    }

    fn forget_idle(&mut self, now: u32) {
        self.of.retain(|_, share| {
            let moving = share.moves > 0 && now.saturating_sub(share.window) < MOVE_WINDOW;
            share.learned > 0 || moving
        });
    }
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    /// Place that confirmed it last; `None`: static.
    teller: Option<Place>,
    /// Second of the last packet that confirmed it.
    seen: AtomicU32,
}

#[derive(Debug)]
struct Entries<K, V> {
    entries: HashMap<K, Entry<V>>,
    shares: Shares,
    /// Second of the last search for expired entries.
    swept: u32,
}

/// A table of one network. The caller defines the time zero of seconds.
#[derive(Debug)]
pub struct Table<K, V> {
    table: RwLock<Entries<K, V>>,
}

impl<K: Copy + Eq + Hash, V: Copy + PartialEq> Table<K, V> {
    /// Creates a table with static entries.
    pub fn new(configured: impl IntoIterator<Item = (K, V)>) -> Table<K, V> {
        let entries = Entries { entries: HashMap::new(), shares: Shares::default(), swept: 0 };
        let table = Table { table: RwLock::new(entries) };
        table.configure(configured, |_| true);
        table
    }

    /// Replaces the static entries, and removes learned entries whose teller `keep` rejects.
    pub fn configure(
        &self,
        configured: impl IntoIterator<Item = (K, V)>,
        keep: impl Fn(Place) -> bool,
    ) {
        let mut table = self.write();
        let table = &mut *table;
        table.entries.retain(|_, entry| entry.teller.is_some_and(&keep));
        for (key, value) in configured {
            table.entries.insert(key, Entry { value, teller: None, seen: AtomicU32::new(0) });
        }
        let tellers = table.entries.values().filter_map(|entry| entry.teller);
        table.shares.recount(tellers, table.swept);
    }

    /// Returns the entry if it is known and not expired, and whether it is static.
    pub fn find(&self, key: K, now: u32, limits: &Limits) -> Option<(V, bool)> {
        let table = self.read();
        let entry = table.entries.get(&key)?;
        let configured = entry.teller.is_none();
        (configured || !entry.is_old(now, limits)).then_some((entry.value, configured))
    }

    /// Removes a learned entry.
    pub fn forget(&self, key: K) {
        // Usually there is none, so check with a read lock first.
        if !self.read().entries.contains_key(&key) {
            return;
        }
        let mut table = self.write();
        if let Some(teller) = table.entries.get(&key).and_then(|entry| entry.teller) {
            table.entries.remove(&key);
            table.shares.remove(teller);
        }
    }

    /// Learns from a packet of `teller`. The last claim wins, except over static entries.
    pub fn learn(&self, key: K, value: V, teller: Place, now: u32, limits: &Limits) -> Learned {
        {
            let table = self.read();
            match table.entries.get(&key) {
                // Usually nothing changes. Then threads only share a read lock and do not wait for
                // each other.
                Some(entry) if entry.value == value && entry.teller == Some(teller) => {
                    entry.confirm(now);
                    return Learned::Known;
                }
                Some(entry) if entry.teller.is_none() => {
                    // A static entry stays, whatever a packet claims.
                    let same = entry.value == value;
                    return if same { Learned::Known } else { Learned::Configured };
                }
                // Refuse a flood of new entries with the read lock only.
                None if table.swept == now => {
                    if let Some(refused) = table.shares.refuses(teller, limits) {
                        return refused;
                    }
                }
                _ => {}
            }
        }
        let mut table = self.write();
        let table = &mut *table;
        let known = table.entries.get(&key).and_then(|entry| entry.teller);
        if known != Some(teller) && table.shares.refuses(teller, limits).is_some() {
            table.forget_old(now, limits);
            if let Some(refused) = table.shares.refuses(teller, limits) {
                return refused;
            }
        }
        match table.entries.entry(key) {
            hash_map::Entry::Vacant(vacant) => {
                let seen = AtomicU32::new(now);
                vacant.insert(Entry { value, teller: Some(teller), seen });
                table.shares.add(teller);
                Learned::New
            }
            hash_map::Entry::Occupied(mut occupied) => {
                let entry = occupied.get_mut();
                // Another thread may have replaced it by a static entry.
                let Some(before) = entry.teller else { return Learned::Configured };
                table.shares.remove(before);
                table.shares.add(teller);
                let moved = entry.value != value;
                (entry.value, entry.teller) = (value, Some(teller));
                entry.confirm(now);
                if moved { Learned::Moved } else { Learned::Known }
            }
        }
    }

    /// Returns the number of static entries, and of learned ones. Expired entries are included
    /// until their room is needed.
    pub fn count(&self) -> (usize, usize) {
        let table = self.read();
        let learned = table.shares.learned();
        (table.entries.len() - learned, learned)
    }

    // After a panic with the lock held, which would be a defect, each entry of the table is still
    // valid. So ignore the poisoning.
    fn read(&self) -> RwLockReadGuard<'_, Entries<K, V>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entries<K, V>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash, V: Copy + PartialEq> Entries<K, V> {
    /// Removes expired entries, at most once per second: a flood of addresses must not cause a
    /// search of the whole table for each packet.
    fn forget_old(&mut self, now: u32, limits: &Limits) {
        if self.swept == now {
            return;
        }
        self.swept = now;
        self.entries.retain(|_, entry| entry.teller.is_none() || !entry.is_old(now, limits));
        self.shares.recount(self.entries.values().filter_map(|entry| entry.teller), now);
    }
}

impl<V> Entry<V> {
    fn is_old(&self, now: u32, limits: &Limits) -> bool {
        now.saturating_sub(self.seen.load(Ordering::Relaxed)) > limits.ageing
    }

    fn confirm(&self, now: u32) {
        confirm(&self.seen, now);
    }
}

/// Records the second. Writes only if it changed, because all threads share the cache line.
pub(super) fn confirm(seen: &AtomicU32, now: u32) {
    if seen.load(Ordering::Relaxed) != now {
        seen.store(now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { ageing: 300, entries: 10, share: 4, moves: 2 };

    fn remote(last: u8) -> Place {
        Place::Remote([10, 0, 0, last].into())
    }

    #[test]
    fn no_end_fills_the_share_of_another() {
        let table = Table::new([(200, 0)]);
        for key in 0..100 {
            let learned = table.learn(key, 1, remote(1), 10, &LIMITS);
            assert_eq!(learned, if key < 4 { Learned::New } else { Learned::Quota });
        }
        assert_eq!(table.learn(100, 1, remote(2), 10, &LIMITS), Learned::New);
        // It does not take over entries of other remotes beyond its share either.
        assert_eq!(table.learn(100, 9, remote(1), 10, &LIMITS), Learned::Quota);
        assert_eq!(table.find(100, 10, &LIMITS), Some((1, false)));
        assert_eq!(table.learn(200, 9, remote(2), 10, &LIMITS), Learned::Configured);
        assert_eq!(table.count(), (1, 5));
        // Expired entries make room.
        assert_eq!(table.learn(50, 1, remote(1), 311, &LIMITS), Learned::New);
        assert_eq!(table.count(), (1, 1));
    }

    #[test]
    fn the_last_announcement_wins_and_can_be_forgotten() {
        let table = Table::new([]);
        table.learn(1, 1, remote(1), 0, &LIMITS);
        assert_eq!(table.learn(1, 2, remote(2), 0, &LIMITS), Learned::Moved);
        assert_eq!(table.learn(1, 2, remote(1), 1, &LIMITS), Learned::Known);
        table.configure([], |place| place == remote(1));
        assert_eq!(table.count(), (0, 1));
        table.forget(1);
        assert_eq!(table.count(), (0, 0));
        assert_eq!(table.shares_of(remote(1)), 0);
    }

    impl<K: Copy + Eq + Hash, V: Copy + PartialEq> Table<K, V> {
        fn shares_of(&self, place: Place) -> usize {
            self.read().shares.learned_of(place)
        }
    }
}
