//! Maximum rate of a path, the base of loads in percent.
//!
//! First finds the rate of a closed loop with enough requests in flight that more do not help. A
//! schedule cannot reach that rate: a closed loop sends in bursts, which share system calls,
//! wake-ups and packets, while a schedule sends evenly. From that rate downwards, it searches for
//! the highest maximum at which a schedule of [`PROBE`] of it can be kept.
//!
//! Measured once before the blocks and fixed for all of them, so that a cell's samples are
//! comparable. Every mode, and the baseline, has its own maximum.

use std::time::Duration;

use crate::observer::{CellRef, Observer};
use crate::path_under_test::PathUnderTest;
use crate::plan::{Plan, PlannedCell};
use load::ask::{Ask, Engine};
use load::{Between, EngineError, Load, MAX_OUTSTANDING};
use results::Offered;
use results::stats::median;

/// Trials per number of requests in flight; the median counts.
const TRIALS: usize = 3;
/// A rate counts as growth if it exceeds the previous maximum by this factor,
const GROWTH: f64 = 1.05;
/// and the search ends after this many doublings without growth.
const IN_VAIN: usize = 2;
/// Share of the maximum whose schedule must be kept, and the share of answers that counts as
/// kept.
const PROBE: f64 = 0.95;
const KEPT: f64 = 0.98;
/// Factor between two rates.
const STEP: f64 = 0.92;
/// Maximum number of rates. The last is a fifth of the first.
const STEPS: usize = 20;
/// Bounds of a trial's duration.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_millis(250);
/// Maximum warm-up of a trial.
const WARMUP: Duration = Duration::from_millis(50);

/// Load offered to a cell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Offer {
    /// Closed loop: as fast as the path allows.
    Closed,
    /// A load in percent of the maximum, or one request at a time, or a given rate of datagrams.
    Load(Offered),
    /// A load in percent of a maximum that could not be measured.
    Unknown {
        /// Requested load, percent of the maximum.
        percent: f64,
        /// Reason why the maximum is unknown.
        reason: String,
    },
}

impl Offer {
    pub fn offered(&self) -> Option<Offered> {
        match self {
            Offer::Closed => None,
            Offer::Load(offered) => Some(*offered),
            Offer::Unknown { percent, .. } => Some(Offered { percent: Some(*percent), per_s: 0.0 }),
        }
    }

    /// Returns the offer if the run was stopped before the maximum was known.
    pub fn stopped(ask: &Ask) -> Offer {
        match (ask.load_percent, offered_rate(ask)) {
            (Some(percent), _) => Offer::Unknown {
                percent,
                reason: "the run was interrupted before the maximum was known".to_owned(),
            },
            (None, Some(rate)) => Offer::Load(rate),
            (None, None) => Offer::Closed,
        }
    }
}

/// Returns the schedule of a given rate of datagrams.
pub fn offered_rate(ask: &Ask) -> Option<Offered> {
    let per_s = ask.datagrams_per_s()?;
    Some(Offered { percent: None, per_s: per_s as f64 })
}

/// Returns the offer of each cell of the plan; `None` if stopped.
pub(crate) fn offers(
    plan: &Plan,
    subjects: &[PathUnderTest],
    observer: &mut dyn Observer,
    trial: &mut dyn FnMut(&PathUnderTest, &Load) -> Result<f64, EngineError>,
) -> Option<Vec<Offer>> {
    let mut maxima = Maxima { plan, known: Vec::new() };
    let mut offers = Vec::with_capacity(plan.cells.len());
    for (index, planned) in plan.cells.iter().enumerate() {
        let cell = CellRef { index, planned, subject: &subjects[planned.subject] };
        offers.push(match planned.ask.load_percent {
            None => offered_rate(&planned.ask).map_or(Offer::Closed, Offer::Load),
            // Such a cell is refused before it is measured.
            Some(percent) if planned.ask.engine != Engine::Overlane => Offer::Unknown {
                percent,
                reason: format!("{} does not support schedules", planned.ask.engine),
            },
            // A path that damages packets is not measured either.
            Some(percent) if cell.subject.damage.is_some() => {
                Offer::Unknown { percent, reason: "the path damages packets".to_owned() }
            }
            // One request at a time needs no maximum.
            Some(percent) if percent <= 0.0 => {
                Offer::Load(Offered { percent: Some(0.0), per_s: 0.0 })
            }
            Some(percent) => match maxima.of(cell, observer, trial)? {
                Ok(maximum) => Offer::Load(Offered {
                    percent: Some(percent),
                    per_s: maximum * percent / 100.0,
                }),
                Err(reason) => {
                    Offer::Unknown { percent, reason: format!("the maximum is unknown: {reason}") }
                }
            },
        });
    }
    Some(offers)
}

/// Maxima found so far. Cells that differ only in their load or in traffic beside it share one, and
/// so do the A/A cell and the baseline.
struct Maxima<'a> {
    plan: &'a Plan,
    known: Vec<(PlannedCell, Result<f64, String>)>,
}

