//! Which hardware address is where: entries as configured, and learned ones.
//!
//! A packet that claims an address for another place may be the first after a live
//! migration, or a lie; nothing in it tells. So the move is made at once, but it is
//! the old place's to undo:
//!
//! - An entry keeps the places that have claimed its address, in their order. A place
//!   that had it before and sends again has not moved: it gets the address back, and
//!   who took it gets it no more while the other sends ([`SILENCE`]).
//! - A new place comes behind the one that has the address and before those that lost
//!   it. A claim lasts as long as an address is known ([`Limits::ageing`]), that of a
//!   place which lost it for [`MEMORY`].
//! - The TAP's side has the address whenever it sends, and is not moved away from
//!   before it has been silent for [`LOCAL_SILENCE`].
//! - A remote end takes so many addresses a minute from places that still send
//!   ([`Limits::moves`]), and has so many in all ([`Limits::share`]).
//! - What is configured is never changed.
//!
//! An honest place that had the address first has it again at each packet of its own. If
//! it sends at least every [`SILENCE`] seconds, it is without the address at the most
//! from an end's first claim to its own next packet, once for each such end. Who came first cannot be known: an address that somebody
//! else has claimed before its owner was ever heard is that one's as long as it sends.
//! Against that there are configured entries. `docs/src/design/remote-ends.md`
//! compares these rules with the kernel's and Open vSwitch's.

use std::collections::HashMap;
use std::collections::hash_map;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use packet::ethernet::MacAddr;

use super::place::Place;
use super::table::{Learned, Limits, Shares, confirm};

/// Seconds for which a place must have been silent before its address goes to one that
/// has lost it before, or that takes too many.
pub const SILENCE: u32 = 10;
/// Seconds for which the TAP's side must have been silent before its address goes to a
/// remote end. A virtual machine that leaves is paused longer, or announces itself again.
pub const LOCAL_SILENCE: u32 = 2;
/// Seconds for which a place that took an address and lost it is remembered.
pub const MEMORY: u32 = 60;
/// Most places that have a claim on one address.
const CLAIMS: usize = 8;

/// A place with a claim on an address.
#[derive(Debug)]
struct Claim {
    place: Place,
    /// Second of its last packet; of the place that has the address, the entry knows it.
    seen: AtomicU32,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    configured: bool,
    /// Second of the last packet from `place`.
    seen: AtomicU32,
    /// Where the address has moved of late: all places with a claim, `place` among them,
    /// the first that had it first. Else empty.
    claims: Vec<Claim>,
}

#[derive(Debug)]
struct Entries {
    entries: HashMap<MacAddr, Entry>,
    shares: Shares,
    /// Second of the last search for entries to forget.
    swept: u32,
}

/// The forwarding table of one network. Seconds are the caller's, from any start.
#[derive(Debug)]
pub struct Fdb {
    table: RwLock<Entries>,
}

/// What a claim of another place comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Back to that place.
    Return,
    /// The place that has it has been silent.
    Move,
    /// The place that has it may be gone: moved, if the end has not moved too many.
    Try,
    Refuse(Learned),
}

impl Fdb {
    /// A table with nothing but what is configured.
    pub fn new(configured: impl IntoIterator<Item = (MacAddr, Place)>) -> Fdb {
        let entries = Entries { entries: HashMap::new(), shares: Shares::default(), swept: 0 };
        let fdb = Fdb { table: RwLock::new(entries) };
        fdb.configure(configured, |_| true);
        fdb
    }

    /// Replaces what is configured, and forgets of what was learned all but what is
    /// at places that are to be kept.
    pub fn configure(
        &self,
        configured: impl IntoIterator<Item = (MacAddr, Place)>,
        keep: impl Fn(Place) -> bool,
    ) {
        let mut table = self.write();
        let table = &mut *table;
        table.entries.retain(|_, entry| !entry.configured && keep(entry.place));
        // Who may send no more claims nothing.
        let learned = table.entries.values_mut();
        learned.for_each(|entry| entry.claims.retain(|claim| keep(claim.place)));
        for (mac, place) in configured {
            let entry = Entry { place, configured: true, seen: 0.into(), claims: Vec::new() };
            table.entries.insert(mac, entry);
        }
        table.recount();
    }

