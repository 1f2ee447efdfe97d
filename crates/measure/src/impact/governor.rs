//! Computes the rest after a pulse and between its requests, so that the average load stays
//! below the bound.

use std::collections::VecDeque;
use std::time::Duration;

use load::MOST_REST;
use netstate::cpu::CpuTicks;
use results::stats::median;

use super::Impact;

/// Minimum part of the share, for a host that suffers or whose CPUs are never idle.
const LEAST: f64 = 1.0 / 64.0;
/// Minimum ticks of all CPUs for an idle estimate.
const ENOUGH_TICKS: f64 = 20.0;
/// Pulses without harm after which the share is doubled again.
const RECOVERY: u32 = 5;
/// Maximum rest. A pulse whose load needs a longer one gets this rest.
const LONGEST: Duration = Duration::from_secs(60);
/// Minimum number of requests that a pulse has room for: its figure is their median.
const REQUESTS: u32 = 40;
/// Rest between two requests until the first pulse has shown their cost.
const FIRST: Duration = Duration::from_millis(1);
/// Number of pulses for medians of the cost of a request, and of a machine's CPU time beyond
/// that of its rests. A single pulse with busier neighbours moves neither.
pub(crate) const REMEMBERED: usize = 9;
/// Size of the smallest frame on the wire, preamble and gap included, bytes. Converts packets to
/// a share of the link.
const SMALLEST_FRAME: f64 = 84.0;

/// Index of this machine among a run's machines; other servers' machines follow.
pub(crate) const HERE: usize = 0;

/// Load of one pulse.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Pulse {
    /// From begin to end, set-up included.
    pub seconds: f64,
    /// CPU time of the test by machine, softirqs included. Also that of the rest before, if
    /// settings are changed.
    pub cpus: Vec<(usize, CpuTime)>,
    /// Sent and received on the client's device.
    pub bits: f64,
    pub packets: f64,
    /// Answered requests.
    pub transactions: f64,
}

/// CPU time of the test on one machine, seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct CpuTime {
    /// During the pulse.
    pub pulse_s: f64,
    /// During the rest before.
    pub before_s: f64,
}

/// One machine of a run.
#[derive(Debug)]
pub(crate) struct Side {
    cpus: f64,
    /// CPU time of the whole machine during the last rests.
    rests: VecDeque<CpuTicks>,
    /// CPU seconds per request in the last pulses, set-up included.
    costs: VecDeque<f64>,
    /// CPU seconds of the test so far.
    taken_s: f64,
    /// Whether it has suffered from a pulse.
    suffered: bool,
}

impl Side {
    /// Creates a machine with this number of CPUs.
    fn new(cpus: usize) -> Side {
        Side {
            cpus: cpus.max(1) as f64,
            rests: VecDeque::with_capacity(REMEMBERED),
            costs: VecDeque::with_capacity(REMEMBERED),
            taken_s: 0.0,
            suffered: false,
        }
    }

    /// Returns the part of CPU time that other programs leave, 0..1; `None` if unknown.
    fn known_idle(&self) -> Option<f64> {
        // Use floats: ticks come from another machine, which may send any value.
        let sum = |of: fn(&CpuTicks) -> u64| self.rests.iter().map(|rest| of(rest) as f64).sum();
        let (total, idle, waits): (f64, f64, f64) =
            (sum(CpuTicks::total), sum(|ticks| ticks.idle), sum(|ticks| ticks.iowait));
        // Too few ticks are no estimate.
        (total >= ENOUGH_TICKS).then(|| ((idle + waits) / total).clamp(0.0, 1.0))
    }

    /// Like [`Self::known_idle`], but 1 if unknown.
    fn idle(&self) -> f64 {
        self.known_idle().unwrap_or(1.0)
    }

    /// Returns the maximum part of all its CPUs for the test, 0..1, with `part` of `share`.
    fn bound(&self, share: f64, part: f64) -> f64 {
        share * (part * self.idle().powi(2)).max(LEAST)
    }

    /// Like [`Self::bound`], in CPU seconds per second.
    fn allowed(&self, share: f64, part: f64) -> f64 {
        self.cpus * self.bound(share, part)
    }
}

