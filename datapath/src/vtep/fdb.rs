//! Which hardware address is where: entries as configured, and learned ones
//! with an age, a bound on their number, and a bound on how often one may move.
//!
//! Everything learned comes from packets, so from anyone: the table never grows
//! past its bound, a configured entry is never changed by a packet, and an
//! address that is claimed from two places does not go back and forth.

use std::collections::HashMap;
use std::collections::hash_map;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use packet::ethernet::MacAddr;

/// Seconds over which moves are counted.
pub const MOVE_WINDOW: u32 = 60;

/// Where an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Behind the TAP.
    Local,
    /// Behind that remote end.
    Remote(IpAddr),
}

/// Bounds of the learned entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Seconds after which an entry that no packet has confirmed is forgotten.
    pub ageing: u32,
    /// Most entries.
    pub entries: usize,
    /// Most moves of an entry within [`MOVE_WINDOW`].
    pub moves: u32,
}

/// What a packet's source address has told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// Nothing new.
    Known,
    /// A new entry.
    New,
    /// The address is now at the other place.
    Moved,
    /// The table is full; the address is not entered.
    Full,
    /// The address is configured to be elsewhere; nothing was changed.
    Configured,
    /// The address has moved too often; nothing was changed.
    TooOften,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    configured: bool,
    /// Second of the last packet from it.
    seen: AtomicU32,
    moves: u32,
    /// Second in which the counting of moves began.
    window: u32,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<MacAddr, Entry>,
    learned: usize,
    /// Second of the last search for entries to forget.
    swept: u32,
}

/// The table of one network. Seconds are the caller's, from any start.
#[derive(Debug)]
pub struct Fdb {
    table: RwLock<Table>,
}

impl Fdb {
    /// A table with nothing but what is configured.
    pub fn new(configured: &[(MacAddr, IpAddr)]) -> Fdb {
        let fdb = Fdb { table: RwLock::new(Table::default()) };
        fdb.configure(configured, |_| true);
        fdb
    }

    /// Replaces what is configured, and forgets what was learned from remote
    /// ends that may send no longer.
    pub fn configure(&self, configured: &[(MacAddr, IpAddr)], may_send: impl Fn(IpAddr) -> bool) {
        let mut table = self.write();
        table.entries.retain(|_, entry| match entry.place {
            _ if entry.configured => false,
            Place::Local => true,
            Place::Remote(remote) => may_send(remote),
        });
        for (mac, remote) in configured {
            let place = Place::Remote(*remote);
            let seen = AtomicU32::new(0);
            let entry = Entry { place, configured: true, seen, moves: 0, window: 0 };
            table.entries.insert(*mac, entry);
        }
        table.learned = table.entries.values().filter(|entry| !entry.configured).count();
    }

    /// Where an address is, if that is known and not too old.
    pub fn find(&self, mac: MacAddr, now: u32, limits: &Limits) -> Option<Place> {
        let table = self.read();
        let entry = table.entries.get(&mac)?;
        (entry.configured || !entry.is_old(now, limits)).then_some(entry.place)
    }

    /// Whether an address is configured to be elsewhere than at `place`.
    pub fn contradicts(&self, mac: MacAddr, place: Place) -> bool {
        self.read().entries.get(&mac).is_some_and(|e| e.configured && e.place != place)
    }

    /// Takes notice that a packet with that source address came from `place`.
    pub fn learn(&self, mac: MacAddr, place: Place, now: u32, limits: &Limits) -> Learned {
        // Nearly always nothing changes: then threads do not wait for each other.
        if let Some(entry) = self.read().entries.get(&mac)
            && entry.place == place
        {
            // Not written without need: the cache line is shared by all threads.
            if entry.seen.load(Ordering::Relaxed) != now {
                entry.seen.store(now, Ordering::Relaxed);
            }
            return Learned::Known;
        }
        let mut table = self.write();
        let table = &mut *table;
        if table.learned >= limits.entries && !table.entries.contains_key(&mac) {
            table.forget_old(now, limits);
        }
        let room = table.learned < limits.entries;
        match table.entries.entry(mac) {
            hash_map::Entry::Vacant(_) if !room => Learned::Full,
            hash_map::Entry::Vacant(vacant) => {
                let seen = AtomicU32::new(now);
                vacant.insert(Entry { place, configured: false, seen, moves: 0, window: now });
                table.learned += 1;
                Learned::New
            }
            hash_map::Entry::Occupied(mut occupied) => occupied.get_mut().claim(place, now, limits),
        }
    }

    /// Entries: configured, learned (those too old included, until their place
    /// is needed).
    pub fn count(&self) -> (usize, usize) {
        let table = self.read();
        (table.entries.len() - table.learned, table.learned)
    }

