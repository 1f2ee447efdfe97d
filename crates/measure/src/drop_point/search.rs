//! The search algorithm: pure, with trials as a callback.
//!
//! As in MLRsearch (draft-ietf-bmwg-mlrsearch), every trial counts for all goals. A load is a
//! lower bound of a goal if at least half of its trials lose no more than the goal allows, and an
//! upper bound if more than half lose more. The relevant bounds are the lowest upper bound and the
//! highest lower bound below it.
//!
//! All trials have the same length. A load is decided once one side leads by [`Asked::lead`]
//! trials, so clear loads take two. The final bounds are tried again until one side leads by
//! [`Asked::sure_lead`], since a wrong upper bound would limit the search for good.
//!
//! A load beyond the generator also bounds the search, but says nothing about the path.

use results::{DropGoal, DropPoint};

/// Outcome of one trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trial {
    /// The generator kept its rate on an undisturbed machine.
    Counted {
        /// Datagrams due by the schedule.
        intended: u64,
        /// Datagrams among them that the receiver counted.
        received: u64,
    },
    /// The generator did not keep its rate.
    NotKept,
    /// Other load disturbed the trial: no information.
    Disturbed,
}

/// Parameters of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// Loss allowed by each goal, 0..1, strictest first.
    pub goals: Vec<f64>,
    /// A goal is found when its bounds are this close: (upper − lower) ÷ upper.
    pub width: f64,
    /// Lead in trials that decides a load.
    pub lead: usize,
    /// Lead in trials that decides a final bound.
    pub sure_lead: usize,
    /// After this many trials of a load, the majority decides.
    pub load_trials: usize,
    /// Maximum number of trials of a search.
    pub most_trials: u32,
    /// Minimum load, datagrams/s.
    pub least: f64,
    /// First load, datagrams/s.
    pub start: f64,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Rates of the goals. A goal that no load kept has rate 0.
    pub point: DropPoint,
    /// Whether each goal reached the requested width.
    pub narrowed: Vec<bool>,
}

/// First step beyond a bound while the other bound is unknown. Each further step doubles.
const FIRST_STEP: f64 = 0.08;
/// Maximum step: a doubling of the rate.
const LONGEST_STEP: f64 = 1.0;

/// A load and its trials.
#[derive(Debug, Clone)]
struct Load {
    per_s: f64,
    /// Loss of each counted trial, ascending.
    losses: Vec<f64>,
    not_kept: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Lower,
    Upper,
    Undecided,
}

impl Load {
    fn class(&self, goal: f64, lead: usize, most: usize) -> Class {
        let good = self.losses.iter().filter(|loss| **loss <= goal).count();
        let bad = self.losses.len() - good;
        if good >= bad + lead || (good >= bad && good + bad >= most) {
            Class::Lower
        } else if bad >= good + lead || good + bad >= most {
            Class::Upper
        } else {
            Class::Undecided
        }
    }

    /// Returns whether the generator cannot reach this load.
    fn beyond(&self, lead: usize) -> bool {
        self.not_kept >= self.losses.len() + lead
    }

    /// Returns the loss that at least half of the trials stay within.
    fn typical_loss(&self) -> f64 {
        let middle = self.losses.len().saturating_sub(1) / 2;
        // Without a trial, assume that nothing came through.
        self.losses.get(middle).copied().unwrap_or(1.0)
    }
}

/// Bounds of one goal.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bounds {
    /// Index of the highest load that kept the goal.
    lower: Option<usize>,
    /// Index of the lowest load that missed it.
    upper: Option<usize>,
    /// Index of the lowest load that the generator cannot reach.
    beyond: Option<usize>,
}

struct Search<'a> {
    asked: &'a Asked,
    loads: Vec<Load>,
    /// Steps taken beyond a bound, per goal.
    steps: Vec<u32>,
}

/// Runs the search. `trial` runs one trial at a rate in datagrams/s.
///
/// # Errors
/// The first error of `trial`.
pub fn search<E>(
    asked: &Asked,
    mut trial: impl FnMut(f64) -> Result<Trial, E>,
) -> Result<Found, E> {
    let mut search = Search { asked, loads: Vec::new(), steps: vec![0; asked.goals.len()] };
    let (mut trials, mut void_trials) = (0, 0);
    while trials < asked.most_trials {
        let Some(at) = search.next() else { break };
        trials += 1;
        let load = &mut search.loads[at];
        match trial(load.per_s)? {
            Trial::Counted { intended, received } => {
                let lost = intended.saturating_sub(received);
                let loss = lost as f64 / intended.max(1) as f64;
                let place = load.losses.partition_point(|other| *other <= loss);
                load.losses.insert(place, loss);
            }
            Trial::NotKept => {
                load.not_kept += 1;
                void_trials += 1;
            }
            Trial::Disturbed => void_trials += 1,
        }
    }
    Ok(search.found(trials, void_trials))
}