/// Computes the rests of a run.
#[derive(Debug)]
pub(crate) struct Governor {
    share: f64,
    /// Part of the share in use.
    part: f64,
    /// The machines of the run, this one at [`HERE`].
    sides: Vec<Side>,
    /// Speed of the slowest known link, bits/s; `None` if no device reports one.
    link: Option<f64>,
    /// Maximum rest between two requests.
    longest: Duration,
    /// Pulses since the last harm.
    unharmed: u32,
    backed_off: u32,
    /// Duration of all pulses so far.
    seconds: f64,
    bits: f64,
    rested: f64,
}

impl Governor {
    /// Creates a governor for pulses that measure for `duration`. `cpus` is the number of CPUs of
    /// each machine, this one at [`HERE`].
    pub fn new(impact: Impact, cpus: &[usize], link: Option<f64>, duration: Duration) -> Governor {
        Governor {
            share: impact.share,
            part: 1.0,
            sides: cpus.iter().copied().map(Side::new).collect(),
            link,
            longest: (duration / REQUESTS).min(MOST_REST),
            unharmed: 0,
            backed_off: 0,
            seconds: 0.0,
            bits: 0.0,
            rested: 0.0,
        }
    }

    /// Returns the rest after a pulse. `harmed` are the machines that suffered during it.
    pub fn rest(&mut self, pulse: &Pulse, harmed: &[usize]) -> Duration {
        // Recover slowly, but back off at once.
        if harmed.is_empty() {
            self.unharmed += 1;
            if self.unharmed.is_multiple_of(RECOVERY) {
                self.part = (self.part * 2.0).min(1.0);
            }
        } else {
            self.part = (self.part / 2.0).max(LEAST);
            self.unharmed = 0;
            self.backed_off += 1;
            harmed.iter().for_each(|at| self.sides[*at].suffered = true);
        }
        // Without a known link speed, CPU time alone bounds the test.
        let mut whole = self.link.map_or(0.0, |link| {
            let bits = pulse.bits.max(pulse.packets * SMALLEST_FRAME * 8.0);
            bits / (link * self.share * self.part)
        });
        for (at, time) in &pulse.cpus {
            let side = &mut self.sides[*at];
            // If nothing was answered, the cost per request is unknown.
            if pulse.transactions > 0.0 {
                remember(&mut side.costs, time.pulse_s / pulse.transactions);
            }
            let cpu_s = time.pulse_s + time.before_s;
            side.taken_s += cpu_s;
            whole = whole.max(cpu_s / side.allowed(self.share, self.part));
        }
        // The pulse itself counts toward the time over which the load is averaged.
        let rest = (whole - pulse.seconds).clamp(0.0, LONGEST.as_secs_f64());
        self.seconds += pulse.seconds;
        self.bits += pulse.bits;
        self.rested += rest;
        Duration::from_secs_f64(rest)
    }

    /// Records a machine's CPU time during a rest.
    pub fn rested(&mut self, at: usize, ticks: CpuTicks) {
        remember(&mut self.sides[at].rests, ticks);
    }

    /// Returns the part of a machine's CPU time that other programs use, 0..1, by the last rests.
    pub fn others(&self, at: usize) -> Option<f64> {
        self.sides[at].known_idle().map(|idle| 1.0 - idle)
    }

    /// Returns the rest between an answer and the next request that keeps a pulse below the share
    /// of each machine by itself. Ignores the time of the answer, which lowers the load further.
    pub fn between(&self) -> Duration {
        let of = |side: &Side| Some(median_of(&side.costs)? / side.allowed(self.share, self.part));
        let Some(seconds) = self.sides.iter().filter_map(of).reduce(f64::max) else {
            // No pulse has shown the cost of a request yet.
            return FIRST.min(self.longest);
        };
        Duration::try_from_secs_f64(seconds).unwrap_or(self.longest).min(self.longest)
    }

