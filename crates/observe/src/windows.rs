//! Decides when packets are observed: always while that is cheap, otherwise in short windows, so
//! that the rest of the time costs nothing.
//!
//! Observation costs CPU time and has a budget. CPU time spent is a debt; while there is a debt, no
//! window is opened. A window has two phases. In the first, new packets are selected until the debt
//! is too large; on an idle machine this phase does not end. In the second, the selected packets
//! are followed to their ends, so that no packet seems lost when the window closes.
//! window ends.

use std::time::Duration;

/// Shortest time for which a window selects packets, and interval at which the debt is checked.
const CHOOSING: Duration = Duration::from_millis(20);
/// A window stays open while its debt can be paid back within this time.
const TOLERATED: Duration = Duration::from_millis(500);
/// How long selected packets are followed after the selection ends.
pub(crate) const FOLLOWING: Duration = Duration::from_millis(50);
/// After this time without a window, one is opened despite any debt: an interval without data says
/// nothing.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Debt that takes longer than this to pay back is cancelled.
const LONGEST_DEBT: Duration = Duration::from_secs(60);
/// Initial sample rate, one packet in N, while the cost per packet is unknown.
const CAREFUL: u32 = 64;
/// Lowest sample rate, one packet in N.
const RAREST: u32 = 1 << 20;

/// The action that the caller has to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Attach the programs and select one packet in N.
    Open(u32),
    /// Change the rate in the open window to one packet in N.
    Sample(u32),
    /// Select no more packets.
    Settle,
    /// Detach the programs.
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Closed,
    Choosing,
    Following,
}

/// Totals since the start: CPU time spent, and events seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Spent {
    /// CPU time of this program and of its BPF programs.
    pub cpu: Duration,
    /// Events read, and runs of the BPF programs.
    pub events: u64,
    pub runs: u64,
}

/// Opens and closes windows. All times count from the same arbitrary moment.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Share of a CPU that may be spent.
    aim: f64,
    /// Highest sample rate, one packet in N.
    most: u32,
    sample: u32,
    phase: Phase,
    since: Duration,
    /// CPU time spent and not yet paid back, seconds.
    debt: f64,
    paid: Duration,
    /// Totals at the last step; `None`: there was none.
    spent: Option<Spent>,
    /// Totals when the debt was last checked in a window.
    looked: Spent,
    /// Time in which packets were selected.
    open: Duration,
}

impl Windows {
    /// Creates the controller for a budget in percent of one CPU. It aims at three quarters of the
    /// budget, because load is uneven.
    pub fn new(percent: f64, most: u32) -> Windows {
        let most = most.max(1);
        Windows {
            aim: percent / 100.0 * 0.75,
            most,
            sample: CAREFUL.max(most),
            phase: Phase::Closed,
            since: Duration::ZERO,
            debt: 0.0,
            paid: Duration::ZERO,
            spent: None,
            looked: Spent::default(),
            open: Duration::ZERO,
        }
    }

    /// Starts the selection: all programs of the window are attached.
    pub fn begun(&mut self, now: Duration) {
        self.since = now;
    }

    /// Returns the sample rate: one packet in N.
    pub fn sample(&self) -> u32 {
        self.sample
    }

    /// Returns the time in which packets were selected, since the start.
    pub fn open(&self, now: Duration) -> Duration {
        match self.phase {
            Phase::Choosing => self.open + now.saturating_sub(self.since),
            _ => self.open,
        }
    }

    /// Returns whether the programs are attached.
    pub fn is_open(&self) -> bool {
        self.phase != Phase::Closed
    }