    /// Where an address is, if that is known and not too old.
    pub fn find(&self, mac: MacAddr, now: u32, limits: &Limits) -> Option<Place> {
        let table = self.read();
        let entry = table.entries.get(&mac)?;
        (entry.configured || entry.silence(now) <= limits.ageing).then_some(entry.place)
    }

    /// Whether another place is configured.
    pub fn contradicts(&self, mac: MacAddr, place: Place) -> bool {
        self.read().entries.get(&mac).is_some_and(|e| e.configured && e.place != place)
    }

    /// Takes notice of a packet's source address.
    pub fn learn(&self, mac: MacAddr, place: Place, now: u32, limits: &Limits) -> Learned {
        // Nearly always nothing changes: then threads do not wait for each other, nor
        // for a flood of what is refused.
        {
            let table = self.read();
            match table.entries.get(&mac) {
                Some(entry) if entry.place == place => {
                    confirm(&entry.seen, now);
                    return Learned::Known;
                }
                Some(entry) => {
                    if let Verdict::Refuse(refused) = entry.judge(place, now, limits) {
                        return refused;
                    }
                }
                None if table.swept == now => {
                    if let Some(refused) = table.shares.refuses(place, limits) {
                        return refused;
                    }
                }
                None => {}
            }
        }
        let mut table = self.write();
        let table = &mut *table;
        // One that is known already needs room in its new place's share, too.
        if table.shares.refuses(place, limits).is_some() {
            table.forget_old(now, limits);
        }
        let refused = table.shares.refuses(place, limits);
        let Entries { entries, shares, .. } = table;
        match entries.entry(mac) {
            hash_map::Entry::Vacant(vacant) => {
                if let Some(refused) = refused {
                    return refused;
                }
                let entry =
                    Entry { place, configured: false, seen: now.into(), claims: Vec::new() };
                vacant.insert(entry);
                shares.add(place);
                Learned::New
            }
            hash_map::Entry::Occupied(mut occupied) => {
                occupied.get_mut().claim(place, now, limits, shares, refused)
            }
        }
    }

    /// Entries: configured, learned (those too old included, until their room is
    /// needed).
    pub fn count(&self) -> (usize, usize) {
        let table = self.read();
        let learned = table.shares.learned();
        (table.entries.len() - learned, learned)
    }

    /// The remote end with the most learned addresses, and their number.
    pub fn largest(&self) -> Option<(IpAddr, usize)> {
        self.read().shares.largest()
    }

    // A panic while the lock is held, which would be a defect, leaves a table
    // that is valid entry by entry.
    fn read(&self) -> RwLockReadGuard<'_, Entries> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entries> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Once a second at most: a flood of addresses must not make every packet
    /// search the whole table.
    fn forget_old(&mut self, now: u32, limits: &Limits) {
        if self.swept == now {
            return;
        }
        self.swept = now;
        self.entries.retain(|_, entry| entry.configured || entry.silence(now) <= limits.ageing);
        self.recount();
    }

    fn recount(&mut self) {
        let learned = self.entries.values().filter(|entry| !entry.configured);
        self.shares.recount(learned.map(|entry| entry.place), self.swept);
    }
}

impl Entry {
    /// Seconds since the last packet from where it is.
    fn silence(&self, now: u32) -> u32 {
        now.saturating_sub(self.seen.load(Ordering::Relaxed))
    }

    fn rank(&self, place: Place) -> Option<usize> {
        self.claims.iter().position(|claim| claim.place == place)
    }

    /// Whether the claim of that rank is still kept up. One before the place that has
    /// the address is kept as long as an address is known.
    fn is_kept(&self, rank: usize, now: u32, limits: &Limits) -> bool {
        let claim = &self.claims[rank];
        let first = self.rank(self.place).is_some_and(|current| rank <= current);
        let memory = if first { limits.ageing.max(MEMORY) } else { MEMORY };
        claim.place == self.place
            || now.saturating_sub(claim.seen.load(Ordering::Relaxed)) <= memory
    }