    /// Describes the actual load, for the results.
    pub fn said(&self) -> Option<String> {
        let seconds = self.seconds + self.rested;
        // No pulse has run.
        if seconds <= 0.0 {
            return None;
        }
        let (here, servers) = self.sides.split_first()?;
        let taken = |side: &Side| side.taken_s / (seconds * side.cpus) * 100.0;
        let bound = |side: &Side| {
            let (bound, idle) = (side.bound(self.share, self.part), side.idle());
            let (bound, idle) = (bound * 100.0, idle * 100.0);
            format!("final bound {bound:.3}% of CPU time, other programs left {idle:.0}%")
        };
        let link = self.link.map_or(String::new(), |link| {
            format!(" and {:.2}% of the link", self.bits / (seconds * link) * 100.0)
        });
        let mut said = format!(
            "the test took {:.2}% of all CPUs{link} on average (--impact {:.3}%: {})",
            taken(here),
            self.share * 100.0,
            bound(here)
        );
        for side in servers {
            let (taken, bound) = (taken(side), bound(side));
            said.push_str(&format!("; it took {taken:.2}% of the server's CPUs ({bound})"));
        }
        if self.backed_off > 0 {
            let who = match (here.suffered, servers.iter().any(|side| side.suffered)) {
                (true, true) => "traffic of the host and of the server",
                (true, false) => "the host's own traffic",
                (false, _) => "the server's own traffic",
            };
            let times = match self.backed_off {
                1 => "once".to_owned(),
                more => format!("{more} times"),
            };
            said.push_str(&format!("; it reduced its load {times} because {who} was disturbed"));
        }
        Some(said)
    }
}

/// Appends a value, keeping the last [`REMEMBERED`].
pub(crate) fn remember<T>(last: &mut VecDeque<T>, one: T) {
    if last.len() == REMEMBERED {
        last.pop_front();
    }
    last.push_back(one);
}