    /// Returns what to do now. `is_under_way`: a followed packet may still be seen.
    pub fn step(&mut self, now: Duration, spent: Spent, is_under_way: bool) -> Option<Change> {
        let before = self.spent.replace(spent).unwrap_or(spent);
        let cpu = spent.cpu.saturating_sub(before.cpu).as_secs_f64();
        let paid = now.saturating_sub(self.paid).as_secs_f64() * self.aim;
        // Little credit is kept: a flood after an idle hour must not use up saved budget.
        let least = -self.aim * CHOOSING.as_secs_f64();
        // Cancel old debt, so that observation resumes soon after a heavy load.
        let most = self.aim * LONGEST_DEBT.as_secs_f64();
        self.debt = (self.debt - paid + cpu).clamp(least, most);
        self.paid = now;
        let lasted = now.saturating_sub(self.since);
        match self.phase {
            Phase::Closed => {
                // Stay closed until the budget has paid for the last window.
                if self.debt > 0.0 && lasted < LONGEST_PAUSE {
                    return None;
                }
                self.enter(Phase::Choosing, now, spent);
                Some(Change::Open(self.sample))
            }
            Phase::Choosing if lasted >= CHOOSING => {
                let is_affordable = self.debt <= self.aim * TOLERATED.as_secs_f64();
                self.adapt(is_affordable, spent);
                if is_affordable {
                    self.enter(Phase::Choosing, now, spent);
                    return Some(Change::Sample(self.sample));
                }
                // The budget is used up: select no more packets, only follow those already
                // selected.
                self.enter(Phase::Following, now, spent);
                Some(Change::Settle)
            }
            // A packet that waits for long must not keep the programs attached.
            Phase::Following if !is_under_way || lasted >= FOLLOWING => {
                self.enter(Phase::Closed, now, spent);
                Some(Change::Close)
            }
            _ => None,
        }
    }

    fn enter(&mut self, phase: Phase, now: Duration, spent: Spent) {
        self.open = self.open(now);
        self.looked = spent;
        (self.phase, self.since) = (phase, now);
    }

