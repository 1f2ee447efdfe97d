//! What was learned from packets beside what is configured, with an age, a bound on
//! the number, and a bound on how often an entry may change: the forwarding table
//! ([`super::fdb`]) and that of neighbours ([`super::neighbour`]).
//!
//! Everything learned comes from packets, so from anyone: a table never grows past
//! its bound, and a configured entry is never changed by a packet.

use std::collections::HashMap;
use std::collections::hash_map;
use std::hash::Hash;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Seconds over which changes are counted.
pub const MOVE_WINDOW: u32 = 60;

/// Bounds of the learned entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Seconds after which an entry that no packet has confirmed is forgotten.
    pub ageing: u32,
    /// Most entries.
    pub entries: usize,
    /// Most changes of an entry within [`MOVE_WINDOW`].
    pub moves: u32,
}

/// What a packet has told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// Nothing new.
    Known,
    /// A new entry.
    New,
    /// The entry has changed: an address is at the other place.
    Moved,
    /// The table is full; nothing was entered.
    Full,
    /// It is configured otherwise; nothing was changed.
    Configured,
    /// The entry has changed too often; nothing was changed.
    TooOften,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    configured: bool,
    /// Second of the last packet that confirmed it.
    seen: AtomicU32,
    moves: u32,
    /// Second in which the counting of moves began.
    window: u32,
}

#[derive(Debug)]
struct Entries<K, V> {
    entries: HashMap<K, Entry<V>>,
    learned: usize,
    /// Second of the last search for entries to forget.
    swept: u32,
}

/// One table of one network. Seconds are the caller's, from any start.
#[derive(Debug)]
pub struct Table<K, V> {
    table: RwLock<Entries<K, V>>,
}

impl<K: Copy + Eq + Hash, V: Copy + PartialEq> Table<K, V> {
    /// A table with nothing but what is configured.
    pub fn new(configured: impl IntoIterator<Item = (K, V)>) -> Table<K, V> {
        let entries = Entries { entries: HashMap::new(), learned: 0, swept: 0 };
        let table = Table { table: RwLock::new(entries) };
        table.configure(configured, |_| true);
        table
    }

    /// Replaces what is configured, and forgets of what was learned all but what is
    /// to be kept.
    pub fn configure(
        &self,
        configured: impl IntoIterator<Item = (K, V)>,
        keep: impl Fn(&V) -> bool,
    ) {
        let mut table = self.write();
        table.entries.retain(|_, entry| !entry.configured && keep(&entry.value));
        for (key, value) in configured {
            let seen = AtomicU32::new(0);
            let entry = Entry { value, configured: true, seen, moves: 0, window: 0 };
            table.entries.insert(key, entry);
        }
        table.learned = table.entries.values().filter(|entry| !entry.configured).count();
    }

    /// What is known and not too old; whether it is configured.
    pub fn find(&self, key: K, now: u32, limits: &Limits) -> Option<(V, bool)> {
        let table = self.read();
        let entry = table.entries.get(&key)?;
        let valid = entry.configured || !entry.is_old(now, limits);
        valid.then_some((entry.value, entry.configured))
    }

    /// Whether something else than `value` is configured.
    pub fn contradicts(&self, key: K, value: V) -> bool {
        self.read().entries.get(&key).is_some_and(|e| e.configured && e.value != value)
    }

    /// Forgets what was learned.
    pub fn forget(&self, key: K) {
        // Nearly always there is nothing.
        if !self.read().entries.contains_key(&key) {
            return;
        }
        let mut table = self.write();
        if table.entries.get(&key).is_some_and(|entry| !entry.configured) {
            table.entries.remove(&key);
            table.learned -= 1;
        }
    }

    /// Takes notice of what a packet has told.
    pub fn learn(&self, key: K, value: V, now: u32, limits: &Limits) -> Learned {
        // Nearly always nothing changes: then threads do not wait for each other.
        if let Some(entry) = self.read().entries.get(&key)
            && entry.value == value
        {
            // Not written without need: the cache line is shared by all threads.
            if entry.seen.load(Ordering::Relaxed) != now {
                entry.seen.store(now, Ordering::Relaxed);
            }
            return Learned::Known;
        }
        let mut table = self.write();
        let table = &mut *table;
        if table.learned >= limits.entries && !table.entries.contains_key(&key) {
            table.forget_old(now, limits);
        }
        let room = table.learned < limits.entries;
        match table.entries.entry(key) {
            hash_map::Entry::Vacant(_) if !room => Learned::Full,
            hash_map::Entry::Vacant(vacant) => {
                let seen = AtomicU32::new(now);
                vacant.insert(Entry { value, configured: false, seen, moves: 0, window: now });
                table.learned += 1;
                Learned::New
            }
            hash_map::Entry::Occupied(mut occupied) => occupied.get_mut().claim(value, now, limits),
        }
    }

    /// Entries: configured, learned (those too old included, until their room is
    /// needed).
    pub fn count(&self) -> (usize, usize) {
        let table = self.read();
        (table.entries.len() - table.learned, table.learned)
    }

    // A panic while the lock is held, which would be a defect, leaves a table
    // that is valid entry by entry.
    fn read(&self) -> RwLockReadGuard<'_, Entries<K, V>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entries<K, V>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash, V: Copy + PartialEq> Entries<K, V> {
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

impl<V: Copy + PartialEq> Entry<V> {
    fn is_old(&self, now: u32, limits: &Limits) -> bool {
        now.saturating_sub(self.seen.load(Ordering::Relaxed)) > limits.ageing
    }

    /// A packet told `value`, which may be another than the entry's.
    fn claim(&mut self, value: V, now: u32, limits: &Limits) -> Learned {
        if self.value == value {
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
        self.value = value;
        self.seen.store(now, Ordering::Relaxed);
        Learned::Moved
    }
}
