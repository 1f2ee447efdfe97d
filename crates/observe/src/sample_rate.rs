//! Adapts the sample rate when more events arrive than can be read.
//!
//! A lost event removes a step, and the journey then ends nowhere. Fewer but complete journeys say
//! more. So while events are lost, packets are sampled at a lower rate, and the rate rises again
//! when few events arrive.

use std::time::Duration;

/// Interval between two decisions; a shorter one would see single bursts.
const LOOK: Duration = Duration::from_millis(250);
/// Time without a loss after which the rate may rise.
const QUIET: Duration = Duration::from_secs(2);
/// Lowest sample rate, one packet in N.
const RAREST: u32 = 1 << 20;

/// Controls the sample rate.
#[derive(Debug)]
pub struct SampleRate {
    one_in: u32,
    /// Counts since the last decision.
    events: u64,
    elapsed: Duration,
    /// Losses since the start, at the last decision.
    lost: u64,
    /// Events read per second when some were lost.
    too_many: f64,
    /// Time since the last loss or change.
    quiet: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRateChange {
    /// From now on, one packet in this many is followed.
    pub one_in: u32,
    /// Events lost since the last decision.
    pub lost: u64,
}

impl Default for SampleRate {
    fn default() -> SampleRate {
        SampleRate {
            one_in: 1,
            events: 0,
            elapsed: Duration::ZERO,
            lost: 0,
            too_many: 0.0,
            quiet: Duration::ZERO,
        }
    }
}

impl SampleRate {
    /// Takes the number of events read in this time, and of events lost since the start. Returns a
    /// change of the rate, if any.
    pub fn look(&mut self, events: u64, lost: u64, elapsed: Duration) -> Option<SampleRateChange> {
        self.events += events;
        self.elapsed += elapsed;
        // Too early to judge the rate.
        if self.elapsed < LOOK {
            return None;
        }
        let newly = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        let (read, took) = (std::mem::take(&mut self.events), std::mem::take(&mut self.elapsed));
        let rate = read as f64 / took.as_secs_f64();
        let wanted = if newly > 0 {
            self.quiet = Duration::ZERO;
            self.too_many = rate;
            // Aim at half of the readable rate, because load is uneven.
            let surplus = (read + newly).div_ceil(read.max(1)).saturating_mul(2);
            let factor = surplus.min(u64::from(RAREST)).next_power_of_two() as u32;
            self.one_in.saturating_mul(factor).min(RAREST)
        } else {
            self.quiet += took;
            // Twice as many events are still less than half of the load that was too high.
            let is_little = self.quiet >= QUIET && rate < self.too_many / 4.0;
            if is_little { (self.one_in / 2).max(1) } else { self.one_in }
        };
        if wanted == self.one_in {
            return None;
        }
        (self.one_in, self.quiet) = (wanted, Duration::ZERO);
        Some(SampleRateChange { one_in: wanted, lost: newly })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Simulates a load of `load` events per second, of which `room` can be read, for some seconds;
    /// returns the changes.
    fn under(
        pace: &mut SampleRate,
        load: u64,
        room: u64,
        seconds: u64,
        lost: &mut u64,
    ) -> Vec<u32> {
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
        let (mut pace, mut lost) = (SampleRate::default(), 0);
        assert!(under(&mut pace, 50_000, 100_000, 10, &mut lost).is_empty());
        // Ten times as many as can be read: the next power of two, and half of that.
        assert_eq!(under(&mut pace, 1_000_000, 100_000, 20, &mut lost), [32]);
        assert_eq!(lost, 900_000);
        assert_eq!(under(&mut pace, 10_000, 100_000, 30, &mut lost), [16, 8, 4, 2, 1]);
        assert_eq!(lost, 900_000);
    }

    #[test]
    fn short_looks_are_one() {
        let mut pace = SampleRate::default();
        let short = Duration::from_millis(100);
        assert_eq!(pace.look(10, 100, short), None);
        assert_eq!(pace.look(10, 200, short), None);
        let change = pace.look(10, 300, short);
        assert_eq!(change, Some(SampleRateChange { one_in: 32, lost: 300 }));
    }

    #[test]
    fn there_is_a_rarest() {
        let (mut pace, mut lost) = (SampleRate::default(), 0);
        for _ in 0..10 {
            lost += u64::from(u32::MAX);
            pace.look(0, lost, SECOND);
        }
        assert_eq!(pace.one_in, RAREST);
        assert_eq!(pace.look(0, lost + 1, SECOND), None);
    }
}