    /// What a packet from `place`, which is not where the address is, comes to. Changes
    /// nothing but when the place was seen.
    fn judge(&self, place: Place, now: u32, limits: &Limits) -> Verdict {
        if self.configured {
            return Verdict::Refuse(Learned::Configured);
        }
        let rank = self.rank(place);
        let own = rank.filter(|rank| self.is_kept(*rank, now, limits));
        let had_it_before = own.is_some() && own < self.rank(self.place);
        if place == Place::Local {
            // What comes from the TAP is there.
            return if had_it_before { Verdict::Return } else { Verdict::Move };
        }
        let silence = self.silence(now);
        if let Some(rank) = rank {
            confirm(&self.claims[rank].seen, now);
        }
        match self.place {
            // Too old to be anywhere.
            _ if silence > limits.ageing => Verdict::Move,
            Place::Local if silence < LOCAL_SILENCE => Verdict::Refuse(Learned::Local),
            Place::Local if own.is_some() && silence < SILENCE => Verdict::Refuse(Learned::Local),
            _ if had_it_before => Verdict::Return,
            _ if silence >= SILENCE => Verdict::Move,
            _ if own.is_some() => Verdict::Refuse(Learned::Contested),
            _ => Verdict::Try,
        }
    }

    /// A packet came from `place`, whose share has no room if `refused`.
    fn claim(
        &mut self,
        place: Place,
        now: u32,
        limits: &Limits,
        shares: &mut Shares,
        refused: Option<Learned>,
    ) -> Learned {
        if self.place == place {
            // Another thread was here first.
            confirm(&self.seen, now);
            return Learned::Known;
        }
        // Where the address has moved from it had the room; and nothing keeps the TAP's
        // side from its own.
        let refused = refused.filter(|_| place != Place::Local);
        let learned = match (self.judge(place, now, limits), refused) {
            (Verdict::Refuse(refused), _) => return refused,
            (Verdict::Return, _) => Learned::Returned,
            (_, Some(refused)) => return refused,
            (Verdict::Try, None) if !shares.take_move(place, now, limits) => {
                return if self.place == Place::Local {
                    Learned::Local
                } else {
                    Learned::Contested
                };
            }
            (Verdict::Try | Verdict::Move, None) => Learned::Moved,
        };
        self.note(place, now, limits);
        shares.remove(self.place);
        shares.add(place);
        self.place = place;
        self.seen.store(now, Ordering::Relaxed);
        learned
    }

    /// Enters the claims of the place that has the address and of the one that gets it.
    fn note(&mut self, place: Place, now: u32, limits: &Limits) {
        let kept: Vec<bool> =
            (0..self.claims.len()).map(|rank| self.is_kept(rank, now, limits)).collect();
        let mut kept = kept.into_iter();
        self.claims.retain(|_| kept.next().unwrap_or(false));
        let seen = self.seen.load(Ordering::Relaxed);
        match self.rank(self.place) {
            Some(rank) => self.claims[rank].seen.store(seen, Ordering::Relaxed),
            // What is too old to be anywhere has no claim either.
            None if self.silence(now) > limits.ageing => {}
            None => self.claims.insert(0, Claim { place: self.place, seen: seen.into() }),
        }
        let current = self.rank(self.place);
        let behind = current.map_or(0, |current| current + 1);
        let claim = Claim { place, seen: now.into() };
        match self.rank(place) {
            // It had it first: who took it stays behind it.
            Some(own) if own < behind => self.claims[own] = claim,
            // It has waited for the other's silence: before all that lost it, too.
            Some(own) => {
                self.claims.remove(own);
                self.claims.insert(behind, claim);
            }
            None => {
                // The last one has the least of a claim; of these the first has the most.
                if self.claims.len() >= CLAIMS {
                    self.claims.pop();
                }
                let at = if place == Place::Local { 0 } else { behind };
                self.claims.insert(at.min(self.claims.len()), claim);
            }
        }
    }
}

#[cfg(test)]
mod tests;
