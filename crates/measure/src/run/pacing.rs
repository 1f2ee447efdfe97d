//! Pulses and rests of a run, by the counters of its machines.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use netstate::cpu::CpuTicks;

use crate::impact::{CpuTime, Governor, HERE, Impact, Pulse, REMEMBERED, median_of, remember};
use crate::path_under_test::PathUnderTest;
use crate::remote::Remote;
use crate::sampler::{HostCounters, HostLoad, Rates, link_speed, suffers};

/// Maximum softirq CPU time attributed to the test, per second of its own CPU time.
const SOFTIRQS: f64 = 2.0;

/// One machine of a run, observed across pulses.
#[derive(Debug)]
struct Watched {
    /// Boot ID of a server's machine, which identifies it; `None` for this machine.
    boot: Option<String>,
    /// Waiting share before the run.
    waiting: f64,
    /// Start of its last rest and its counters then; `None` if unknown.
    rest: Option<(Instant, HostLoad)>,
    /// CPU seconds of the whole machine in the last pulses beyond those of rests.
    machine: VecDeque<f64>,
}

/// State of a machine at the start of a pulse, and during the rest before.
#[derive(Debug, Clone, Copy)]
struct Before {
    load: HostLoad,
    resting: Rates,
}

impl Watched {
    /// Creates a machine at rest: the time before the first pulse counts as a rest.
    fn resting(boot: Option<&str>, load: HostLoad) -> Watched {
        Watched {
            boot: boot.map(str::to_owned),
            waiting: load.waiting,
            rest: Some((Instant::now(), load)),
            machine: VecDeque::with_capacity(REMEMBERED),
        }
    }

    /// Processes its counters at the end of a rest, and returns its CPU time in it. `None` without
    /// counters from the start of the rest: nothing shows what is usual.
    fn begin(&self, load: HostLoad) -> Option<(Before, Option<CpuTicks>)> {
        let (since, then) = self.rest.as_ref()?;
        let resting = Rates::between(then, &load, since.elapsed().as_secs_f64());
        let ticks = load.ticks.zip(then.ticks).map(|(now, then)| now.since(&then));
        Some((Before { load, resting }, ticks))
    }

    /// Processes its counters at the end of a pulse and the CPU time beyond that of rests. Returns
    /// whether it suffered.
    fn end(
        &mut self,
        begun: Option<&Before>,
        load: Option<HostLoad>,
        more_s: Option<f64>,
        seconds: f64,
    ) -> bool {
        more_s.into_iter().for_each(|seconds| remember(&mut self.machine, seconds));
        self.rest = load.map(|load| (Instant::now(), load));
        begun.zip(load).is_some_and(|(begun, load)| {
            suffers(&begun.load, &load, &begun.resting, self.waiting, seconds)
        })
    }

    /// Returns the CPU seconds of a pulse: the median of the last ones.
    fn machine_s(&self) -> f64 {
        median_of(&self.machine).unwrap_or(0.0).max(0.0)
    }
}

/// Pulses and rests of a run.
#[derive(Debug)]
pub(crate) struct RestPacing {
    governor: Governor,
    counters: HostCounters,
    /// This machine at [`HERE`], then the machines of other servers.
    watched: Vec<Watched>,
    /// Own CPU time at the start of the last rest.
    cpu: Duration,
    /// Earliest start of the next pulse.
    due: Option<Instant>,
    /// Reason why a server's machine is not observed: it was gone before the run began.
    unwatched: Option<String>,
}

/// Load of a pulse by the counters, warm-up included.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Took {
    /// CPU time of softirqs and interrupts, seconds.
    pub kernel_s: f64,
    /// CPU time of the whole machine beyond its usual use, seconds; negative if other programs
    /// used less. `None` if nothing was measured.
    pub machine_s: Option<f64>,
    /// The same for the server's machine, if it is another one.
    pub peer_s: Option<f64>,
    /// Traffic of the client's device in both directions.
    pub bits: f64,
    pub packets: f64,
    /// Answered requests.
    pub transactions: f64,
}

/// A pulse that has begun.
pub(crate) struct Begun {
    at: Instant,
    here: Option<Before>,
    /// The server's machine, and its state.
    there: Option<(usize, Option<Before>)>,
    cpu: Duration,
    /// CPU time of the rest before.
    before: Duration,
}

impl RestPacing {
    /// Creates the pacing of these paths for pulses that measure for `duration`. Servers on other
    /// machines are asked for their counters.
    pub fn new(impact: Impact, subjects: &[PathUnderTest], duration: Duration) -> RestPacing {
        // If the number is unknown, assume one CPU: the smallest share and the longest rests.
        let mut cpus = vec![std::thread::available_parallelism().map_or(1, usize::from)];
        let counters = HostCounters::open();
        let mut watched = vec![Watched::resting(None, counters.host_load())];
        let mut unwatched = None;
        // The lab's wires have no speed, but a device of this namespace may.
        let devices = subjects.iter().filter(|subject| subject.remote().is_some());
        let mut speeds: Vec<f64> =
            devices.filter_map(|subject| link_speed(&subject.hops.first()?.device)).collect();
        for remote in subjects.iter().filter_map(PathUnderTest::remote) {
            // This machine, or one that is already observed.
            if remote.is_same_machine() || position(&watched, remote).is_some() {
                continue;
            }
            match remote.host_load() {
                Ok((load, speed)) => {
                    speeds.extend(speed.filter(|speed| *speed > 0.0));
                    cpus.push(remote.machine().cpus);
                    watched.push(Watched::resting(Some(remote.boot()), load));
                }
                // Measure anyway; a note says that the machine is not bounded.
                Err(error) => unwatched = Some(error.to_string()),
            }
        }
        let governor = Governor::new(impact, &cpus, speeds.into_iter().reduce(f64::min), duration);
        RestPacing { governor, counters, watched, cpu: own_cpu(), due: None, unwatched }
    }

