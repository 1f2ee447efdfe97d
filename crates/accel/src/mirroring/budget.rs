//! Budgets of forwarding changes.
//!
//! A tenant that sends from invented addresses makes its bridge learn each of them, and the kernel
//! notify each change. Following one costs system calls, so each port has a budget. Beyond it, new
//! addresses behind the port take the slow path, and a changed address leaves the maps without a
//! query. Other ports are not affected. When the budget is full again, everything is read once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::model::DeviceId;

/// Changes per second that a port may cause for long.
const RATE: u32 = 50;
/// Changes that it may cause at once. Several ports together stay below the number of changes that
/// cause everything to be read again.
const BURST: u32 = 100;
/// Time for one change.
const EACH: Duration = Duration::from_nanos(1_000_000_000 / RATE as u64);
/// Ports with a budget of their own. All others share one.
const MOST: usize = 4096;

/// The budget of a port.
#[derive(Debug, Clone, Copy)]
struct Budget {
    left: u32,
    /// Time up to which `left` was refilled.
    filled_at: Instant,
    /// Changes were refused, and the port's addresses were not read again since.
    is_spent: bool,
}

impl Budget {
    fn new(now: Instant) -> Budget {
        Budget { left: BURST, filled_at: now, is_spent: false }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled_at);
        let gained = u32::try_from(passed.as_nanos() / EACH.as_nanos()).unwrap_or(BURST);
        if gained >= BURST - self.left {
            (self.left, self.filled_at) = (BURST, now);
        } else {
            self.left += gained;
            self.filled_at += EACH * gained;
        }
    }
}

/// The budgets of all ports.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    ports: BTreeMap<DeviceId, Budget>,
    /// Changes beyond the budgets.
    refused: u64,
}

impl Budgets {
    /// Whether a port may cause another change. A port that has spent its budget gets none until
    /// the budget is full again, so the changes that it continues to cause delay that.
    pub(crate) fn admits(&mut self, port: DeviceId, now: Instant) -> bool {
        let is_full = self.ports.len() >= MOST && !self.ports.contains_key(&port);
        // Interface indices begin at 1.
        let shared = DeviceId { netns: u16::MAX, index: 0 };
        let port = if is_full { shared } else { port };
        let budget = self.ports.entry(port).or_insert_with(|| Budget::new(now));
        budget.refill(now);
        let is_admitted = budget.left > 0 && !budget.is_spent;
        budget.left = budget.left.saturating_sub(1);
        if !is_admitted {
            budget.is_spent = true;
            self.refused += 1;
        }
        is_admitted
    }

    /// Whether a port has spent its budget.
    pub(crate) fn is_spent(&self, port: DeviceId) -> bool {
        self.ports.get(&port).is_some_and(|budget| budget.is_spent)
    }

    /// Whether budgets that were spent are full again since the last call. Everything must be read
    /// again then.
    pub(crate) fn have_recovered(&mut self, now: Instant) -> bool {
        let mut any = false;
        self.ports.retain(|_, budget| {
            budget.refill(now);
            let is_full = budget.left == BURST;
            any |= is_full && budget.is_spent;
            // A full budget is the same as none.
            !is_full
        });
        any
    }

    /// Number of changes beyond the budgets.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Number of ports that have spent their budget.
    pub(crate) fn spent(&self) -> usize {
        self.ports.values().filter(|budget| budget.is_spent).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(index: u32) -> DeviceId {
        DeviceId { netns: 0, index }
    }

    /// Changes of a port at a rate for some time from `from` on. Returns how many were admitted.
    fn cause(budgets: &mut Budgets, port: DeviceId, from: Instant, rate: u32, seconds: u32) -> u32 {
        let each = Duration::from_secs(1) / rate;
        let admitted = (0..rate * seconds).filter(|n| budgets.admits(port, from + each * *n));
        admitted.count().try_into().unwrap()
    }

    #[test]
    fn a_port_that_invents_addresses_spends_its_own_budget_only() {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        let admitted = cause(&mut budgets, port(1), start, 20_000, 10);
        assert!((BURST..BURST + 20).contains(&admitted), "{admitted}");
        assert_eq!(budgets.refused(), u64::from(200_000 - admitted));
        assert!(budgets.is_spent(port(1)) && !budgets.is_spent(port(2)));
        let end = start + Duration::from_secs(10);
        assert_eq!(cause(&mut budgets, port(2), end, RATE, 60), RATE * 60);
        assert!(!budgets.is_spent(port(2)));
    }

    #[test]
    fn a_spent_budget_recovers_once_it_is_full() {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        cause(&mut budgets, port(1), start, 20_000, 1);
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert!(!budgets.have_recovered(at(2000)));
        assert_eq!(budgets.spent(), 1);
        assert!(!budgets.admits(port(1), at(2000)));
        assert!(!budgets.have_recovered(at(2900)));
        assert!(budgets.have_recovered(at(4000)), "{budgets:?}");
        assert!(!budgets.have_recovered(at(4000)));
        assert!(budgets.ports.is_empty() && budgets.admits(port(1), at(4000)));
    }

    #[test]
    fn changes_while_the_budget_is_spent_delay_its_recovery() {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        cause(&mut budgets, port(1), start, 20_000, 1);
        let from = start + Duration::from_secs(1);
        assert_eq!(cause(&mut budgets, port(1), from, 2 * RATE, 60), 0);
        assert!(!budgets.have_recovered(from + Duration::from_secs(60)));
    }

    #[test]
    fn more_ports_than_budgets_share_one() {
        let (mut budgets, now) = (Budgets::default(), Instant::now());
        let most = u32::try_from(MOST).unwrap();
        assert!((1..=most).all(|index| budgets.admits(port(index), now)));
        let admitted = (0..2 * BURST).filter(|n| budgets.admits(port(most + 1 + n), now)).count();
        assert_eq!(admitted as u32, BURST);
        assert_eq!(budgets.ports.len(), MOST + 1);
    }
}
