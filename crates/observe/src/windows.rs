//! When packets are looked at: always where that is cheap, and else in short windows, so that the
//! rest of the time costs nothing.
//!
//! Looking has a price for those whose packets are seen, and a budget to pay it from. What was
//! spent is a debt; while there is one, no window is opened. A window has two parts. In the first,
//! packets begin to be followed, until the debt is too large: on a calm machine it does not end.
//! In the second, those under way are followed to their ends, so that none seems lost where a
//! window ends.

use std::time::Duration;

/// How long packets begin to be followed in a window at least, and between two looks at the debt.
const CHOOSING: Duration = Duration::from_millis(20);
/// A window goes on while the debt can be paid in so long.
const TOLERATED: Duration = Duration::from_millis(500);
/// How long those under way are followed afterwards.
pub(crate) const FOLLOWING: Duration = Duration::from_millis(50);
/// Without a window for so long one is opened, whatever the debt: an interval without any says
/// nothing.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A debt that would take longer to pay is not kept.
const LONGEST_DEBT: Duration = Duration::from_secs(60);
/// One packet in so many at the beginning, before it is known what one costs.
const CAREFUL: u32 = 64;
/// No rarer than this.
const RAREST: u32 = 1 << 20;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Packets begin to be followed: one in so many.
    Open(u32),
    /// So many from now on, in the window that is open, which has room for more.
    Sample(u32),
    /// No more packets begin to be followed.
    Settle,
    /// Nothing is looked at.
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Closed,
    Choosing,
    Following,
}

/// What was spent, and seen for it, since the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Spent {
    /// CPU time of this program, and of its programs in the kernel.
    pub cpu: Duration,
    /// Events, and what they could have been: runs of the programs.
    pub events: u64,
    pub runs: u64,
}

/// Opens and closes windows. Times are since any one moment.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Share of a CPU that may be spent.
    aim: f64,
    /// One packet in so many at least.
    most: u32,
    sample: u32,
    phase: Phase,
    since: Duration,
    /// Seconds of CPU time that were spent and not yet paid.
    debt: f64,
    paid: Duration,
    /// At the last step; `None`: there was none.
    spent: Option<Spent>,
    /// Of `spent`, when the debt was last looked at in a window.
    looked: Spent,
    /// Time in which packets began to be followed.
    open: Duration,
}

impl Windows {
    /// For a budget in percent of one CPU: three quarters of it are the aim, since what comes is
    /// not even.
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

    /// From now on packets begin to be followed: all programs of the window are attached.
    pub fn begun(&mut self, now: Duration) {
        self.since = now;
    }

    /// One packet in so many is followed, in windows.
    pub fn sample(&self) -> u32 {
        self.sample
    }

    /// Time in which packets began to be followed, since the beginning.
    pub fn open(&self, now: Duration) -> Duration {
        match self.phase {
            Phase::Choosing => self.open + now.saturating_sub(self.since),
            _ => self.open,
        }
    }

    /// Whether the programs are at work.
    pub fn is_open(&self) -> bool {
        self.phase != Phase::Closed
    }

    /// What is to be done now. `is_under_way`: a packet is followed that may yet be seen.
    pub fn step(&mut self, now: Duration, spent: Spent, is_under_way: bool) -> Option<Change> {
        let before = self.spent.replace(spent).unwrap_or(spent);
        let cpu = spent.cpu.saturating_sub(before.cpu).as_secs_f64();
        let paid = now.saturating_sub(self.paid).as_secs_f64() * self.aim;
        // Little is saved up: a flood after a calm hour has no credit.
        let least = -self.aim * CHOOSING.as_secs_f64();
        // What is owed for a time long ago is let go: looking begins again soon after a heavy load.
        let most = self.aim * LONGEST_DEBT.as_secs_f64();
        self.debt = (self.debt - paid + cpu).clamp(least, most);
        self.paid = now;
        let lasted = now.saturating_sub(self.since);
        match self.phase {
            Phase::Closed => {
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
                self.enter(Phase::Following, now, spent);
                Some(Change::Settle)
            }
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

    /// Follows fewer packets where their events cost more than the programs' runs, and more where
    /// they cost little.
    fn adapt(&mut self, is_affordable: bool, spent: Spent) {
        let events = spent.events.saturating_sub(self.looked.events);
        let runs = spent.runs.saturating_sub(self.looked.runs);
        self.sample = if !is_affordable && events.saturating_mul(16) > runs {
            self.sample.saturating_mul(2).min(RAREST)
        } else if is_affordable || events.saturating_mul(64) < runs {
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

        /// What is done in so many milliseconds, and when.
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