    /// Returns the rest between an answer and the next request in the next pulse.
    pub fn between(&self) -> Duration {
        self.governor.between()
    }

    /// Returns the part of this machine's CPU time that other programs use, by the last rests.
    pub fn others(&self) -> Option<f64> {
        self.governor.others(HERE)
    }

    /// Returns the same for a server's machine.
    pub fn others_at(&self, remote: &Remote) -> Option<f64> {
        self.governor.others(position(&self.watched, remote)?)
    }

    /// Returns the remaining rest.
    pub fn left(&self) -> Duration {
        let due = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        due.unwrap_or_default()
    }

    /// Reads the counters of both machines before a pulse, this one's last.
    pub fn begin(&mut self, remote: Option<&Remote>) -> Begun {
        let there = remote.and_then(|remote| Some((position(&self.watched, remote)?, remote)));
        // A lost server does not answer; the sample will report the reason.
        let there = there.map(|(at, remote)| {
            (at, remote.host_load().ok().and_then(|(load, _)| self.end_of_rest(at, load)))
        });
        let here = self.end_of_rest(HERE, self.counters.host_load());
        let cpu = own_cpu();
        Begun { at: Instant::now(), here, there, cpu, before: cpu.saturating_sub(self.cpu) }
    }

    fn end_of_rest(&mut self, at: usize, load: HostLoad) -> Option<Before> {
        let (before, ticks) = self.watched[at].begin(load)?;
        ticks.into_iter().for_each(|ticks| self.governor.rested(at, ticks));
        Some(before)
    }

    /// Reads the counters after a pulse, and sets the time of the next one.
    pub fn end(&mut self, begun: &Begun, took: &Took, remote: Option<&Remote>) {
        let load = self.counters.host_load();
        let seconds = begun.at.elapsed().as_secs_f64();
        self.cpu = own_cpu();
        let own = self.cpu.saturating_sub(begun.cpu).as_secs_f64();
        // Softirq time counts the whole machine and includes other traffic, so limit it.
        let own = own + took.kernel_s.min(own * SOFTIRQS);
        let here = &mut self.watched[HERE];
        let mut harmed = Vec::new();
        if here.end(begun.here.as_ref(), Some(load), took.machine_s, seconds) {
            harmed.push(HERE);
        }
        // The machine's time includes other processes of the test: a server, a user-space
        // tunnel.
        let pulse_s = own.max(here.machine_s());
        let mut cpus = vec![(HERE, CpuTime { pulse_s, before_s: begun.before.as_secs_f64() })];
        if let (Some((at, before)), Some(remote)) = (&begun.there, remote) {
            let load = remote.host_load().ok().map(|(load, _)| load);
            let there = &mut self.watched[*at];
            if there.end(before.as_ref(), load, took.peer_s, seconds) {
                harmed.push(*at);
            }
            // On the server's machine, the test's CPU time in rests cannot be separated.
            cpus.push((*at, CpuTime { pulse_s: there.machine_s(), before_s: 0.0 }));
        }
        let Took { bits, packets, transactions, .. } = *took;
        let rest =
            self.governor.rest(&Pulse { seconds, cpus, bits, packets, transactions }, &harmed);
        self.due = Some(Instant::now() + rest);
    }

    /// Describes the actual load, for the results.
    pub fn said(&self) -> Option<String> {
        let mut said = self.governor.said()?;
        if let Some(reason) = &self.unwatched {
            said.push_str(&format!("; the server's machine is not bounded: {reason}"));
        }
        Some(said)
    }
}

/// Returns the index of a server's machine; `None` if it is not observed or is this one.
fn position(watched: &[Watched], remote: &Remote) -> Option<usize> {
    watched.iter().position(|one| one.boot.as_deref() == Some(remote.boot()))
}

/// Returns the CPU time of this process with all threads, and of the programs that it has waited
/// for, some of which change settings.
fn own_cpu() -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::time::{ClockId, clock_gettime};
    let own =
        clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from);
    let micros = |time: nix::sys::time::TimeVal| {
        use nix::sys::time::TimeValLike;
        Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0))
    };
    let programs = getrusage(UsageWho::RUSAGE_CHILDREN);
    own + programs
        .map_or(Duration::ZERO, |used| micros(used.user_time()) + micros(used.system_time()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(idle: u64, busy: u64) -> HostLoad {
        let ticks = Some(CpuTicks { idle, user: busy, ..CpuTicks::default() });
        HostLoad { ticks, ..HostLoad::default() }
    }

    #[test]
    fn a_machine_that_does_not_say_has_no_rest_and_suffers_nothing() {
        let mut watched = Watched::resting(None, load(100, 10));
        let (before, ticks) = watched.begin(load(160, 20)).unwrap();
        assert_eq!(ticks.unwrap().idle, 60);
        assert!(!watched.end(Some(&before), None, None, 0.1));
        assert!(watched.begin(load(200, 30)).is_none());
        assert!(watched.machine_s() == 0.0);
        // With counters again, the next rest is known.
        assert!(!watched.end(None, Some(load(210, 31)), Some(-0.1), 0.1));
        let (before, ticks) = watched.begin(load(220, 35)).unwrap();
        assert_eq!((ticks.unwrap().user, watched.machine_s()), (4, 0.0));
        let dropping = HostLoad { drops: 5.0, ..load(230, 36) };
        assert!(watched.end(Some(&before), Some(dropping), Some(0.3), 0.1));
        assert!((watched.machine_s() - 0.1).abs() < 1e-9, "the middle of -0.1 and 0.3");
    }
}
