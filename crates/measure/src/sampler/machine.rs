//! Sampler of the machine: CPU time by kind, softnet counters and disturbance, over all CPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use netstate::cgroup::{CpuThrottle, Throttled};
use netstate::cpu::{CpuStat, PROC_STAT, user_hz};
use netstate::machine::MachineFacts;
use netstate::proc::ProcFile;
use netstate::process::{Process, ProcessReader};
use netstate::softnet::{PROC_SOFTNET_STAT, SoftnetStat};

use super::attributed::{self, Before};
use super::exact::{ExactClock, ExactReading};
use super::{Attributed, Consumer, CpuBusy, Disturbance, Result, SamplerError, Survey, split};
use results::{self, CpuClock, Privileges};

/// Samples the whole machine. A reading costs a fraction of a millisecond, plus some microseconds
/// per process that is not a kernel thread.
#[derive(Debug)]
pub struct Machine {
    stat: ProcFile,
    softnet: ProcFile,
    throttle: CpuThrottle,
    processes: Mutex<ProcessReader>,
    exact: std::result::Result<ExactClock, String>,
    /// Processes whose descendants belong to the measurement.
    own: Vec<u32>,
    /// CPUs whose disturbance counts; empty: all CPUs.
    focus: BTreeSet<usize>,
    /// CPU time in use before the run, from [`Machine::idle_load`] or [`Machine::survey`].
    before: Mutex<Before>,
    /// Reason why a process of the measurement is unknown to the exact clock.
    unknown: Option<String>,
    user_hz: u64,
}

/// Counters of a [`Machine`] at one moment.
#[derive(Debug, Clone)]
pub struct MachineSnapshot {
    clock: ClockReading,
    softnet: SoftnetStat,
    processes: ProcessReading,
    throttled: Throttled,
}

#[derive(Debug, Clone)]
struct ClockReading {
    at: Instant,
    stat: CpuStat,
    exact: Option<ExactReading>,
}

#[derive(Debug, Clone)]
struct ProcessReading {
    at: Instant,
    foreign: BTreeMap<u32, Foreign>,
}

/// A process outside the measurement.
#[derive(Debug, Clone, PartialEq)]
struct Foreign {
    ticks: u64,
    /// Without the time of children that were waited for.
    own_ticks: u64,
    processor: Option<u32>,
    command: String,
}

/// Counter differences of a [`Machine`] between two readings.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct MachineSample {
    /// CPU seconds of all CPUs by kind.
    pub cpu: results::CpuSeconds,
    /// Wall time between the two readings of the CPU clock, seconds.
    pub seconds: f64,
    /// CPUs that are online.
    pub cpus: usize,
    /// Packets through the network stack, all CPUs.
    pub softnet_processed: u64,
    /// Packets dropped at a full softnet backlog, all CPUs.
    pub softnet_dropped: u64,
    /// Times that the softirq budget ran out, all CPUs.
    pub softnet_squeezed: u64,
    pub disturbance: Disturbance,
    /// CPU time of the load.
    #[serde(default)]
    pub attributed: Attributed,
    /// CPUs that went online or offline between the readings.
    #[serde(default)]
    pub cpus_changed: Vec<usize>,
}

impl MachineSample {
    /// Returns the share of all CPUs' time that was neither idle nor stolen, 0..1.
    pub fn busy_share(&self) -> f64 {
        let total = split::total(&self.cpu);
        if total > 0.0 { split::busy(&self.cpu) / total } else { 0.0 }
    }
}

impl Machine {
    /// Opens the sampler. With `prefer_exact` it uses the exact CPU clock if this machine allows
    /// it; otherwise [`Machine::clock_reason`] gives the reason.
    ///
    /// # Errors
    /// If `/proc` is not mounted, or one of its files has an unknown format.
    pub fn open(prefer_exact: bool) -> Result<Machine> {
        let stat = ProcFile::open(PROC_STAT)?;
        let cpus: Vec<usize> = CpuStat::read(&stat)?.cpus.into_keys().collect();
        let exact =
            if prefer_exact { ExactClock::open(&cpus) } else { Err("not requested".to_owned()) };
        if let Err(reason) = &exact {
            tracing::debug!(reason, "CPU time is counted in ticks");
        }
        Ok(Machine {
            stat,
            softnet: ProcFile::open(PROC_SOFTNET_STAT)?,
            throttle: CpuThrottle::open()?,
            processes: Mutex::default(),
            exact,
            own: vec![own_pid()?],
            focus: BTreeSet::new(),
            before: Mutex::default(),
            unknown: None,
            user_hz: user_hz(),
        })
    }

