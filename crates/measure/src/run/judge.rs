//! Judges other load on the machines during each sample.
//!
//! Constant load belongs to the machine. Load that comes and goes between two compared cells
//! spoils their ratio. A sample is therefore retaken if it exceeds the run's own background, or
//! differs from the other cells of its block. If the second sample does so again, it counts.
//!
//! The judge considers neither values nor which cell is the baseline. The order within a block is
//! random, so other load affects both sides of a ratio alike: retaking narrows an interval but
//! does not shift it.

use results::stats::{Background as Usually, median};
use results::{Background, Disturbance, JudgedBy, MachineBackground, Sample, Usual};

use crate::in_force::InForce;
use crate::sampler::{Limits, Rule};

/// Minimum weight of observations before the run, in values, so that the first samples start at
/// that level.
const BEFORE: usize = 5;
/// Blocks in a row at another level that count as a change of load.
const CHANGED: u32 = 2;

/// Learned background of one machine: four shares.
#[derive(Debug, Clone, Default)]
struct Learned {
    other: Usually,
    busiest: Usually,
    steal: Usually,
    throttled: Usually,
}

impl Learned {
    fn learn(&mut self, seen: &Disturbance) {
        self.other.learn(seen.other_share);
        self.busiest.learn(seen.busiest_share);
        self.steal.learn(seen.steal_share);
        self.throttled.learn(seen.throttled_share);
    }

    fn limits(&self) -> Limits {
        let least = Limits::DEFAULT;
        Limits {
            steal_share: self.steal.bound(least.steal_share),
            throttled_share: self.throttled.bound(least.throttled_share),
            other_share: self.other.bound(least.other_share),
            busiest_share: self.busiest.bound(least.busiest_share),
        }
    }

    fn usual(&self) -> MachineBackground {
        let of = |learned: &Usually| Usual { level: learned.level(), spread: learned.spread() };
        MachineBackground {
            other: of(&self.other),
            busiest: of(&self.busiest),
            steal: of(&self.steal),
            throttled: of(&self.throttled),
        }
    }
}

/// The judge of a run.
#[derive(Debug)]
pub(crate) struct Judge {
    rule: Rule,
    here: Learned,
    peer: Learned,
    /// Usual distance of the cells of a block, in units of the minimum allowance.
    apart: Usually,
    /// First samples, retaken samples, and samples that were disturbed again but count.
    taken: u64,
    retaken: u32,
    kept: u32,
    has_peer: bool,
    /// Other load in the current block.
    block: Vec<f64>,
    level: Level,
}

/// Level of other load, to report changes.
#[derive(Debug, Clone, Copy, Default)]
struct Level {
    known: Option<f64>,
    /// Blocks in a row away from that level.
    away: u32,
}

impl Judge {
    /// Creates a judge. `before` was observed here before the run; `peer` is the busy share of the
    /// other machine at that time.
    pub fn new(rule: Rule, before: &[Disturbance], peer: Option<f64>) -> Judge {
        let mut here = Learned::default();
        // Repeat few observations until they have the minimum weight.
        for _ in 0..BEFORE.div_ceil(before.len().max(1)) {
            before.iter().for_each(|seen| here.learn(seen));
        }
        let mut there = Learned::default();
        if let Some(other_share) = peer {
            let seen = Disturbance { other_share, ..Disturbance::default() };
            (0..BEFORE).for_each(|_| there.learn(&seen));
        }
        Judge {
            rule,
            here,
            peer: there,
            apart: Usually::default(),
            taken: 0,
            retaken: 0,
            kept: 0,
            has_peer: peer.is_some(),
            block: Vec::new(),
            level: Level::default(),
        }
    }

    /// Returns the limits for the next sample.
    pub fn in_force(&self) -> InForce {
        match self.rule {
            Rule::Background => InForce { here: self.here.limits(), peer: self.peer.limits() },
            Rule::Strict(limits) => InForce { here: limits, peer: limits },
        }
    }

    /// Describes how a sample exceeds the limits, and learns from it.
    pub fn stands_out(&mut self, sample: &Sample) -> Option<String> {
        let reason = self.in_force().passed(sample);
        if let Some(seen) = &sample.disturbance {
            self.here.learn(seen);
            self.block.push(seen.other_share);
        }
        if let Some(seen) = &sample.peer_disturbance {
            self.has_peer = true;
            self.peer.learn(seen);
        }
        reason
    }