impl Search<'_> {
    fn class(&self, load: &Load, goal: f64, lead: usize) -> Class {
        load.class(goal, lead, self.asked.load_trials)
    }

    fn bounds(&self, goal: f64) -> Bounds {
        let lead = self.asked.lead;
        let by_rate = |a: &usize, b: &usize| self.loads[*a].per_s.total_cmp(&self.loads[*b].per_s);
        let indices = || 0..self.loads.len();
        let upper = indices()
            .filter(|at| self.class(&self.loads[*at], goal, lead) == Class::Upper)
            .min_by(by_rate);
        // Ignore failures below a rate that the generator has reached.
        let made = self.generated();
        let beyond = indices()
            .filter(|at| self.loads[*at].beyond(lead) && self.loads[*at].per_s > made)
            .min_by(by_rate);
        let mut bounds = Bounds { lower: None, upper, beyond };
        let top = self.top(&bounds).map_or(f64::INFINITY, |at| self.loads[at].per_s);
        bounds.lower = indices()
            .filter(|at| self.class(&self.loads[*at], goal, lead) == Class::Lower)
            .filter(|at| self.loads[*at].per_s < top)
            .max_by(by_rate);
        bounds
    }

    /// Returns the lower one of the two upper limits.
    fn top(&self, bounds: &Bounds) -> Option<usize> {
        let both = bounds.upper.into_iter().chain(bounds.beyond);
        both.min_by(|a, b| self.loads[*a].per_s.total_cmp(&self.loads[*b].per_s))
    }

    /// Returns the highest load that the generator has reached.
    fn generated(&self) -> f64 {
        let made = self.loads.iter().filter(|load| load.losses.len() >= self.asked.lead);
        made.map(|load| load.per_s).fold(0.0, f64::max)
    }

    /// Returns the distance of a goal's bounds, (upper − lower) ÷ upper; infinite if one is
    /// missing.
    fn width(&self, bounds: &Bounds) -> f64 {
        match (bounds.lower, self.top(bounds)) {
            (Some(lower), Some(top)) => {
                let (lower, top) = (self.loads[lower].per_s, self.loads[top].per_s);
                (top - lower) / top
            }
            // Nothing is left to try below.
            (None, Some(top)) if self.loads[top].per_s <= self.asked.least => 0.0,
            _ => f64::INFINITY,
        }
    }

    /// Returns a bound of a goal that needs more trials.
    fn unsure(&self, goal: f64, bounds: &Bounds) -> Option<usize> {
        let lead = self.asked.sure_lead;
        let undecided = |at: &usize| {
            let load = &self.loads[*at];
            if Some(*at) == bounds.beyond {
                return !load.beyond(lead) && load.not_kept < self.asked.load_trials;
            }
            self.class(load, goal, lead) == Class::Undecided
        };
        // The upper bound first: if it falls, the lower one does not matter.
        self.top(bounds).into_iter().chain(bounds.lower).find(undecided)
    }

    /// Returns the next load to try: first for the widest goal, then unsure bounds; `None` when all
    /// goals are found.
    fn next(&mut self) -> Option<usize> {
        if self.loads.is_empty() {
            return Some(self.load(self.asked.start.max(self.asked.least)));
        }
        let widths: Vec<(usize, Bounds, f64)> = (0..self.asked.goals.len())
            .map(|goal| {
                let bounds = self.bounds(self.asked.goals[goal]);
                (goal, bounds, self.width(&bounds))
            })
            .collect();
        let widest = widths
            .iter()
            .filter(|(_, _, width)| *width > self.asked.width)
            // On a tie the strictest goal: a load that keeps it keeps the others, too.
            .reduce(|widest, other| if other.2 > widest.2 { other } else { widest });
        let Some(&(goal, bounds, _)) = widest else {
            return widths
                .iter()
                .find_map(|(goal, bounds, _)| self.unsure(self.asked.goals[*goal], bounds));
        };
        let lower = bounds.lower.map_or(0.0, |at| self.loads[at].per_s);
        let top = self.top(&bounds).map(|at| self.loads[at].per_s);
        // First decide loads between the bounds.
        let undecided = (0..self.loads.len())
            .filter(|at| (lower..top.unwrap_or(f64::INFINITY)).contains(&self.loads[*at].per_s))
            .find(|at| {
                let goal = self.asked.goals[goal];
                self.class(&self.loads[*at], goal, self.asked.lead) == Class::Undecided
            });
        if undecided.is_some() {
            return undecided;
        }
        let step = (FIRST_STEP * f64::from(1_u32 << self.steps[goal].min(8))).min(LONGEST_STEP);
        let per_s = match (bounds.lower, top) {
            (Some(_), Some(top)) => (lower * top).sqrt(),
            (Some(_), None) => {
                self.steps[goal] += 1;
                lower * (1.0 + step)
            }
            (None, top) => {
                self.steps[goal] += 1;
                let top = top.unwrap_or(self.asked.start);
                (top / (1.0 + step)).max(self.asked.least)
            }
        };
        Some(self.load(per_s))
    }

    fn load(&mut self, per_s: f64) -> usize {
        // The generator accepts whole datagrams per second.
        let per_s = per_s.round().max(1.0);
        self.loads.iter().position(|load| load.per_s == per_s).unwrap_or_else(|| {
            self.loads.push(Load { per_s, losses: Vec::new(), not_kept: 0 });
            self.loads.len() - 1
        })
    }

    fn found(&self, trials: u32, void_trials: u32) -> Found {
        let mut narrowed = Vec::new();
        let mut limited = false;
        let goals = self
            .asked
            .goals
            .iter()
            .map(|&loss| {
                let bounds = self.bounds(loss);
                narrowed.push(self.width(&bounds) <= self.asked.width);
                limited |= bounds.upper.is_none() && bounds.beyond.is_some();
                let kept = bounds.lower.map(|at| &self.loads[at]);
                DropGoal {
                    loss,
                    per_s: kept.map_or(0.0, |load| load.per_s * (1.0 - load.typical_loss())),
                    kept: kept.map_or(0.0, |load| load.per_s),
                    missed: bounds.upper.map(|at| self.loads[at].per_s),
                }
            })
            .collect();
        let generator_limit = limited.then(|| self.generated());
        let point = DropPoint { goals, trials, void_trials, generator_limit };
        Found { point, narrowed }
    }
}

#[cfg(test)]
mod tests;