pub(crate) fn median_of(last: &VecDeque<f64>) -> Option<f64> {
    median(&Vec::from_iter(last.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: f64 = 4.0;
    const LINK: f64 = 1e9;
    /// The server's machine, with one CPU.
    const SERVER: usize = 1;

    fn governor(share: f64) -> Governor {
        Governor::new(Impact { share }, &[4], Some(LINK), Impact::PULSE)
    }

    fn with_server(share: f64) -> Governor {
        Governor::new(Impact { share }, &[4, 1], Some(LINK), Impact::PULSE)
    }

    fn here(pulse_s: f64) -> Vec<(usize, CpuTime)> {
        vec![(HERE, CpuTime { pulse_s, before_s: 0.0 })]
    }

    #[test]
    fn cpu_packets_and_bits_stay_below_their_share_over_any_pulses() {
        for share in [0.01, 0.05, 0.2] {
            let mut governor = with_server(share);
            let (mut seconds, mut cpu_s, mut bits, mut packets) = (0.0, [0.0, 0.0], 0.0, 0.0);
            for at in 0..200_u32 {
                let kind = f64::from(at % 7) + 1.0;
                let before_s = 0.01 * f64::from(at % 2);
                let server_s = 0.004 * f64::from(at % 4);
                let pulse = Pulse {
                    seconds: 0.02 * kind,
                    cpus: vec![
                        (HERE, CpuTime { pulse_s: 0.03 * kind, before_s }),
                        (SERVER, CpuTime { pulse_s: server_s, before_s: 0.0 }),
                    ],
                    bits: 4e6 * f64::from(at % 5),
                    packets: 3000.0 * f64::from(at % 3),
                    transactions: 100.0,
                };
                let harmed: &[usize] = if at % 11 == 0 { &[HERE] } else { &[] };
                let rest = governor.rest(&pulse, harmed).as_secs_f64();
                seconds += pulse.seconds + rest;
                for (at, time) in &pulse.cpus {
                    cpu_s[*at] += time.pulse_s + time.before_s;
                }
                bits += pulse.bits;
                packets += pulse.packets;
            }
            assert!(cpu_s[HERE] / (seconds * CPUS) <= share * 1.0001, "{share}");
            assert!(cpu_s[SERVER] / seconds <= share * 1.0001, "{share}");
            assert!(bits / (seconds * LINK) <= share * 1.0001, "{share}");
            assert!(packets * 84.0 * 8.0 / (seconds * LINK) <= share * 1.0001, "{share}");
        }
    }

    /// The same pulse takes a larger part of the server's one CPU than of four CPUs here.
    #[test]
    fn a_smaller_machine_of_the_server_s_is_what_bounds_the_test() {
        let pulse = |cpus| Pulse { seconds: 0.25, cpus, transactions: 100.0, ..Pulse::default() };
        let time = CpuTime { pulse_s: 0.1, before_s: 0.0 };
        let mut alone = governor(0.05);
        let mut both = with_server(0.05);
        let shorter = alone.rest(&pulse(vec![(HERE, time)]), &[]).as_secs_f64();
        let longer = both.rest(&pulse(vec![(HERE, time), (SERVER, time)]), &[]).as_secs_f64();
        assert!(((longer + 0.25) / (shorter + 0.25) - 4.0).abs() < 1e-9, "{shorter} {longer}");
        assert!(both.between() > alone.between());
        let said = both.said().unwrap();
        let there = "; it took 5.00% of the server's CPUs (final bound 5.000% of CPU time, other \
                     programs left 100%)";
        assert!(
            said.starts_with("the test took 1.25% of all CPUs") && said.contains(there),
            "{said}"
        );
        // Its CPUs are half as idle as here: a quarter of the share.
        both.rested(HERE, ticks(400, 400));
        both.rested(SERVER, ticks(200, 400));
        let longest = both.rest(&pulse(vec![(HERE, time), (SERVER, time)]), &[]).as_secs_f64();
        assert!(((longest + 0.25) / (longer + 0.25) - 4.0).abs() < 1e-9, "{longer} {longest}");
        assert_eq!((both.others(HERE), both.others(SERVER)), (Some(0.0), Some(0.5)));
    }

    #[test]
    fn the_disturbed_host_is_named() {
        let nothing = Pulse { seconds: 0.1, ..Pulse::default() };
        for (harmed, said) in [
            (vec![HERE], "; it reduced its load once because the host's own traffic was disturbed"),
            (
                vec![SERVER],
                "; it reduced its load once because the server's own traffic was \
                disturbed",
            ),
            (
                vec![HERE, SERVER],
                "; it reduced its load once because traffic of the host and of the server was \
                 disturbed",
            ),
        ] {
            let mut governor = with_server(0.05);
            governor.rest(&nothing, &harmed);
            assert!(governor.said().unwrap().ends_with(said), "{:?}", governor.said());
        }
    }

    /// Another machine may send values that make no sense.
    #[test]
    fn a_server_that_says_anything_ends_nothing() {
        let mut governor = with_server(0.05);
        for value in [f64::INFINITY, f64::NAN, -1e300, 1e300] {
            let time = CpuTime { pulse_s: value, before_s: 0.0 };
            let cpus = vec![(HERE, CpuTime::default()), (SERVER, time)];
            let pulse = Pulse { seconds: 0.25, cpus, transactions: 1.0, ..Pulse::default() };
            governor
                .rested(SERVER, CpuTicks { user: u64::MAX, idle: u64::MAX, ..CpuTicks::default() });
            assert!(governor.rest(&pulse, &[]) <= LONGEST);
            assert!(governor.between() <= governor.longest);
            assert!(governor.said().is_some());
        }
        assert!(
            Governor::new(Impact { share: 0.05 }, &[4, 0], None, Impact::PULSE).sides[SERVER].cpus
                >= 1.0
        );
    }

    #[test]
    fn requests_rest_so_that_a_pulse_stays_below_the_share_by_itself() {
        for (share, cost) in [(0.05, 80e-6), (0.01, 80e-6), (0.5, 20e-6)] {
            let mut governor = governor(share);
            assert_eq!(governor.between(), FIRST);
            for at in 0..20 {
                // Now and then the machine is busier with other work.
                let others = if at % 4 == 0 { 0.2 } else { 0.0 };
                let each = governor.between().as_secs_f64() + 100e-6;
                let transactions = Impact::PULSE.as_secs_f64() / each;
                let cpu_s = cost * transactions + others;
                let pulse =
                    Pulse { seconds: 0.25, cpus: here(cpu_s), transactions, ..Pulse::default() };
                governor.rest(&pulse, &[]);
            }
            let each = governor.between().as_secs_f64() + 100e-6;
            let taken = cost / each / CPUS;
            // Or the minimum number for a median, with a rest after the pulse.
            let most = governor.between() == Impact::PULSE / REQUESTS;
            assert!(taken <= share || most, "{share}: {taken} every {each} s");
            assert!(taken >= share * 0.5 || share > 0.3, "{share}: {taken} every {each} s");
        }
    }

    /// Waiting for I/O is idle, too.
    fn ticks(idle: u64, total: u64) -> CpuTicks {
        let iowait = idle / 2;
        CpuTicks { idle: idle - iowait, iowait, user: total - idle, ..CpuTicks::default() }
    }

    #[test]
    fn the_share_of_cpus_falls_with_the_square_of_what_others_leave() {
        let pulse = Pulse { seconds: 0.1, cpus: here(0.1), transactions: 10.0, ..Pulse::default() };
        let rest_at = |idle, total| {
            let mut governor = governor(0.05);
            governor.rested(HERE, ticks(idle, total));
            let rest = governor.rest(&pulse, &[]).as_secs_f64();
            (rest + pulse.seconds, governor.said().unwrap())
        };
        let (at_rest, said) = rest_at(400, 400);
        assert!(
            said.contains("5.000%: final bound 5.000% of CPU time, other programs left 100%)"),
            "{said}"
        );
        let (half, said) = rest_at(200, 400);
        assert!((half / at_rest - 4.0).abs() < 1e-9, "{half} {at_rest}");
        assert!(
            said.contains("5.000%: final bound 1.250% of CPU time, other programs left 50%)"),
            "{said}"
        );
        // Never idle; and a rest that is too short for an estimate.
        let (never, said) = rest_at(0, 400);
        assert!((never / at_rest - 64.0).abs() < 1e-9);
        assert!(
            said.contains("5.000%: final bound 0.078% of CPU time, other programs left 0%)"),
            "{said}"
        );
        assert!((rest_at(0, ENOUGH_TICKS as u64 - 1).0 / at_rest - 1.0).abs() < 1e-9);
        // Only the last rests count.
        let mut governor = governor(0.05);
        governor.rested(HERE, ticks(0, 1000));
        (0..REMEMBERED).for_each(|_| governor.rested(HERE, ticks(30, 40)));
        assert!((governor.sides[HERE].idle() - 0.75).abs() < 1e-9);
    }

    #[test]
    fn a_host_that_suffers_is_asked_less_often_within_a_pulse_too() {
        let mut governor = governor(0.05);
        let pulse =
            Pulse { seconds: 0.25, cpus: here(0.05), transactions: 500.0, ..Pulse::default() };
        governor.rest(&pulse, &[]);
        let usual = governor.between();
        governor.rest(&pulse, &[HERE]);
        assert_eq!(governor.between(), usual * 2);
        // Nothing was answered: nothing is learned or forgotten.
        governor.rest(&Pulse { seconds: 0.25, cpus: here(0.05), ..Pulse::default() }, &[HERE]);
        assert_eq!(governor.between(), usual * 4);
    }

    #[test]
    fn harm_halves_the_share_and_it_comes_back_slowly() {
        let mut governor = governor(0.05);
        let pulse = Pulse { seconds: 0.05, cpus: here(0.05), ..Pulse::default() };
        let usual = governor.rest(&pulse, &[]);
        let harmed = governor.rest(&pulse, &[HERE]);
        assert!(harmed > usual * 2, "{harmed:?} after {usual:?}");
        let longest = (0..20).map(|_| governor.rest(&pulse, &[HERE])).max().unwrap();
        assert!(longest <= LONGEST && longest < usual * 80, "{longest:?}");
        let rests: Vec<Duration> = (0..30).map(|_| governor.rest(&pulse, &[])).collect();
        assert!(rests[3] == longest && rests[29] == usual, "{rests:?}");
        assert!(
            governor.said().unwrap().contains("reduced its load 21 times"),
            "{:?}",
            governor.said()
        );
    }

    /// One deviation among nine values does not change the median.
    #[test]
    fn the_remembered_value_is_the_median_of_the_last() {
        let mut last = VecDeque::new();
        assert_eq!(median_of(&last), None);
        for (one, middle) in [(8.0, 8.0), (2.0, 5.0), (4.0, 4.0), (-6.0, 3.0)] {
            remember(&mut last, one);
            assert_eq!(median_of(&last), Some(middle));
        }
        (0..REMEMBERED).for_each(|at| remember(&mut last, at as f64));
        assert_eq!((last.len(), median_of(&last)), (REMEMBERED, Some(4.0)));
    }

    #[test]
    fn a_pulse_of_nothing_needs_no_rest() {
        let pulse = Pulse { seconds: 0.05, ..Pulse::default() };
        assert_eq!(governor(0.05).rest(&pulse, &[]), Duration::ZERO);
    }
}
