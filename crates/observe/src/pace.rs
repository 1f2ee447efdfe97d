//! How many packets are followed where more come than can be told.
//!
//! An event that finds no room takes a step out of a journey that then ends nowhere. Fewer whole
//! journeys say more. So packets are chosen by chance while events are lost, and more of them
//! again when few events come.

use std::time::Duration;

/// The least time between two looks: shorter ones see single bursts.
const LOOK: Duration = Duration::from_millis(250);
/// Without a loss for so long more packets may be followed.
const QUIET: Duration = Duration::from_secs(2);
/// Rarer is next to nothing.
const RAREST: u32 = 1 << 20;

/// Chooses how many packets are followed.
#[derive(Debug)]
pub struct Pace {
    one_in: u32,
    /// Since the last look.
    events: u64,
    elapsed: Duration,
    /// At the last look, since the beginning.
    lost: u64,
    /// Events a second that were read when some were lost.
    too_many: f64,
    /// Since the last loss or change.
    quiet: Duration,
}

/// What a look has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaceChange {
    /// From now on one packet in so many.
    pub one_in: u32,
    /// Events that found no room since the last look.
    pub lost: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            one_in: 1,
            events: 0,
            elapsed: Duration::ZERO,
            lost: 0,
            too_many: 0.0,
            quiet: Duration::ZERO,
        }
    }
}

impl Pace {
    /// So many `events` were read in this time, `lost` found no room since the beginning. Answers
    /// what is to change.
    pub fn look(&mut self, events: u64, lost: u64, elapsed: Duration) -> Option<PaceChange> {
        self.events += events;
        self.elapsed += elapsed;
        if self.elapsed < LOOK {
            return None;
        }
        let newly = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        let (read, took) = (std::mem::take(&mut self.events), std::mem::take(&mut self.elapsed));
        let rate = read as f64 / took.as_secs_f64();
        let wanted = if newly > 0 {
            self.quiet = Duration::ZERO;
            self.too_many = rate;
            // To half of what could be read: what comes is not even.
            let surplus = (read + newly).div_ceil(read.max(1)).saturating_mul(2);
            let factor = surplus.min(u64::from(RAREST)).next_power_of_two() as u32;
            self.one_in.saturating_mul(factor).min(RAREST)
        } else {
            self.quiet += took;
            // Twice as many are still less than half of what was too many.
            let is_little = self.quiet >= QUIET && rate < self.too_many / 4.0;
            if is_little { (self.one_in / 2).max(1) } else { self.one_in }
        };
        if wanted == self.one_in {
            return None;
        }
        (self.one_in, self.quiet) = (wanted, Duration::ZERO);
        Some(PaceChange { one_in: wanted, lost: newly })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Looks at a load of so many events a second, of which `room` can be read, for some seconds;
    /// answers the changes.
    fn under(pace: &mut Pace, load: u64, room: u64, seconds: u64, lost: &mut u64) -> Vec<u32> {
        let mut changes = Vec::new();
        for _ in 0..seconds {
            let comes = load / u64::from(pace.one_in);
            *lost += comes.saturating_sub(room);
            changes.extend(pace.look(comes.min(room), *lost, SECOND).map(|change| change.one_in));
        }
        changes
    }

    #[test]
    fn a_flood_is_followed_by_chance_and_its_end_is_noticed() {
        let (mut pace, mut lost) = (Pace::default(), 0);
        assert!(under(&mut pace, 50_000, 100_000, 10, &mut lost).is_empty());
        // Ten times as many as can be read: the next power of two, and half of that.
        assert_eq!(under(&mut pace, 1_000_000, 100_000, 20, &mut lost), [32]);
        assert_eq!(lost, 900_000);
        assert_eq!(under(&mut pace, 10_000, 100_000, 30, &mut lost), [16, 8, 4, 2, 1]);
        assert_eq!(lost, 900_000);
    }

    #[test]
    fn short_looks_are_one() {
        let mut pace = Pace::default();
        let short = Duration::from_millis(100);
        assert_eq!(pace.look(10, 100, short), None);
        assert_eq!(pace.look(10, 200, short), None);
        let change = pace.look(10, 300, short);
        assert_eq!(change, Some(PaceChange { one_in: 32, lost: 300 }));
    }

    #[test]
    fn there_is_a_rarest() {
        let (mut pace, mut lost) = (Pace::default(), 0);
        for _ in 0..10 {
            lost += u64::from(u32::MAX);
            pace.look(0, lost, SECOND);
        }
        assert_eq!(pace.one_in, RAREST);
        assert_eq!(pace.look(0, lost + 1, SECOND), None);
    }
}