    /// Clock that counts CPU time.
    pub fn clock(&self) -> CpuClock {
        if self.exact.is_ok() { CpuClock::Exact } else { CpuClock::Tick }
    }

    /// Returns the reason if the exact clock is not used.
    pub fn clock_reason(&self) -> Option<&str> {
        self.exact.as_ref().err().map(String::as_str)
    }

    /// Counts a process and its descendants as part of the measurement, although they do not
    /// descend from this process.
    pub fn add_own_process(&mut self, pid: u32) {
        if let Ok(clock) = &self.exact
            && let Err(reason) =
                own_pid().map_err(|e| e.to_string()).and_then(|own| clock.add_own(pid, own))
        {
            self.unknown = Some(format!("the time of process {pid} is unknown: {reason}"));
        }
        self.own.push(pid);
    }

    /// Restricts [`Disturbance::busiest_share`] to these CPUs, those of the test.
    pub fn focus_on(&mut self, cpus: impl IntoIterator<Item = usize>) {
        self.focus = cpus.into_iter().collect();
    }

    /// Reads right before the measured interval. The CPU clock comes last, so that the reading
    /// itself is not in the sample.
    ///
    /// # Errors
    /// A file that cannot be read or has an unknown format.
    pub fn begin(&self) -> Result<MachineSnapshot> {
        let processes = self.read_processes()?;
        let throttled = self.throttle.read()?;
        let softnet = SoftnetStat::read(&self.softnet)?;
        let clock = self.read_clock()?;
        Ok(MachineSnapshot { clock, softnet, processes, throttled })
    }

    /// Reads right after the measured interval. The CPU clock comes first.
    pub fn end(&self) -> Result<MachineSnapshot> {
        let clock = self.read_clock()?;
        let softnet = SoftnetStat::read(&self.softnet)?;
        let throttled = self.throttle.read()?;
        let processes = self.read_processes()?;
        Ok(MachineSnapshot { clock, softnet, processes, throttled })
    }

    /// Returns the differences between [`Machine::begin`] and [`Machine::end`].
    pub fn difference(&self, before: &MachineSnapshot, after: &MachineSnapshot) -> MachineSample {
        let ticks = after.clock.stat.total.since(&before.clock.stat.total);
        let cpu = match (&before.clock.exact, &after.clock.exact) {
            (Some(before), Some(after)) => {
                split::from_exact(&after.since(before), &ticks, self.user_hz)
            }
            // Ticks are coarser, but need no privileges.
            _ => split::from_ticks(&ticks, self.user_hz),
        };
        let softnet = after.softnet.since(&before.softnet);
        let seconds = after.clock.at.duration_since(before.clock.at).as_secs_f64();
        let cpus = after.clock.stat.cpus.len();
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let listed = after.processes.at.duration_since(before.processes.at).as_secs_f64();
        let (foreign, on_cpus) = after.processes.since(&before.processes, self.user_hz);
        let disturbance = Disturbance {
            steal_share: share(cpu.steal, split::total(&cpu)),
            throttled_share: share(after.throttled.since(&before.throttled).as_secs_f64(), seconds),
            // Limit to 1: ticks are coarse compared to a short sample.
            other_share: share(foreign, listed * cpus as f64).min(1.0),
            busiest_share: self.busiest(&before.clock.stat, &after.clock.stat, &on_cpus, listed),
        };
        let attributed = match (&before.clock.exact, &after.clock.exact, &self.unknown) {
            (Some(_), Some(_), Some(reason)) => Attributed::Unknown(reason.clone()),
            _ => self.attribute(before, after, foreign, listed),
        };
        MachineSample {
            attributed,
            cpu,
            seconds,
            cpus,
            softnet_processed: softnet.processed,
            softnet_dropped: softnet.dropped,
            softnet_squeezed: softnet.time_squeeze,
            disturbance,
            cpus_changed: changed(&before.clock.stat, &after.clock.stat),
        }
    }

