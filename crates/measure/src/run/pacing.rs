//! Pulses and rests of a run, by the counters of its machines.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use netstate::cpu::CpuTicks;

use crate::impact::{CpuTime, Governor, HERE, Impact, Pulse, REMEMBERED, median_of, remember};
use crate::path_under_test::PathUnderTest;
use crate::remote::Remote;
use crate::sampler::{Fare, HostCounters, Rates, link_speed, suffers};

/// Most CPU time of softirqs that is the test's, for each second of its own.
const SOFTIRQS: f64 = 2.0;

/// One machine of a run, watched from pulse to pulse.
#[derive(Debug)]
struct Watched {
    /// The boot of its kernel, where it is a server's machine: one machine has one.
    boot: Option<String>,
    /// What waited before the run.
    waiting: f64,
    /// When its last rest began, and its counters then; `None`: it did not say.
    rest: Option<(Instant, Fare)>,
    /// CPU seconds that the whole machine had in the last pulses more than in rests.
    machine: VecDeque<f64>,
}

/// How a machine fared when a pulse began, and in the rest before.
#[derive(Debug, Clone, Copy)]
struct Before {
    fare: Fare,
    resting: Rates,
}

impl Watched {
    /// What comes before the first pulse is a rest, too.
    fn resting(boot: Option<&str>, fare: Fare) -> Watched {
        Watched {
            boot: boot.map(str::to_owned),
            waiting: fare.waiting,
            rest: Some((Instant::now(), fare)),
            machine: VecDeque::with_capacity(REMEMBERED),
        }
    }

    /// What it says at the end of a rest, and its CPU time in it. `None` where it did not say at
    /// the beginning: nothing tells what is usual in a rest.
    fn begin(&self, fare: Fare) -> Option<(Before, Option<CpuTicks>)> {
        let (since, then) = self.rest.as_ref()?;
        let resting = Rates::between(then, &fare, since.elapsed().as_secs_f64());
        let ticks = fare.ticks.zip(then.ticks).map(|(now, then)| now.since(&then));
        Some((Before { fare, resting }, ticks))
    }

    /// What it says at the end of a pulse, and of so many seconds of CPU time more than in
    /// rests: whether it suffered.
    fn end(
        &mut self,
        begun: Option<&Before>,
        fare: Option<Fare>,
        more_s: Option<f64>,
        seconds: f64,
    ) -> bool {
        more_s.into_iter().for_each(|seconds| remember(&mut self.machine, seconds));
        self.rest = fare.map(|fare| (Instant::now(), fare));
        begun.zip(fare).is_some_and(|(begun, fare)| {
            suffers(&begun.fare, &fare, &begun.resting, self.waiting, seconds)
        })
    }

    /// CPU seconds of a pulse: the middle of the last ones.
    fn machine_s(&self) -> f64 {
        median_of(&self.machine).unwrap_or(0.0).max(0.0)
    }
}

/// Pulses and rests of a run.
#[derive(Debug)]
pub(crate) struct Pacing {
    governor: Governor,
    counters: HostCounters,
    /// This machine at [`HERE`], then each other one that a server is on.
    watched: Vec<Watched>,
    /// Own CPU time when the last rest began.
    cpu: Duration,
    /// When the next pulse may begin.
    due: Option<Instant>,
    /// Why a server's machine is not watched: it is gone before the run begins.
    unwatched: Option<String>,
}

/// What the counters say that a pulse took, warm-up included.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Took {
    /// CPU time of softirqs and interrupts, seconds.
    pub kernel_s: f64,
    /// CPU time of the whole machine less what it spends otherwise, seconds; negative where
    /// others had less. `None` where nothing was measured.
    pub machine_s: Option<f64>,
    /// The same of the server's machine, where it is another.
    pub peer_s: Option<f64>,
    /// Over the client's device, both ways.
    pub bits: f64,
    pub packets: f64,
    /// Answered.
    pub transactions: f64,
}

/// A pulse that has begun.
pub(crate) struct Begun {
    at: Instant,
    here: Option<Before>,
    /// The server's machine, and what it said.
    there: Option<(usize, Option<Before>)>,
    cpu: Duration,
    /// CPU time of the rest before.
    before: Duration,
}

impl Pacing {
    /// Over these paths, of pulses that measure for `duration`. A server on another machine is
    /// asked how that fares.
    pub fn new(impact: Impact, subjects: &[PathUnderTest], duration: Duration) -> Pacing {
        // Where their number is not known, one makes the share smallest and the rests longest.
        let mut cpus = vec![std::thread::available_parallelism().map_or(1, usize::from)];
        let counters = HostCounters::open();
        let mut watched = vec![Watched::resting(None, counters.fare())];
        let mut unwatched = None;
        // The lab's wires have no speed; a device of this namespace may have one.
        let devices = subjects.iter().filter(|subject| subject.remote().is_some());
        let mut speeds: Vec<f64> =
            devices.filter_map(|subject| link_speed(&subject.hops.first()?.device)).collect();
        for remote in subjects.iter().filter_map(PathUnderTest::remote) {
            if remote.is_same_machine() || position(&watched, remote).is_some() {
                continue;
            }
            match remote.fare() {
                Ok((fare, speed)) => {
                    speeds.extend(speed.filter(|speed| *speed > 0.0));
                    cpus.push(remote.machine().cpus);
                    watched.push(Watched::resting(Some(remote.boot()), fare));
                }
                Err(error) => unwatched = Some(error.to_string()),
            }
        }
        let governor = Governor::new(impact, &cpus, speeds.into_iter().reduce(f64::min), duration);
        Pacing { governor, counters, watched, cpu: own_cpu(), due: None, unwatched }
    }