impl Maxima<'_> {
    /// Returns the transactions/s of a cell, or the reason if unknown; `None` if stopped.
    fn of(
        &mut self,
        cell: CellRef<'_>,
        observer: &mut dyn Observer,
        trial: &mut dyn FnMut(&PathUnderTest, &Load) -> Result<f64, EngineError>,
    ) -> Option<Result<f64, String>> {
        let path_and_ask = |cell: &PlannedCell| {
            (cell.subject, cell.setting, Ask { load_percent: None, beside: None, ..cell.ask })
        };
        let same = |other: &PlannedCell| path_and_ask(other) == path_and_ask(cell.planned);
        if let Some((_, maximum)) = self.known.iter().find(|(other, _)| same(other)) {
            return Some(maximum.clone());
        }
        observer.calibrating(cell);
        // Requests beside bulk traffic have the same schedule as alone.
        let ask = Ask { beside: None, ..cell.planned.ask };
        let load = cell.subject.load(self.plan, &ask);
        let least = cell.subject.least_warmup(load.workload);
        let load = Load { warmup: load.warmup.min(WARMUP).max(least), ..load };
        let set = observer.set(cell);
        let found = match set.map(|()| maximum(&load, &mut |load| trial(cell.subject, load))) {
            // Ctrl-C: an unfinished search has no maximum.
            Ok(Err(EngineError::Stopped)) => return None,
            Ok(sought) => sought.map_err(|error| error.to_string()),
            // The setting cannot be applied.
            Err(reason) => Err(reason),
        };
        tracing::debug!(mode = cell.subject.mode, ?found, "maximum, transactions/s");
        self.known.push((*cell.planned, found.clone()));
        Some(found)
    }
}

/// Runs one trial and returns its rate, transactions/s.
pub(crate) fn rate<'a>(
    load: &Load,
    between: impl Into<Between<'a>>,
    stop: &std::sync::atomic::AtomicBool,
) -> Result<f64, EngineError> {
    load::run(load, between, &mut (), stop).map(|measured| measured.rate())
}

/// Returns the median rate of several trials.
fn median_rate(
    load: &Load,
    trial: &mut dyn FnMut(&Load) -> Result<f64, EngineError>,
) -> Result<f64, EngineError> {
    let rates = (0..TRIALS).map(|_| trial(load)).collect::<Result<Vec<_>, _>>()?;
    // Unreachable default: there is more than one trial.
    Ok(median(&rates).unwrap_or(0.0))
}

/// Returns the maximum whose schedules can be kept.
fn maximum(
    load: &Load,
    trial: &mut dyn FnMut(&Load) -> Result<f64, EngineError>,
) -> Result<f64, EngineError> {
    let load = Load { duration: load.duration.clamp(SHORTEST, LONGEST), ..load.clone() };
    let mut maximum = closed_loop(&load, trial)?;
    for _ in 1..STEPS {
        let per_s = maximum * PROBE;
        let load =
            Load { outstanding: MAX_OUTSTANDING, transactions_per_s: Some(per_s), ..load.clone() };
        // The path keeps this rate: no lower one needs to be tried.
        if median_rate(&load, trial)? >= per_s * KEPT {
            break;
        }
        maximum *= STEP;
    }
    Ok(maximum)
}

/// Doubles the requests in flight until the rate no longer grows.
fn closed_loop(
    load: &Load,
    trial: &mut dyn FnMut(&Load) -> Result<f64, EngineError>,
) -> Result<f64, EngineError> {
    let mut best: f64 = 0.0;
    let mut in_vain = 0;
    let mut outstanding = 1;
    while outstanding <= MAX_OUTSTANDING && in_vain < IN_VAIN {
        let load = Load { outstanding, transactions_per_s: None, ..load.clone() };
        let rate = median_rate(&load, trial)?;
        in_vain = if rate > best * GROWTH { 0 } else { in_vain + 1 };
        best = best.max(rate);
        outstanding *= 2;
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use load::Workload;

    /// A path with closed-loop rate `rate`, and at most `open` with a schedule.
    fn found_of(mut rate: impl FnMut(u32) -> f64, open: f64) -> (f64, u32) {
        let mut most = 0;
        let load = Load::new(Workload::TcpRr);
        let maximum = maximum(&load, &mut |load| {
            assert!((SHORTEST..=LONGEST).contains(&load.duration));
            Ok(match load.transactions_per_s {
                Some(per_s) => per_s.min(open),
                None => {
                    most = most.max(load.outstanding);
                    rate(load.outstanding)
                }
            })
        });
        (maximum.unwrap(), most)
    }

    fn found(rate: impl FnMut(u32) -> f64) -> (f64, u32) {
        found_of(rate, f64::INFINITY)
    }

    #[test]
    fn a_schedule_of_the_maximum_can_be_kept() {
        for open in [99e3, 90e3, 50e3, 30e3] {
            let (maximum, _) = found_of(|n| f64::from(n.min(2)) * 5e4, open);
            assert!(maximum * PROBE <= open / KEPT, "{maximum} of {open}");
            assert!(maximum * PROBE >= open * STEP * STEP, "{maximum} of {open}");
        }
        // A path that keeps no schedule: the search still ends.
        assert!(found_of(|_| 1e5, 0.0).0 > 0.0);
    }

    #[test]
    fn the_maximum_is_where_more_under_way_does_not_help() {
        // Two requests in flight keep both ends busy.
        assert_eq!(found(|n| f64::from(n.min(2)) * 1e4), (2e4, 8));
        // A long path.
        assert_eq!(found(|n| f64::from(n.min(100)) * 1e3), (1e5, 512));
        // The rate falls when queues overflow.
        assert_eq!(found(|n| if n > 8 { 1e3 } else { f64::from(n) * 1e3 }), (8e3, 32));
        // One rate that never grows, and one that always does.
        assert_eq!(found(|_| 5.0), (5.0, 4));
        assert_eq!(found(f64::from), (1024.0, MAX_OUTSTANDING));
    }

    #[test]
    fn a_disturbed_trial_does_not_count() {
        let mut trials = 0;
        let (maximum, _) = found(|n| {
            trials += 1;
            if trials % 3 == 1 { 1e9 } else { f64::from(n.min(4)) }
        });
        assert_eq!(maximum, 4.0);
    }

    #[test]
    fn a_broken_path_has_no_maximum() {
        let load = Load::new(Workload::TcpRr);
        assert!(maximum(&load, &mut |_| Err(EngineError::Stopped)).is_err());
    }
}
