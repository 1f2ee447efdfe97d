//! The machines of `simulated`: other load, and its effect on a path's value.

use rand::Rng;
use rand_pcg::Pcg64;

use crate::sampler::Disturbance;

/// Other load on a machine.
#[derive(Debug, Clone, Copy)]
pub(super) enum Others {
    Idle,
    /// A constant share of all CPUs.
    Steady(f64),
    /// On and off, with these mean durations in seconds.
    Bursts {
        level: f64,
        on: f64,
        off: f64,
    },
    /// Every `every` seconds for `takes` seconds.
    Periodic {
        level: f64,
        every: f64,
        takes: f64,
    },
    /// Rising from zero within 40 s.
    Drift(f64),
    /// From this second on; until this second.
    From(f64),
    Until(f64),
    /// Steal by the hypervisor, in waves of this many seconds.
    Steal {
        level: f64,
        wave: f64,
    },
    /// Constant throttling of the test by a control group.
    Throttled(f64),
}

pub(super) struct Noise(pub(super) Pcg64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).ln()
    }
}

/// A machine and its load over time.
pub(super) struct Busy {
    others: Others,
    /// For bursts: ends of the periods drawn so far, alternately on and off.
    turns: Vec<f64>,
    phase: f64,
}

impl Busy {
    pub(super) fn new(others: Others, noise: &mut Noise) -> Busy {
        Busy { others, turns: vec![0.0], phase: noise.uniform() }
    }

    /// Returns the mean share of other load from `from` to `to`, seconds.
    pub(super) fn share(&mut self, from: f64, to: f64, noise: &mut Noise) -> f64 {
        const STEPS: u32 = 25;
        let step = (to - from) / f64::from(STEPS);
        let moments = (0..STEPS).map(|at| from + step * (f64::from(at) + 0.5));
        let sum: f64 = moments.map(|moment| self.at(moment, noise)).sum();
        sum / f64::from(STEPS)
    }

    fn at(&mut self, moment: f64, noise: &mut Noise) -> f64 {
        match self.others {
            Others::Idle => 0.0,
            Others::Steady(level) | Others::Throttled(level) => level,
            Others::Bursts { level, on, off } => {
                while self.turns.last().is_some_and(|last| *last <= moment) {
                    let mean = if self.turns.len() % 2 == 1 { off } else { on };
                    let last = self.turns.last().copied().unwrap_or(0.0);
                    self.turns.push(last + noise.exponential(mean));
                }
                let turn = self.turns.partition_point(|end| *end <= moment);
                if turn.is_multiple_of(2) { level } else { 0.0 }
            }
            Others::Periodic { level, every, takes } => {
                let within = (moment + self.phase * every).rem_euclid(every);
                if within < takes { level } else { 0.0 }
            }
            Others::Drift(level) => level * (moment / 40.0).min(1.0),
            Others::From(second) => {
                if moment >= second {
                    0.7
                } else {
                    0.0
                }
            }
            Others::Until(second) => {
                if moment < second {
                    0.7
                } else {
                    0.0
                }
            }
            Others::Steal { level, wave } => {
                level * (0.5 + 0.5 * (std::f64::consts::TAU * (moment / wave + self.phase)).sin())
            }
        }
    }

    /// Returns the sampler's view, with the error of its ticks.
    pub(super) fn seen(&self, share: f64, noise: &mut Noise) -> Disturbance {
        let share = (share + 0.015 * noise.normal()).clamp(0.0, 1.0);
        match self.others {
            Others::Steal { .. } => {
                Disturbance { steal_share: share, busiest_share: share, ..Disturbance::default() }
            }
            Others::Throttled(_) => {
                Disturbance { throttled_share: share, ..Disturbance::default() }
            }
            _ => Disturbance {
                other_share: share,
                busiest_share: (2.0 * share).min(1.0),
                ..Disturbance::default()
            },
        }
    }
}

/// Returns the factor of a path's value that remains with these shares on both machines.
pub(super) fn left(here: f64, peer: f64) -> f64 {
    (1.0 - 0.85 * here.powf(0.8)) * (1.0 - 0.6 * peer)
}