    /// Rest between an answer and the next request, in the next pulse.
    pub fn between(&self) -> Duration {
        self.governor.between()
    }

    /// Part of this machine's CPU time that others have, 0..1, by the last rests.
    pub fn others(&self) -> Option<f64> {
        self.governor.others(HERE)
    }

    /// The same of a server's machine.
    pub fn others_at(&self, remote: &Remote) -> Option<f64> {
        self.governor.others(position(&self.watched, remote)?)
    }

    /// How long there is to rest still.
    pub fn left(&self) -> Duration {
        let due = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        due.unwrap_or_default()
    }

    /// Reads the counters of both machines before a pulse, those of this one last.
    pub fn begin(&mut self, remote: Option<&Remote>) -> Begun {
        let there = remote.and_then(|remote| Some((position(&self.watched, remote)?, remote)));
        // A server that is gone does not say; the sample tells why.
        let there = there.map(|(at, remote)| {
            (at, remote.fare().ok().and_then(|(fare, _)| self.end_of_rest(at, fare)))
        });
        let here = self.end_of_rest(HERE, self.counters.fare());
        let cpu = own_cpu();
        Begun { at: Instant::now(), here, there, cpu, before: cpu.saturating_sub(self.cpu) }
    }

    fn end_of_rest(&mut self, at: usize, fare: Fare) -> Option<Before> {
        let (before, ticks) = self.watched[at].begin(fare)?;
        ticks.into_iter().for_each(|ticks| self.governor.rested(at, ticks));
        Some(before)
    }

    /// Reads the counters after a pulse, and sets the time of the next one.
    pub fn end(&mut self, begun: &Begun, took: &Took, remote: Option<&Remote>) {
        let fare = self.counters.fare();
        let seconds = begun.at.elapsed().as_secs_f64();
        self.cpu = own_cpu();
        let own = self.cpu.saturating_sub(begun.cpu).as_secs_f64();
        // Softirqs are the whole machine's, and others' traffic is among them.
        let own = own + took.kernel_s.min(own * SOFTIRQS);
        let here = &mut self.watched[HERE];
        let mut harmed = Vec::new();
        if here.end(begun.here.as_ref(), Some(fare), took.machine_s, seconds) {
            harmed.push(HERE);
        }
        // The machine's time has what other processes of the test took: a server, a
        // tunnel in user space.
        let pulse_s = own.max(here.machine_s());
        let mut cpus = vec![(HERE, CpuTime { pulse_s, before_s: begun.before.as_secs_f64() })];
        if let (Some((at, before)), Some(remote)) = (&begun.there, remote) {
            let fare = remote.fare().ok().map(|(fare, _)| fare);
            let there = &mut self.watched[*at];
            if there.end(before.as_ref(), fare, took.peer_s, seconds) {
                harmed.push(*at);
            }
            // What its rests take is not told apart from what others take there.
            cpus.push((*at, CpuTime { pulse_s: there.machine_s(), before_s: 0.0 }));
        }
        let Took { bits, packets, transactions, .. } = *took;
        let rest =
            self.governor.rest(&Pulse { seconds, cpus, bits, packets, transactions }, &harmed);
        self.due = Some(Instant::now() + rest);
    }

    /// What was kept to.
    pub fn said(&self) -> Option<String> {
        let mut said = self.governor.said()?;
        if let Some(reason) = &self.unwatched {
            said.push_str(&format!("; nothing bounds it on the server's machine: {reason}"));
        }
        Some(said)
    }
}

/// Which machine a server is on; `None` where that is not watched, or is this one.
fn position(watched: &[Watched], remote: &Remote) -> Option<usize> {
    watched.iter().position(|one| one.boot.as_deref() == Some(remote.boot()))
}

/// CPU time of this process, all threads, and of the programs that it has waited for: settings
/// are changed by some.
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

    fn fare(idle: u64, busy: u64) -> Fare {
        let ticks = Some(CpuTicks { idle, user: busy, ..CpuTicks::default() });
        Fare { ticks, ..Fare::default() }
    }

    #[test]
    fn a_machine_that_does_not_say_has_no_rest_and_suffers_nothing() {
        let mut watched = Watched::resting(None, fare(100, 10));
        let (before, ticks) = watched.begin(fare(160, 20)).unwrap();
        assert_eq!(ticks.unwrap().idle, 60);
        assert!(!watched.end(Some(&before), None, None, 0.1));
        assert!(watched.begin(fare(200, 30)).is_none());
        assert!(watched.machine_s() == 0.0);
        // Said again: the next rest is known.
        assert!(!watched.end(None, Some(fare(210, 31)), Some(-0.1), 0.1));
        let (before, ticks) = watched.begin(fare(220, 35)).unwrap();
        assert_eq!((ticks.unwrap().user, watched.machine_s()), (4, 0.0));
        let dropping = Fare { drops: 5.0, ..fare(230, 36) };
        assert!(watched.end(Some(&before), Some(dropping), Some(0.3), 0.1));
        assert!((watched.machine_s() - 0.1).abs() < 1e-9, "the middle of -0.1 and 0.3");
    }
}