    /// Attributes the CPU time between two readings. Other processes took `foreign` seconds of CPU
    /// time within `listed` seconds.
    fn attribute(
        &self,
        before: &MachineSnapshot,
        after: &MachineSnapshot,
        foreign: f64,
        listed: f64,
    ) -> Attributed {
        let earlier = *self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = after.clock.at.duration_since(before.clock.at).as_secs_f64();
        match self.caused(before, after) {
            Some(caused) => attributed::exact(&caused, &earlier, seconds),
            None => {
                let ticks = after.clock.stat.total.since(&before.clock.stat.total);
                let busy = split::busy(&split::from_ticks(&ticks, self.user_hz));
                let others = foreign * seconds / listed.max(1e-9);
                attributed::ticks(busy, others, &earlier, seconds)
            }
        }
    }

    /// Returns the CPU time between two readings by its cause; `None` without the exact clock.
    fn caused(&self, before: &MachineSnapshot, after: &MachineSnapshot) -> Option<split::Caused> {
        let ticks = after.clock.stat.total.since(&before.clock.stat.total);
        let since = after.clock.exact.as_ref()?.since(before.clock.exact.as_ref()?);
        Some(split::caused(&since, &ticks, self.user_hz))
    }

    /// Takes the time between two readings without load as the background of later samples.
    fn learn_before(&self, before: &MachineSnapshot, after: &MachineSnapshot) {
        let sample = self.difference(before, after);
        let seconds = sample.seconds.max(1e-9);
        let others = sample.disturbance.other_share * sample.cpus as f64;
        let learned = Before {
            open: self.caused(before, after).map_or(0.0, |caused| caused.open / seconds),
            no_process: (split::busy(&sample.cpu) / seconds - others).max(0.0),
        };
        *self.before.lock().unwrap_or_else(PoisonError::into_inner) = learned;
    }

    /// Returns the share of the most disturbed of the test's CPUs that other load and steal took.
    fn busiest(
        &self,
        before: &CpuStat,
        after: &CpuStat,
        foreign: &BTreeMap<u32, f64>,
        seconds: f64,
    ) -> f64 {
        let counts = |cpu: &usize| self.focus.is_empty() || self.focus.contains(cpu);
        let shares = after.cpus.iter().filter(|(cpu, _)| counts(cpu)).map(|(cpu, ticks)| {
            // A CPU without an earlier reading has come online meanwhile, which makes the sample
            // void.
            let since = before.cpus.get(cpu).map(|before| ticks.since(before)).unwrap_or_default();
            let stolen = since.steal as f64 / since.total().max(1) as f64;
            let cpu = u32::try_from(*cpu).unwrap_or(u32::MAX);
            let others = foreign.get(&cpu).map_or(0.0, |used| used / seconds.max(1e-9));
            (stolen + others).min(1.0)
        });
        shares.fold(0.0, f64::max)
    }

    /// Returns the busy share of all CPUs while this thread sleeps for `duration`, 0..1. If
    /// `is_quiet` before and afterwards, this is the background of later samples.
    pub fn idle_load(&self, duration: Duration, is_quiet: impl Fn() -> bool) -> Result<f64> {
        let was_quiet = is_quiet();
        let before = self.begin()?;
        std::thread::sleep(duration);
        let after = self.end()?;
        if was_quiet && is_quiet() {
            self.learn_before(&before, &after);
        }
        Ok(self.difference(&before, &after).busy_share())
    }

