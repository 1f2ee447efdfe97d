//! Forwarding table: the place of each hardware address, from static and learned entries.
//!
//! A packet that claims an address for another place may be the first one after a live migration,
//! or forged. The packet alone does not show which. So the address moves at once, but its old place
//! can take it back:
//!
//! - An entry keeps the places that have claimed its address, in order. If a place that had the
//!   address before sends again, it has not moved: it gets the address back. The place that took
//!   the address cannot take it again while the other one sends ([`SILENCE`]).
//! - A new place ranks behind the one that has the address and before those that lost it. A claim
//!   lasts as long as an address is known ([`Limits::ageing`]); the claim of a place that lost it
//!   lasts for [`MEMORY`].
//! - The TAP's side gets the address whenever it sends. It loses the address only after it was
//!   silent for [`LOCAL_SILENCE`].
//! - A remote endpoint can take a limited number of addresses per minute from places that still
//!   send ([`Limits::moves`]), and have a limited number in all ([`Limits::share`]).
//! - Static entries never change.
//!
//! A genuine place that had the address first gets it back with each packet it sends. If it sends
//! at least every [`SILENCE`] seconds, it is without the address at most from an endpoint's first
//! claim to its own next packet, once per such endpoint. The table cannot know who is genuine: if
//! another place claims an address before its owner was ever heard, it keeps the address while it
//! sends. Static entries protect against that. `docs/src/design/remote-ends.md` compares these
//! rules with those of the kernel and Open vSwitch.

use std::collections::HashMap;
use std::collections::hash_map;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use packet::ethernet::MacAddr;

use super::place::Place;
use super::table::{Learned, Limits, Shares, confirm};

/// Seconds of silence after which an address can go to a place that lost it before, or that has
/// used up its moves.
pub const SILENCE: u32 = 10;
/// Seconds of silence after which an address on the TAP's side can go to a remote endpoint. A
/// virtual machine that migrates away is paused for longer, or announces itself again.
pub const LOCAL_SILENCE: u32 = 2;
/// Seconds for which a place that took an address and lost it is remembered.
pub const MEMORY: u32 = 60;
/// Maximum number of places with a claim on one address.
const CLAIMS: usize = 8;

/// A claim of a place on an address.
#[derive(Debug)]
struct Claim {
    place: Place,
    /// Second of its last packet. For the place that has the address, the entry's `seen` is
    /// current.
    seen: AtomicU32,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    configured: bool,
    /// Second of the last packet from `place`.
    seen: AtomicU32,
    /// All places with a claim, including `place`, if the address has moved recently; the first had
    /// it first. Otherwise empty.
    claims: Vec<Claim>,
}

#[derive(Debug)]
struct Entries {
    entries: HashMap<MacAddr, Entry>,
    shares: Shares,
    /// Second of the last search for expired entries.
    swept: u32,
}

/// The forwarding table of one network. The caller defines the time zero of seconds.
#[derive(Debug)]
pub struct Fdb {
    table: RwLock<Entries>,
}

/// Decision about the claim of another place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Give the address back to that place.
    Return,
    /// Move: the place that has it was silent.
    Move,
    /// The place that has it may be gone: move, unless the endpoint has used up its moves.
    Try,
    Refuse(Learned),
}

impl Fdb {
    /// Creates a table with static entries.
    pub fn new(configured: impl IntoIterator<Item = (MacAddr, Place)>) -> Fdb {
        let entries = Entries { entries: HashMap::new(), shares: Shares::default(), swept: 0 };
        let fdb = Fdb { table: RwLock::new(entries) };
        fdb.configure(configured, |_| true);
        fdb
    }

    /// Replaces the static entries, and removes learned entries whose place `keep` rejects.
    pub fn configure(
        &self,
        configured: impl IntoIterator<Item = (MacAddr, Place)>,
        keep: impl Fn(Place) -> bool,
    ) {
        let mut table = self.write();
        let table = &mut *table;
        table.entries.retain(|_, entry| !entry.configured && keep(entry.place));
        // Places that may no longer send have no claims.
        let learned = table.entries.values_mut();
        learned.for_each(|entry| entry.claims.retain(|claim| keep(claim.place)));
        for (mac, place) in configured {
            let entry = Entry { place, configured: true, seen: 0.into(), claims: Vec::new() };
            table.entries.insert(mac, entry);
        }
        table.recount();
    }

    /// Returns the place of an address, if known and not expired.
    pub fn find(&self, mac: MacAddr, now: u32, limits: &Limits) -> Option<Place> {
        let table = self.read();
        let entry = table.entries.get(&mac)?;
        (entry.configured || entry.silence(now) <= limits.ageing).then_some(entry.place)
    }

    /// Returns whether a static entry has another place for the address.
    pub fn contradicts(&self, mac: MacAddr, place: Place) -> bool {
        self.read().entries.get(&mac).is_some_and(|e| e.configured && e.place != place)
    }