    /// Whether a sample that exceeds the limits twice is void: under a strict rule.
    pub fn is_strict(&self) -> bool {
        matches!(self.rule, Rule::Strict(_))
    }

    /// Counts a first sample.
    pub fn first(&mut self) {
        self.taken += 1;
    }

    /// Returns whether a sample may be retaken, and counts it. A run takes at most twice its
    /// samples, whatever the machine does.
    pub fn retake(&mut self) -> bool {
        let may = u64::from(self.retaken) < self.taken;
        self.retaken += u32::from(may);
        may
    }

    /// Counts a sample that exceeded the limits again but is kept.
    pub fn keep(&mut self) {
        self.kept += 1;
    }

    /// Returns the samples of one comparison in one block that are unusually far from the median of
    /// the group, in any share of other load. None under a strict rule.
    pub fn unlike(&mut self, samples: &[Option<&Sample>]) -> Vec<usize> {
        // Fixed limits judge each sample by itself.
        if self.is_strict() {
            return Vec::new();
        }
        let least = Limits::DEFAULT;
        type Share = fn(&Disturbance) -> f64;
        let shares: [(Share, f64); 4] = [
            (|by| by.other_share, least.other_share),
            (|by| by.busiest_share, least.busiest_share),
            (|by| by.steal_share, least.steal_share),
            (|by| by.throttled_share, least.throttled_share),
        ];
        type Of = fn(&Sample) -> Option<Disturbance>;
        let machines: [Of; 2] = [|sample| sample.disturbance, |sample| sample.peer_disturbance];
        let mut distances = vec![0.0_f64; samples.len()];
        for of in machines {
            for (share, allowed) in shares {
                let seen: Vec<Option<f64>> =
                    samples.iter().map(|sample| sample.and_then(of).map(|by| share(&by))).collect();
                let known: Vec<f64> = seen.iter().copied().flatten().collect();
                // No sample of the group has data about this machine.
                let Some(middle) = median(&known) else { continue };
                for (distance, seen) in distances.iter_mut().zip(seen) {
                    let away = seen.map_or(0.0, |seen| (seen - middle).abs() / allowed);
                    *distance = distance.max(away);
                }
            }
        }
        let bound = self.apart.bound(1.0);
        // Learn after the bound is fixed, so that a sample is not its own reference.
        distances.iter().for_each(|distance| self.apart.learn(*distance));
        (0..samples.len()).filter(|at| distances[*at] > bound).collect()
    }

    /// Ends a block. Returns a note if the level of other load has changed.
    pub fn block_done(&mut self, block: u32) -> Option<String> {
        let seen = median(&std::mem::take(&mut self.block))?;
        // The first block sets the level.
        let Some(known) = self.level.known else {
            self.level.known = Some(seen);
            return None;
        };
        let usual = Limits::DEFAULT.other_share.max(2.0 * self.here.other.spread());
        // Within the usual variation.
        if (seen - known).abs() <= usual {
            self.level.away = 0;
            return None;
        }
        self.level.away += 1;
        // A single block may be a short burst.
        if self.level.away < CHANGED {
            return None;
        }
        // Report the change once: this is the known level from now on.
        self.level = Level { known: Some(seen), away: 0 };
        let from = block + 2 - CHANGED;
        Some(format!(
            "from block {from} on, other programs used {:.0}% of all CPUs, before it {:.0}%",
            seen * 100.0,
            known * 100.0
        ))
    }

