//! Budgets of forwarding changes.
//!
//! A tenant that sends from invented addresses makes its bridge learn each of them, and the kernel
//! notify each change. Following one costs system calls, so each port has a budget, and all ports
//! together have another. Beyond either, new addresses behind the port take the slow path, and a
//! changed address leaves the maps without a query. Other ports are not affected. When a port's
//! budget is full again, the next full read takes up its addresses. Budgets cause such a read
//! themselves, but at most one in [`REST`] for all ports, because every packet takes the slow path
//! meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::model::DeviceId;

/// A budget's size.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// Changes at once.
    burst: u32,
    /// Time in which the budget grows by one change.
    each: Duration,
}

/// Changes that a port may cause: 50 a second for long.
const PORT: Limit = Limit { burst: 100, each: Duration::from_millis(20) };
/// Changes that all ports may cause together: 1000 a second for long.
const ALL: Limit = Limit { burst: 200, each: Duration::from_millis(1) };
/// Changes that all ports may cause at once.
pub(crate) const MOST_AT_ONCE: usize = ALL.burst as usize;
/// Minimum time between two full reads that budgets cause.
const REST: Duration = Duration::from_secs(10);
/// Ports with a budget of their own. All others share one.
const MOST: usize = 4096;

/// The unspent part of a budget.
#[derive(Debug, Clone, Copy)]
struct Budget {
    limit: Limit,
    left: u32,
    /// Time up to which `left` was refilled.
    filled_at: Instant,
}

impl Budget {
    fn new(limit: Limit, now: Instant) -> Budget {
        Budget { limit, left: limit.burst, filled_at: now }
    }

    fn refill(&mut self, now: Instant) {
        let Limit { burst, each } = self.limit;
        let passed = now.saturating_duration_since(self.filled_at);
        let gained = u32::try_from(passed.as_nanos() / each.as_nanos()).unwrap_or(burst);
        if gained >= burst - self.left {
            (self.left, self.filled_at) = (burst, now);
        } else {
            self.left += gained;
            self.filled_at += each * gained;
        }
    }

    fn is_full(&self) -> bool {
        self.left == self.limit.burst
    }
}

/// A port that has caused changes.
#[derive(Debug, Clone, Copy)]
struct Port {
    budget: Budget,
    /// Changes were refused, and the port's addresses were not read again since.
    is_spent: bool,
}