    // A panic while the lock is held, which would be a defect, leaves a table
    // that is valid entry by entry.
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Once a second at most: a flood of addresses must not make every packet
    /// search the whole table.
    fn forget_old(&mut self, now: u32, limits: &Limits) {
        if self.swept == now {
            return;
        }
        self.swept = now;
        self.entries.retain(|_, entry| entry.configured || !entry.is_old(now, limits));
        self.learned = self.entries.values().filter(|entry| !entry.configured).count();
    }
}

impl Entry {
    fn is_old(&self, now: u32, limits: &Limits) -> bool {
        now.saturating_sub(self.seen.load(Ordering::Relaxed)) > limits.ageing
    }

    /// A packet from `place`, which may be another than the entry's.
    fn claim(&mut self, place: Place, now: u32, limits: &Limits) -> Learned {
        if self.place == place {
            // Another thread was here first.
            self.seen.store(now, Ordering::Relaxed);
            return Learned::Known;
        }
        if self.configured {
            return Learned::Configured;
        }
        if now.saturating_sub(self.window) >= MOVE_WINDOW {
            (self.window, self.moves) = (now, 0);
        }
        // What is too old is nowhere, so that it does not move.
        if !self.is_old(now, limits) {
            if self.moves >= limits.moves {
                return Learned::TooOften;
            }
            self.moves += 1;
        }
        self.place = place;
        self.seen.store(now, Ordering::Relaxed);
        Learned::Moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { ageing: 300, entries: 3, moves: 2 };

    fn mac(last: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, last])
    }

    fn remote(last: u8) -> Place {
        Place::Remote(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn learned_confirmed_forgotten() {
        let fdb = Fdb::new(&[]);
        assert_eq!(fdb.find(mac(1), 0, &LIMITS), None);
        assert_eq!(fdb.learn(mac(1), remote(1), 0, &LIMITS), Learned::New);
        assert_eq!(fdb.learn(mac(1), remote(1), 300, &LIMITS), Learned::Known);
        assert_eq!(fdb.find(mac(1), 600, &LIMITS), Some(remote(1)));
        assert_eq!(fdb.find(mac(1), 601, &LIMITS), None);
    }

    #[test]
    fn the_number_of_entries_is_bounded_and_old_ones_make_room() {
        let fdb = Fdb::new(&[(mac(200), [10, 0, 0, 9].into())]);
        for n in 0..100 {
            let learned = fdb.learn(mac(n), remote(1), 10, &LIMITS);
            assert_eq!(learned, if n < 3 { Learned::New } else { Learned::Full });
        }
        assert_eq!(fdb.count(), (1, 3));
        assert_eq!(fdb.learn(mac(1), Place::Local, 300, &LIMITS), Learned::Moved);
        assert_eq!(fdb.learn(mac(50), remote(1), 311, &LIMITS), Learned::New);
        assert_eq!(fdb.count(), (1, 2), "the two of second 10 are forgotten");
    }

    #[test]
    fn an_address_moves_so_often_and_no_more() {
        let fdb = Fdb::new(&[]);
        fdb.learn(mac(1), remote(1), 100, &LIMITS);
        assert_eq!(fdb.learn(mac(1), remote(2), 100, &LIMITS), Learned::Moved);
        assert_eq!(fdb.learn(mac(1), Place::Local, 101, &LIMITS), Learned::Moved);
        assert_eq!(fdb.learn(mac(1), remote(2), 159, &LIMITS), Learned::TooOften);
        assert_eq!(fdb.find(mac(1), 159, &LIMITS), Some(Place::Local));
        assert_eq!(fdb.learn(mac(1), remote(2), 160, &LIMITS), Learned::Moved);
    }

    #[test]
    fn what_is_configured_stays() {
        let fdb = Fdb::new(&[(mac(1), [10, 0, 0, 1].into())]);
        assert_eq!(fdb.learn(mac(1), remote(1), 0, &LIMITS), Learned::Known);
        assert_eq!(fdb.learn(mac(1), remote(2), 0, &LIMITS), Learned::Configured);
        assert!(fdb.contradicts(mac(1), Place::Local) && !fdb.contradicts(mac(1), remote(1)));
        assert_eq!(fdb.find(mac(1), 1_000_000, &LIMITS), Some(remote(1)));
        fdb.learn(mac(2), remote(2), 0, &LIMITS);
        fdb.learn(mac(3), remote(3), 0, &LIMITS);
        fdb.configure(&[], |ip| ip != IpAddr::from([10, 0, 0, 2]));
        assert_eq!(fdb.count(), (0, 1));
        assert_eq!(fdb.find(mac(3), 0, &LIMITS), Some(remote(3)));
    }
}
