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
    use netstate::cpu::CpuTicks;

    use super::super::exact::{CpuNs, Kind};
    use super::super::split::caused;
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

    /// A fixed load on two CPUs beside other programs, which take `share` of the CPUs. Their packets,
    /// which arrive by interrupts, take `packets` of that; their rate in the sample is `change` times
    /// that before the run.
    struct Beside {
        share: f64,
        packets: f64,
        change: f64,
    }

    impl Beside {
        const CPUS: f64 = 2.0;
        /// CPU seconds of the load: tasks, its own softirqs, and softirqs of unknown cause.
        const LOAD: [f64; 3] = [2.0, 0.5, 0.5];

        /// Time in which the load gets its CPU time, and the others' tasks and packets in it.
        fn taken(&self) -> (f64, f64, f64) {
            let seconds = Self::LOAD.iter().sum::<f64>() / Self::CPUS / (1.0 - self.share);
            let others = Self::CPUS * self.share * seconds;
            (seconds, others * (1.0 - self.packets), others * self.packets)
        }

        fn exact(&self) -> Attributed {
            let (seconds, tasks, packets) = self.taken();
            let before = Before { open: packets / seconds, no_process: 0.0 };
            let [own, net, open] = Self::LOAD;
            let ns = |seconds: f64| (seconds * 1e9) as u64;
            let clock = CpuNs::of(&[
                (Kind::OwnTask, ns(own)),
                (Kind::Task, ns(tasks)),
                (Kind::NetOwn, ns(net)),
                (Kind::NetOpen, ns(open + packets * self.change)),
            ]);
            exact(&caused(&clock, &CpuTicks::default(), 100), &before, seconds)
        }

        fn ticks(&self) -> Attributed {
            let (seconds, tasks, packets) = self.taken();
            let before = Before { open: 0.0, no_process: packets / seconds };
            let load: f64 = Self::LOAD.iter().sum();
            ticks(load + tasks + packets * self.change, tasks, &before, seconds)
        }
    }

    #[test]
    fn a_fixed_load_has_the_same_figure_beside_any_other_load_or_none() {
        let quiet: f64 = Beside::LOAD.iter().sum();
        let mut unknown = 0;
        for share in [0.0, 0.01, 0.05, 0.1, 0.5, 0.9] {
            for packets in [0.0, 0.01, 0.1, 0.5, 1.0] {
                for change in [0.0, 0.5, 1.0, 1.5] {
                    let beside = Beside { share, packets, change };
                    for attributed in [beside.exact(), beside.ticks()] {
                        let what = format!("{share} {packets} {change}: {attributed:?}");
                        match attributed {
                            // A tenth, and the rounding of the numbers.
                            Attributed::Load(load) => {
                                assert!((load / quiet - 1.0).abs() < 0.1 + 1e-6, "{what}");
                            }
                            Attributed::Unknown(_) => unknown += 1,
                        }
                    }
                }
            }
            // Tasks of other programs alone take nothing from an exact figure.
            let tasks = Beside { share, packets: 0.0, change: 1.0 };
            assert!(is_close(&tasks.exact(), quiet), "{share}: {:?}", tasks.exact());
        }
        assert!(unknown > 0);
        let half = Beside { share: 0.5, packets: 0.0, change: 1.0 };
        assert!(reason(&half.ticks()).starts_with("other programs took 50%"), "{:?}", half.ticks());
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