    /// Lowers the sample rate if events cost more than the runs of the programs, and raises it if
    /// they cost little.
    fn adapt(&mut self, is_affordable: bool, spent: Spent) {
        let events = spent.events.saturating_sub(self.looked.events);
        let runs = spent.runs.saturating_sub(self.looked.runs);
        self.sample = if !is_affordable && events.saturating_mul(16) > runs {
            self.sample.saturating_mul(2).min(RAREST)
        } else if is_affordable || events.saturating_mul(64) < runs {
            // Events are rare or affordable, so follow more packets.
            (self.sample / 2).max(self.most)
        } else {
            self.sample
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A machine on which looking takes this share of a CPU, and an event a microsecond.
    struct Machine {
        windows: Windows,
        now: Duration,
        spent: Spent,
        runs_per_ms: u64,
        is_under_way: bool,
    }

    impl Machine {
        fn new(runs_per_ms: u64) -> Machine {
            Machine {
                windows: Windows::new(2.0, 1),
                now: Duration::ZERO,
                spent: Spent::default(),
                runs_per_ms,
                is_under_way: false,
            }
        }

        /// Returns the changes within `ms` milliseconds, with their times.
        fn run(&mut self, ms: u32) -> Vec<(Duration, Change)> {
            let mut changes = Vec::new();
            for _ in 0..ms {
                let change = self.windows.step(self.now, self.spent, self.is_under_way);
                changes.extend(change.map(|change| (self.now, change)));
                self.now += MS;
                if self.windows.is_open() {
                    let events = self.runs_per_ms / u64::from(self.windows.sample());
                    self.spent.runs += self.runs_per_ms;
                    self.spent.events += events;
                    self.spent.cpu += Duration::from_nanos(self.runs_per_ms * 70 + events * 1000);
                }
            }
            changes
        }

        /// Shares of the time that were looked at and spent, of that since `before`.
        fn shares(&self, before: (Duration, Duration, Spent)) -> (f64, f64) {
            let time = (self.now - before.0).as_secs_f64();
            let open = (self.windows.open(self.now) - before.1).as_secs_f64();
            let cpu = (self.spent.cpu - before.2.cpu).as_secs_f64();
            (open / time, cpu / time)
        }

        fn mark(&self) -> (Duration, Duration, Spent) {
            (self.now, self.windows.open(self.now), self.spent)
        }
    }

    #[test]
    fn a_quiet_machine_is_looked_at_always_and_every_packet_is_followed() {
        let mut machine = Machine::new(2);
        machine.run(1000);
        let before = machine.mark();
        let changes = machine.run(1000);
        assert!(changes.iter().all(|(_, change)| *change == Change::Sample(1)), "{changes:?}");
        assert!(changes.len() >= 45, "room for more each 20 ms: {changes:?}");
        assert_eq!(machine.windows.sample(), 1);
        let (open, _) = machine.shares(before);
        assert!(open > 0.99, "{open}");
    }

    #[test]
    fn a_busy_machine_is_looked_at_within_the_budget() {
        // 18 places, 200,000 packets a second.
        let mut machine = Machine::new(3600);
        machine.run(20_000);
        let before = machine.mark();
        machine.run(60_000);
        let (open, cpu) = machine.shares(before);
        assert!((0.005..0.05).contains(&open), "{open}");
        assert!((0.0075..=0.0158).contains(&cpu), "{cpu}");
        // And some packets are followed in each window.
        assert!((8..=64).contains(&machine.windows.sample()), "{}", machine.windows.sample());
    }

    #[test]
    fn a_flood_ends_the_look_at_everything_at_once() {
        let mut machine = Machine::new(2);
        machine.run(5000);
        machine.runs_per_ms = 100_000;
        let changes = machine.run(100);
        let settled = changes.iter().find(|(_, change)| *change == Change::Settle).unwrap();
        assert!(settled.0 <= Duration::from_millis(5020), "{settled:?}");
        assert!(!machine.windows.is_open());
    }

    #[test]
    fn a_calm_time_gives_a_flood_no_credit() {
        let looked_at = |calm: u32| {
            let mut machine = Machine::new(2);
            machine.run(calm);
            machine.runs_per_ms = 1000;
            let changes = machine.run(1000);
            let settled = changes.iter().find(|(_, change)| *change == Change::Settle).unwrap();
            settled.0 - calm * MS
        };
        assert_eq!(looked_at(100_000), looked_at(1000));
    }

    #[test]
    fn fewer_packets_are_followed_where_their_events_are_dear() {
        let mut machine = Machine::new(2);
        machine.run(1000);
        assert_eq!(machine.windows.sample(), 1);
        machine.runs_per_ms = 3600;
        machine.run(60_000);
        assert!((8..=64).contains(&machine.windows.sample()), "{}", machine.windows.sample());
    }

    #[test]
    fn packets_under_way_are_waited_for_but_not_for_ever() {
        let mut machine = Machine::new(7200);
        machine.is_under_way = true;
        let changes = machine.run(100);
        let [opened, settled, closed] = changes[..] else { panic!("{changes:?}") };
        assert_eq!(
            (opened.1, settled.1, closed.1),
            (Change::Open(64), Change::Settle, Change::Close)
        );
        assert_eq!(settled.0 - opened.0, CHOOSING);
        assert_eq!(closed.0 - settled.0, FOLLOWING);
        // Packets that begin while others are followed are not looked at.
        assert_eq!(machine.windows.open(machine.now), CHOOSING);
        // The same with nothing under way.
        let mut machine = Machine::new(7200);
        let changes = machine.run(100);
        assert_eq!(changes[2].0 - changes[1].0, MS);
    }

    #[test]
    fn there_is_a_window_at_times_however_dear() {
        let mut machine = Machine::new(10_000_000);
        let opened = |machine: &mut Machine| {
            let changes = machine.run(20_000);
            changes.iter().filter(|(_, change)| matches!(change, Change::Open(_))).count()
        };
        assert_eq!(opened(&mut machine), 4);
    }

    #[test]
    fn a_heavy_load_is_not_paid_for_long_after_it_has_ended() {
        let mut machine = Machine::new(10_000_000);
        machine.run(600_000);
        machine.runs_per_ms = 2;
        machine.run(LONGEST_DEBT.as_millis() as u32 + 6000);
        let before = machine.mark();
        machine.run(1000);
        let (open, _) = machine.shares(before);
        assert!(open > 0.99, "{open}");
    }

    #[test]
    fn time_to_attach_programs_is_not_time_that_was_looked_at() {
        let mut machine = Machine::new(7200);
        machine.run(1);
        machine.windows.begun(15 * MS);
        assert_eq!(machine.windows.open(20 * MS), 5 * MS);
    }
}