    pub fn record(&self) -> Background {
        let strict_share = match self.rule {
            Rule::Strict(limits) => Some(limits.other_share).filter(|share| share.is_finite()),
            // Without --disturbance there is no fixed limit.
            Rule::Background => None,
        };
        Background {
            rule: if self.is_strict() { JudgedBy::Strict } else { JudgedBy::Background },
            strict_share,
            machine: self.here.usual(),
            peer: self.has_peer.then(|| self.peer.usual()),
            retaken: self.retaken,
            kept: self.kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(other_share: f64) -> Sample {
        let disturbance = Some(Disturbance { other_share, ..Disturbance::default() });
        Sample { disturbance, valid: true, path_proved: true, ..Sample::default() }
    }

    fn seen(other_share: f64) -> Disturbance {
        Disturbance { other_share, ..Disturbance::default() }
    }

    #[test]
    fn on_an_idle_machine_the_limits_are_what_they_always_were() {
        let judge = Judge::new(Rule::Background, &[seen(0.0)], None);
        assert_eq!(judge.in_force().here, Limits::DEFAULT);
    }

    #[test]
    fn a_load_seen_before_the_run_is_its_background_from_the_first_sample_on() {
        let mut judge = Judge::new(Rule::Background, &[seen(0.5), seen(0.52)], None);
        assert_eq!(judge.stands_out(&sample(0.55)), None);
        let reason = judge.stands_out(&sample(0.95)).unwrap();
        assert!(reason.starts_with("95.0% used by other processes (limit "), "{reason}");
    }

    #[test]
    fn the_peers_machine_has_a_background_of_its_own() {
        let mut judge = Judge::new(Rule::Background, &[seen(0.0)], Some(0.8));
        let both = |peer: f64| Sample { peer_disturbance: Some(seen(peer)), ..sample(0.01) };
        assert_eq!(judge.stands_out(&both(0.8)), None);
        let reason = judge.stands_out(&both(0.99)).unwrap();
        assert!(reason.contains("99.0% used by other processes"), "{reason}");
        assert!((judge.record().peer.unwrap().other.level - 0.8).abs() < 1e-9);
    }

    #[test]
    fn a_strict_rule_learns_and_judges_by_its_limit() {
        let strict = Rule::Strict(Limits { other_share: 0.1, ..Limits::LIFTED });
        let mut judge = Judge::new(strict, &[seen(0.5)], None);
        assert!(judge.stands_out(&sample(0.5)).is_some());
        assert!(judge.unlike(&[Some(&sample(0.0)), Some(&sample(0.9))]).is_empty());
        let record = judge.record();
        assert_eq!((record.rule, record.strict_share), (JudgedBy::Strict, Some(0.1)));
        assert!(record.machine.other.level > 0.4);
    }

    #[test]
    fn the_outlier_of_a_block_is_found_at_any_position() {
        for odd in 0..3 {
            let mut judge = Judge::new(Rule::Background, &[seen(0.0)], None);
            let samples: Vec<Sample> =
                (0..3).map(|at| sample(if at == odd { 0.6 } else { 0.01 })).collect();
            let group: Vec<Option<&Sample>> = samples.iter().map(Some).collect();
            assert_eq!(judge.unlike(&group), [odd]);
        }
        // With two samples, both are equally far from the median.
        let mut judge = Judge::new(Rule::Background, &[seen(0.0)], None);
        assert_eq!(judge.unlike(&[Some(&sample(0.0)), None, Some(&sample(0.6))]), [0, 2]);
    }

    #[test]
    fn cells_that_always_differ_have_no_outlier() {
        let mut judge = Judge::new(Rule::Background, &[seen(0.4)], None);
        let mut odd = 0;
        for round in 0..40_u32 {
            let share = |at: u32| f64::from((round * 7 + at * 11) % 20) / 20.0;
            let samples: Vec<Sample> = (0..3).map(|at| sample(share(at))).collect();
            let group: Vec<Option<&Sample>> = samples.iter().map(Some).collect();
            let unlike = judge.unlike(&group).len();
            odd += if round < 10 { 0 } else { unlike };
        }
        assert!(odd <= 3, "{odd} of 90");
    }

    #[test]
    fn a_run_takes_at_most_twice_its_samples() {
        let mut judge = Judge::new(Rule::Background, &[], None);
        assert!(!judge.retake(), "nothing taken yet");
        let retaken = (0..100)
            .map(|_| {
                judge.first();
                u32::from(judge.retake()) + u32::from(judge.retake())
            })
            .sum::<u32>();
        assert_eq!(retaken, 100);
    }

    #[test]
    fn a_load_that_begins_and_ends_is_said_once_each() {
        let mut judge = Judge::new(Rule::Background, &[seen(0.0)], None);
        let mut said = Vec::new();
        for block in 0..40 {
            let share = if (10..25).contains(&block) { 0.5 } else { 0.02 };
            (0..3).for_each(|_| drop(judge.stands_out(&sample(share))));
            said.extend(judge.block_done(block));
        }
        assert_eq!(
            said,
            [
                "from block 11 on, other programs used 50% of all CPUs, before it 2%",
                "from block 26 on, other programs used 2% of all CPUs, before it 50%",
            ]
        );
    }

    #[test]
    fn a_share_that_is_not_a_number_stands_out_and_teaches_nothing() {
        let mut judge = Judge::new(Rule::Background, &[seen(0.0)], None);
        assert!(judge.stands_out(&sample(f64::NAN)).is_some());
        assert_eq!(judge.in_force().here, Limits::DEFAULT);
    }
}