    /// Surveys other load while this thread sleeps for `duration`, in `steps` steps.
    pub fn survey(&self, duration: Duration, steps: u32) -> Result<Survey> {
        let mut readings = vec![self.begin()?];
        for _ in 0..steps.max(1) {
            std::thread::sleep(duration / steps.max(1));
            readings.push(self.end()?);
        }
        // Unreachable: there are at least two readings.
        let (Some(first), Some(last)) = (readings.first(), readings.last()) else {
            return Ok(Survey::default());
        };
        self.learn_before(first, last);
        let whole = self.difference(first, last);
        let seconds = whole.seconds.max(1e-9);
        let cpus = last.clock.stat.cpus.iter().map(|(cpu, ticks)| {
            let since = first.clock.stat.cpus.get(cpu).map(|before| ticks.since(before));
            let since = since.unwrap_or_default();
            let total = since.total().max(1) as f64;
            CpuBusy {
                cpu: *cpu,
                busy: 1.0 - (since.idle + since.iowait) as f64 / total,
                softirq: since.softirq as f64 / total,
                steal: since.steal as f64 / total,
            }
        });
        let consumers = last.processes.foreign.iter().filter_map(|(pid, one)| {
            let earlier = first.processes.foreign.get(pid).map_or(0, |one| one.own_ticks);
            let ticks = one.own_ticks.saturating_sub(earlier);
            let share = ticks as f64 / self.user_hz as f64 / seconds;
            (ticks > 0).then(|| Consumer { pid: *pid, command: one.command.clone(), share })
        });
        let mut consumers: Vec<Consumer> = consumers.collect();
        consumers.sort_by(|a, b| b.share.total_cmp(&a.share));
        let steps = readings.windows(2).map(|pair| self.difference(&pair[0], &pair[1]).disturbance);
        let share = |part: f64| part / split::total(&whole.cpu).max(1e-9);
        Ok(Survey {
            busy: whole.busy_share(),
            softirq: share(whole.cpu.softirq + whole.cpu.irq),
            steps: steps.collect(),
            whole: whole.disturbance,
            packets_per_s: whole.softnet_processed as f64 / seconds,
            cpus: cpus.collect(),
            consumers,
            quota: netstate::cgroup::cpu_quota()?,
        })
    }

    /// Returns the machine's entry in the results. `privileges` is `root`, `user-namespace` or
    /// `user`; `idle_load` comes from [`Machine::idle_load`].
    pub fn record(&self, privileges: Privileges, idle_load: f64) -> Result<results::Machine> {
        let facts = MachineFacts::read()?;
        Ok(results::Machine {
            cpu_model: facts.cpu_model,
            cpus: facts.online_cpus,
            memory_bytes: facts.memory_bytes,
            kernel: facts.kernel_release,
            os: facts.os,
            hypervisor: facts.hypervisor,
            cpu_clock: self.clock(),
            cpu_clock_reason: self.clock_reason().map(str::to_owned),
            privileges,
            idle_load,
            cpu_of_load: true,
        })
    }

    fn read_clock(&self) -> Result<ClockReading> {
        let stat = CpuStat::read(&self.stat)?;
        let exact = match &self.exact {
            Ok(clock) => Some(clock.read().map_err(|reason| SamplerError::CpuClock { reason })?),
            // Without BPF, CPU time is counted in ticks.
            Err(_) => None,
        };
        Ok(ClockReading { at: Instant::now(), stat, exact })
    }

    fn read_processes(&self) -> Result<ProcessReading> {
        // A reading that panicked has not changed what is known about kernel threads.
        let mut reader = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        let processes = reader.read()?;
        let foreign = processes.foreign(&self.own).map(|process| {
            let Process { pid, ticks, children_ticks, processor, .. } = *process;
            let own_ticks = ticks.saturating_sub(children_ticks);
            (pid, Foreign { ticks, own_ticks, processor, command: process.command.clone() })
        });
        Ok(ProcessReading { foreign: foreign.collect(), at: Instant::now() })
    }
}

