//! Attributes CPU time to the load of a measurement.
//!
//! The exact clock knows the cause of most time: tasks by their ancestors, network softirqs by the
//! task that raised them. Packets that arrive by an interrupt, and kernel threads, work for
//! anybody. Their time counts as the load's if there was hardly any of it before the run.
//!
//! Ticks know no cause. The time of other processes in the same interval is subtracted, if it is
//! small.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::split::Caused;

/// Largest part of an attributed time that may be another program's. Above it, a figure would
/// follow the other load, not the path.
const MOST_FOREIGN: f64 = 0.10;

/// CPU time of the load on one machine over one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attributed {
    /// CPU seconds of the load.
    Load(f64),
    /// The reason why the load's part of the CPU time is unknown.
    Unknown(String),
}

impl Default for Attributed {
    /// For servers of an older version, which attribute nothing.
    fn default() -> Self {
        Attributed::Unknown(
            "its version of overlane is older and does not attribute CPU \
            time"
                .to_owned(),
        )
    }
}

/// CPU time that was in use before the run, per second of wall time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Before {
    /// Time of unknown cause (exact clock).
    pub open: f64,
    /// Time of no process (ticks).
    pub no_process: f64,
}

/// Attributes exact CPU time over `seconds`.
pub(super) fn exact(caused: &Caused, before: &Before, seconds: f64) -> Attributed {
    let foreign = (before.open * seconds).min(caused.open);
    let load = caused.own + caused.open;
    if foreign > MOST_FOREIGN * load {
        return Attributed::Unknown(format!(
            "packets of other programs and kernel threads took {} of the CPU time that could be \
             the load's, by their rate before the run",
            Percent(foreign / load)
        ));
    }
    Attributed::Load(load - foreign)
}

/// Attributes `busy` seconds of ticks, of which other processes took `others`.
pub(super) fn ticks(busy: f64, others: f64, before: &Before, seconds: f64) -> Attributed {
    let foreign = (others + before.no_process * seconds).min(busy);
    if foreign > MOST_FOREIGN * busy {
        return Attributed::Unknown(format!(
            "other programs took {} of the CPU time, which is counted in ticks: ticks do not show \
             whose packets a softirq processes",
            Percent(foreign / busy)
        ));
    }
    Attributed::Load(busy - foreign)
}

struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}%", self.0 * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(attributed: &Attributed) -> &str {
        match attributed {
            Attributed::Unknown(reason) => reason,
            Attributed::Load(seconds) => panic!("{seconds} s"),
        }
    }

    fn is_close(attributed: &Attributed, expected: f64) -> bool {
        matches!(attributed, Attributed::Load(seconds) if (seconds - expected).abs() < 1e-9)
    }

    #[test]
    fn time_of_unknown_cause_is_the_loads_if_there_was_hardly_any_before() {
        let caused = Caused { own: 0.6, open: 0.4 };
        let at = |open: f64| exact(&caused, &Before { open, no_process: 9.0 }, 2.0);
        assert_eq!(at(0.0), Attributed::Load(1.0));
        assert!(is_close(&at(0.04), 0.92), "{:?}", at(0.04));
        assert!(reason(&at(0.06)).contains("took 12% of"), "{:?}", at(0.06));
        // Never more than there was, and never all.
        assert!(reason(&at(100.0)).contains("took 40% of"));
        let all = Caused { own: 1.0, open: 0.0 };
        assert_eq!(exact(&all, &Before { open: 5.0, no_process: 0.0 }, 2.0), Attributed::Load(1.0));
        let none = exact(&Caused::default(), &Before::default(), 1.0);
        assert_eq!(none, Attributed::Load(0.0));
    }

    #[test]
    fn ticks_beside_other_programs_are_no_figure() {
        let before = Before { open: 9.0, no_process: 0.01 };
        let quiet = ticks(1.0, 0.05, &before, 2.0);
        assert!(is_close(&quiet, 0.93), "{quiet:?}");
        let beside = ticks(1.0, 0.5, &before, 2.0);
        assert!(reason(&beside).starts_with("other programs took 52% of the CPU time"));
        assert_eq!(ticks(0.0, 0.0, &Before::default(), 1.0), Attributed::Load(0.0));
    }
}