    /// Learns the source address of a packet.
    pub fn learn(&self, mac: MacAddr, place: Place, now: u32, limits: &Limits) -> Learned {
        // Usually nothing changes. Then threads only share a read lock and do not wait for each
        // other, not even in a flood of refused packets.
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
                    // Expired entries were already removed in this second, so there is no room.
                    if let Some(refused) = table.shares.refuses(place, limits) {
                        return refused;
                    }
                }
                None => {}
            }
        }
        let mut table = self.write();
        let table = &mut *table;
        // A known address also needs room in the share of its new place.
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

    /// Returns the number of static entries, and of learned ones. Expired entries are included
    /// until their room is needed.
    pub fn count(&self) -> (usize, usize) {
        let table = self.read();
        let learned = table.shares.learned();
        (table.entries.len() - learned, learned)
    }

    /// Returns the remote endpoint with the most learned addresses, and their number.
    pub fn largest(&self) -> Option<(IpAddr, usize)> {
        self.read().shares.largest()
    }

    // After a panic with the lock held, which would be a defect, each entry of the table is still
    // valid. So ignore the poisoning.
    fn read(&self) -> RwLockReadGuard<'_, Entries> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entries> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Removes expired entries, at most once per second: a flood of addresses must not cause a
    /// search of the whole table for each packet.
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
    /// Returns the seconds since the last packet from its place.
    fn silence(&self, now: u32) -> u32 {
        now.saturating_sub(self.seen.load(Ordering::Relaxed))
    }

    fn rank(&self, place: Place) -> Option<usize> {
        self.claims.iter().position(|claim| claim.place == place)
    }

    /// Returns whether the claim of that rank is still valid. A claim that ranks before the place
    /// that has the address is valid as long as an address is known.
    fn is_kept(&self, rank: usize, now: u32, limits: &Limits) -> bool {
        let claim = &self.claims[rank];
        let first = self.rank(self.place).is_some_and(|current| rank <= current);
        let memory = if first { limits.ageing.max(MEMORY) } else { MEMORY };
        // The current place is kept even if silent: packets for the address need some place.
        claim.place == self.place
            || now.saturating_sub(claim.seen.load(Ordering::Relaxed)) <= memory
    }

    /// Decides about a packet from `place`, which is not where the address is. Only updates when
    /// the place was last seen.
    fn judge(&self, place: Place, now: u32, limits: &Limits) -> Verdict {
        // A static entry never moves.
        if self.configured {
            return Verdict::Refuse(Learned::Configured);
        }
        let rank = self.rank(place);
        let own = rank.filter(|rank| self.is_kept(*rank, now, limits));
        let had_it_before = own.is_some() && own < self.rank(self.place);
        if place == Place::Local {
            // A packet from the TAP proves that the address is on this side.
            return if had_it_before { Verdict::Return } else { Verdict::Move };
        }
        let silence = self.silence(now);
        if let Some(rank) = rank {
            confirm(&self.claims[rank].seen, now);
        }
        match self.place {
            // The entry has expired.
            _ if silence > limits.ageing => Verdict::Move,
            Place::Local if silence < LOCAL_SILENCE => Verdict::Refuse(Learned::Local),
            Place::Local if own.is_some() && silence < SILENCE => Verdict::Refuse(Learned::Local),
            _ if had_it_before => Verdict::Return,
            // The address has been silent at its old place, so the new claim is accepted.
            _ if silence >= SILENCE => Verdict::Move,
            // It lost the address to a place that still uses it.
            _ if own.is_some() => Verdict::Refuse(Learned::Contested),
            _ => Verdict::Try,
        }
    }

    /// Handles a packet from `place`; `refused`: its share has no room.
    fn claim(
        &mut self,
        place: Place,
        now: u32,
        limits: &Limits,
        shares: &mut Shares,
        refused: Option<Learned>,
    ) -> Learned {
        if self.place == place {
            // Another thread has already moved it.
            confirm(&self.seen, now);
            return Learned::Known;
        }
        // A place that had the address before had the room for it. The TAP's side always gets its
        // own addresses.
        let refused = refused.filter(|_| place != Place::Local);
        let learned = match (self.judge(place, now, limits), refused) {
            // The claim is refused: the entry keeps its place, and the packet is counted.
            (Verdict::Refuse(refused), _) => return refused,
            (Verdict::Return, _) => Learned::Returned,
            // There is no room for another entry at the new place.
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

    /// Records the claims of the place that has the address and of the one that gets it.
    fn note(&mut self, place: Place, now: u32, limits: &Limits) {
        let kept: Vec<bool> =
            (0..self.claims.len()).map(|rank| self.is_kept(rank, now, limits)).collect();
        let mut kept = kept.into_iter();
        self.claims.retain(|_| kept.next().unwrap_or(false));
        let seen = self.seen.load(Ordering::Relaxed);
        match self.rank(self.place) {
            Some(rank) => self.claims[rank].seen.store(seen, Ordering::Relaxed),
            // An expired entry gives no claim.
            None if self.silence(now) > limits.ageing => {}
            None => self.claims.insert(0, Claim { place: self.place, seen: seen.into() }),
        }
        let current = self.rank(self.place);
        let behind = current.map_or(0, |current| current + 1);
        let claim = Claim { place, seen: now.into() };
        match self.rank(place) {
            // It had the address first: the place that took it stays behind it.
            Some(own) if own < behind => self.claims[own] = claim,
            // It waited until the other was silent: rank it before all that lost the address.
            Some(own) => {
                self.claims.remove(own);
                self.claims.insert(behind, claim);
            }
            None => {
                // The list is full: drop the weakest claim, which is the last.
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