/// The budgets of all ports.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    ports: BTreeMap<DeviceId, Port>,
    /// The budget that all ports share. `None`: full.
    all: Option<Budget>,
    /// Time of the last full read that budgets have caused.
    read_at: Option<Instant>,
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
        let new = || Port { budget: Budget::new(PORT, now), is_spent: false };
        let Port { budget, is_spent } = self.ports.entry(port).or_insert_with(new);
        let all = self.all.get_or_insert_with(|| Budget::new(ALL, now));
        budget.refill(now);
        all.refill(now);
        let is_admitted = !*is_spent && budget.left > 0 && all.left > 0;
        budget.left = budget.left.saturating_sub(1);
        if is_admitted {
            all.left -= 1;
        } else {
            *is_spent = true;
            self.refused += 1;
        }
        is_admitted
    }

    /// Whether a port has spent its budget.
    pub(crate) fn is_spent(&self, port: DeviceId) -> bool {
        self.ports.get(&port).is_some_and(|port| port.is_spent)
    }

    /// Whether everything must be read again, because budgets that were spent are full.
    pub(crate) fn want_read(&mut self, now: Instant) -> bool {
        let mut any = false;
        self.ports.retain(|_, Port { budget, is_spent }| {
            budget.refill(now);
            any |= budget.is_full() && *is_spent;
            // A full budget is the same as none.
            !budget.is_full() || *is_spent
        });
        let rests = |at: Instant| now.saturating_duration_since(at) < REST;
        let wanted = any && !self.read_at.is_some_and(rests);
        if wanted {
            self.read_at = Some(now);
        }
        wanted
    }

    /// Takes note of a full read, whatever its cause: budgets that are full are no longer spent.
    pub(crate) fn recover(&mut self, now: Instant) {
        self.ports.retain(|_, Port { budget, .. }| {
            budget.refill(now);
            !budget.is_full()
        });
    }

    /// Number of changes beyond the budgets.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Number of ports that have spent their budget.
    pub(crate) fn spent(&self) -> usize {
        self.ports.values().filter(|port| port.is_spent).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(index: u32) -> DeviceId {
        DeviceId { netns: 0, index }
    }

    /// Changes of a port a second, for long.
    const RATE: u32 = 50;

    /// Changes of a port at a rate for some time from `from` on. Returns how many were admitted.
    fn cause(budgets: &mut Budgets, port: DeviceId, from: Instant, rate: u32, seconds: u32) -> u32 {
        let each = Duration::from_secs(1) / rate;
        let admitted = (0..rate * seconds).filter(|n| budgets.admits(port, from + each * *n));
        admitted.count().try_into().unwrap()
    }

    /// Whether the budgets cause a full read, which then takes place.
    fn cause_read(budgets: &mut Budgets, now: Instant) -> bool {
        let is_caused = budgets.want_read(now);
        if is_caused {
            budgets.recover(now);
        }
        is_caused
    }

    #[test]
    fn a_port_that_invents_addresses_spends_its_own_budget_only() {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        let admitted = cause(&mut budgets, port(1), start, 20_000, 10);
        assert!((PORT.burst..PORT.burst + 20).contains(&admitted), "{admitted}");
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
        assert!(!cause_read(&mut budgets, at(2000)));
        assert_eq!(budgets.spent(), 1);
        assert!(!budgets.admits(port(1), at(2000)));
        assert!(!cause_read(&mut budgets, at(2900)));
        assert!(cause_read(&mut budgets, at(4000)), "{budgets:?}");
        assert!(!cause_read(&mut budgets, at(4000)));
        assert!(budgets.ports.is_empty() && budgets.admits(port(1), at(4000)));
    }

    #[test]
    fn changes_while_the_budget_is_spent_delay_its_recovery() {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        cause(&mut budgets, port(1), start, 20_000, 1);
        let from = start + Duration::from_secs(1);
        assert_eq!(cause(&mut budgets, port(1), from, 2 * RATE, 60), 0);
        assert!(!cause_read(&mut budgets, from + Duration::from_secs(60)));
    }

    #[test]
    fn tenants_that_pause_cause_one_read_in_ten_seconds() {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        let mut reads = 0;
        // Each port invents addresses, pauses until its budget is full, and begins again.
        for tick in 0..60_000 / 20 {
            let now = start + Duration::from_millis(20) * tick;
            for index in 1..=8 {
                if (tick + 10 * index) % 120 == 0 {
                    for _ in 0..2 * PORT.burst {
                        budgets.admits(port(index), now);
                    }
                }
            }
            reads += u32::from(cause_read(&mut budgets, now));
        }
        assert!((4..=6).contains(&reads), "{reads}");
    }

    #[test]
    fn a_read_for_another_cause_takes_up_full_budgets() {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        cause(&mut budgets, port(1), start, 20_000, 1);
        budgets.recover(start + Duration::from_secs(1));
        assert!(budgets.is_spent(port(1)));
        budgets.recover(start + Duration::from_secs(4));
        assert!(!budgets.is_spent(port(1)));
        assert!(!cause_read(&mut budgets, start + Duration::from_secs(4)));
    }

    #[test]
    fn ports_within_their_budgets_stay_below_the_number_that_forces_a_read() {
        let (mut budgets, now) = (Budgets::default(), Instant::now());
        let admitted = |budgets: &mut Budgets, index, now| {
            (0..PORT.burst).filter(|_| budgets.admits(port(index), now)).count()
        };
        let all: usize = (1..=3).map(|index| admitted(&mut budgets, index, now)).sum();
        assert_eq!(all, MOST_AT_ONCE);
        // The third port came last, and its addresses are read soon.
        assert!(!budgets.is_spent(port(1)) && budgets.is_spent(port(3)));
        assert!(cause_read(&mut budgets, now + Duration::from_secs(3)));
        // Changes that were refused cost the others nothing.
        let later = now + Duration::from_secs(10);
        cause(&mut budgets, port(1), later - Duration::from_secs(5), 20_000, 5);
        assert_eq!(admitted(&mut budgets, 2, later), PORT.burst as usize);
    }

    #[test]
    fn more_ports_than_budgets_share_one() {
        let (mut budgets, now) = (Budgets::default(), Instant::now());
        let most = u32::try_from(MOST).unwrap();
        assert!((1..=most).all(|index| {
            // This test is about the ports' own budgets.
            budgets.all = None;
            budgets.admits(port(index), now)
        }));
        let more = (1..=2 * PORT.burst).map(|n| port(most + n));
        budgets.all = None;
        let admitted = more.filter(|port| budgets.admits(*port, now)).count();
        assert_eq!(admitted as u32, PORT.burst);
        assert_eq!(budgets.ports.len(), MOST + 1);
    }
}