impl ProcessReading {
    /// Returns the CPU seconds since `before`, in total and by the CPU that each process last used.
    fn since(&self, before: &ProcessReading, user_hz: u64) -> (f64, BTreeMap<u32, f64>) {
        let seconds = |ticks: u64| ticks as f64 / user_hz as f64;
        let all = |reading: &ProcessReading| {
            reading.foreign.values().fold(0_u64, |sum, one| sum.saturating_add(one.ticks))
        };
        let mut on_cpus = BTreeMap::new();
        for (pid, one) in &self.foreign {
            // A process that started meanwhile used all of its time meanwhile.
            let earlier = before.foreign.get(pid).map_or(0, |one| one.own_ticks);
            if let Some(cpu) = one.processor {
                *on_cpus.entry(cpu).or_default() += seconds(one.own_ticks.saturating_sub(earlier));
            }
        }
        // Use the difference of sums: a process that ended is in its parent's time.
        (seconds(all(self).saturating_sub(all(before))), on_cpus)
    }
}

/// Returns the CPUs that occur in only one of two readings.
fn changed(before: &CpuStat, after: &CpuStat) -> Vec<usize> {
    let one = before.cpus.keys().filter(|cpu| !after.cpus.contains_key(cpu));
    let other = after.cpus.keys().filter(|cpu| !before.cpus.contains_key(cpu));
    one.chain(other).copied().collect()
}

/// Returns this process's PID in the mounted `/proc`, whose PID namespace may differ from that of
/// `getpid()`.
fn own_pid() -> Result<u32> {
    let target = std::fs::read_link("/proc/self")
        .map_err(|e| sys::Error::io("readlink", "/proc/self", &e))?;
    let pid = target.to_str().and_then(|pid| pid.parse().ok());
    Ok(pid.ok_or_else(|| sys::Error::new("readlink", "/proc/self", nix::errno::Errno::EINVAL))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(cpus: &[(usize, &str)]) -> CpuStat {
        let lines = cpus.iter().map(|(cpu, ticks)| format!("cpu{cpu} {ticks}\n"));
        let all: String = lines.collect();
        CpuStat::parse(&format!("cpu 0 0 0 0 0 0 0 0\n{all}")).unwrap()
    }

    fn processes(of: &[(u32, u64, u64, u32)]) -> ProcessReading {
        let one = |&(pid, ticks, own_ticks, cpu): &(u32, u64, u64, u32)| {
            let command = String::new();
            (pid, Foreign { ticks, own_ticks, processor: Some(cpu), command })
        };
        ProcessReading { at: Instant::now(), foreign: of.iter().map(one).collect() }
    }

    #[test]
    fn a_cpu_that_goes_or_comes_is_named() {
        let ticks = "1 0 0 9 0 0 0 0";
        let two = stat(&[(0, ticks), (1, ticks)]);
        assert_eq!(changed(&two, &two), [0; 0]);
        let other = stat(&[(0, ticks), (2, ticks)]);
        assert_eq!(changed(&two, &other), [1, 2]);
    }

    #[test]
    fn the_busiest_of_the_tests_cpus_counts_with_its_steal() {
        let before = stat(&[(0, "0 0 0 0 0 0 0 0"), (1, "0 0 0 0 0 0 0 0")]);
        // 20% of CPU 0 is stolen, nothing of CPU 1.
        let after = stat(&[(0, "40 0 0 40 0 0 0 20"), (1, "90 0 0 10 0 0 0 0")]);
        let mut machine = Machine::open(false).unwrap();
        let foreign = BTreeMap::from([(0, 0.1), (1, 0.9)]);
        let busiest = |machine: &Machine| machine.busiest(&before, &after, &foreign, 1.0);
        assert!((busiest(&machine) - 0.9).abs() < 1e-9);
        machine.focus_on([0]);
        assert!((busiest(&machine) - 0.3).abs() < 1e-9);
    }

    #[test]
    fn time_of_a_child_that_ended_is_its_own_once_and_its_parents_never() {
        // Process 3 ran for 50 ticks before and 10 meanwhile; process 2 waited for it.
        let before = processes(&[(2, 5, 5, 0), (3, 50, 50, 1)]);
        let after = processes(&[(2, 65, 5, 0), (4, 7, 7, 1)]);
        let (all, on_cpus) = after.since(&before, 100);
        assert!((all - 0.17).abs() < 1e-9, "{all}");
        assert_eq!(on_cpus, BTreeMap::from([(0, 0.0), (1, 0.07)]));
    }
}
