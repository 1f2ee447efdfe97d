//! Limits the log of connections that were turned away: the first few of each window are reported
//! one by one, the others as a sum. Anyone can cause a refusal, so none may cost a line.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::event::Event;
use crate::gate::Origin;

pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// Refusals of a window that are reported one by one.
pub(crate) const TOLD: u64 = 5;
/// Maximum number of origins counted at a time.
const ORIGINS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    begun: Option<Instant>,
    seen: u64,
    /// Counts by origin of refusals that were not reported. An origin with more than 1/[`ORIGINS`]
    /// of all refusals is certainly among them (Misra-Gries algorithm).
    origins: HashMap<Origin, u64>,
}

impl Refusals {
    /// Counts a refusal and returns whether to report it.
    pub fn note(&mut self, from: SocketAddr, now: Instant) -> bool {
        self.begun.get_or_insert(now);
        self.seen += 1;
        // A few lines are logged in full, so that a single failure shows its reason.
        if self.seen <= TOLD {
            return true;
        }
        let origin = Origin::of(from.ip());
        if self.origins.len() < ORIGINS || self.origins.contains_key(&origin) {
            *self.origins.entry(origin).or_default() += 1;
        } else {
            // The table is full: the algorithm decrements all counts.
            self.origins.retain(|_, count| {
                *count -= 1;
                *count > 0
            });
        }
        false
    }

    /// Returns the sum of unreported refusals once the window is over, or at the end.
    pub fn sum(&mut self, now: Instant, ends: bool) -> Option<Event> {
        let over = now.saturating_duration_since(self.begun?);
        // The rest of the window is summed up in one line.
        if over < WINDOW && !ends {
            return None;
        }
        let Refusals { seen, origins, .. } = std::mem::take(self);
        let count = seen.saturating_sub(TOLD);
        let most = origins.into_iter().max_by_key(|(_, count)| *count).map(|(origin, _)| origin);
        (count > 0).then_some(Event::MoreTurnedAway { count, over, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_a_few_lines() {
        let mut refusals = Refusals::default();
        let begun = Instant::now();
        let from = |n: u32| SocketAddr::new([10, 0, (n >> 8) as u8, n as u8].into(), 1);
        let mut reported = 0;
        for n in 0..100_000u32 {
            // One in three has the same address.
            let from = from(if n % 3 == 0 { 7 } else { n % 65_536 });
            reported += usize::from(refusals.note(from, begun));
            assert!(refusals.sum(begun + WINDOW / 2, false).is_none());
            assert!(refusals.origins.len() <= ORIGINS);
        }
        assert_eq!(reported, 5);
        let Some(Event::MoreTurnedAway { count, over, most }) = refusals.sum(begun + WINDOW, false)
        else {
            panic!("no sum");
        };
        assert_eq!((count, over), (99_995, WINDOW));
        assert_eq!(most, Some(Origin::of([10, 0, 0, 7].into())));
        // A new window reports one by one again.
        assert!(refusals.sum(begun + 2 * WINDOW, true).is_none());
        assert!(refusals.note(from(1), begun));
    }
}
