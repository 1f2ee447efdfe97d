//! The machine sampler: CPU time by kind, softnet counters and disturbance,
//! over all CPUs.

use std::time::{Duration, Instant};

use netstate::cgroup::{CpuThrottle, Throttled};
use netstate::cpu::{CpuStat, PROC_STAT, user_hz};
use netstate::machine::MachineFacts;
use netstate::proc::ProcFile;
use netstate::process::Processes;
use netstate::softnet::{PROC_SOFTNET_STAT, SoftnetStat};

use super::exact::{ExactClock, ExactReading};
use super::{Disturbance, Result, SamplerError, split};
use crate::results;

/// How CPU time is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuClock {
    /// By trace points of scheduler, softirqs and interrupts: each nanosecond
    /// is charged to what ran. The split of tasks' time into user and system
    /// mode, and steal, come from ticks.
    Exact,
    /// By `/proc/stat`: what the timer interrupted is charged a whole tick.
    Tick,
}

impl CpuClock {
    /// Its name in results (`exact`, `tick`).
    pub fn name(self) -> &'static str {
        match self {
            CpuClock::Exact => "exact",
            CpuClock::Tick => "tick",
        }
    }
}

/// Samples the whole machine. Reading costs the reader a fraction of a
/// millisecond, and some milliseconds more for the list of processes.
#[derive(Debug)]
pub struct Machine {
    stat: ProcFile,
    softnet: ProcFile,
    throttle: CpuThrottle,
    exact: std::result::Result<ExactClock, String>,
    /// Processes whose descendants' CPU time is ours.
    own: Vec<u32>,
    user_hz: u64,
}

/// One reading of [`Machine`].
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
    foreign_ticks: u64,
}

/// What happened between two readings of [`Machine`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct MachineSample {
    /// CPU seconds of all CPUs by kind.
    pub cpu: results::CpuSeconds,
    /// Wall time between the two readings of the CPU clock, seconds.
    pub seconds: f64,
    /// Online CPUs.
    pub cpus: usize,
    /// Packets taken through the stack, all CPUs.
    pub softnet_processed: u64,
    /// Packets dropped at a full softnet backlog, all CPUs.
    pub softnet_dropped: u64,
    /// Times the softirq budget ran out, all CPUs.
    pub softnet_squeezed: u64,
    /// What disturbed the sample.
    pub disturbance: Disturbance,
}

impl MachineSample {
    /// Share of all CPUs' time that was not idle or stolen, 0..1.
    pub fn busy_share(&self) -> f64 {
        let total = split::total(&self.cpu);
        if total > 0.0 { split::busy(&self.cpu) / total } else { 0.0 }
    }
}

impl Machine {
    /// Opens the sampler; with `prefer_exact`, with the exact CPU clock where
    /// this machine allows it ([`Machine::clock_reason`] says why not).
    ///
    /// # Errors
    /// Where `/proc` is not mounted, or one of its files has another form.
    pub fn open(prefer_exact: bool) -> Result<Machine> {
        let stat = ProcFile::open(PROC_STAT)?;
        let cpus: Vec<usize> = CpuStat::read(&stat)?.cpus.into_keys().collect();
        let exact =
            if prefer_exact { ExactClock::open(&cpus) } else { Err("not asked for".to_owned()) };
        if let Err(reason) = &exact {
            tracing::debug!(reason, "CPU time is counted in ticks");
        }
        Ok(Machine {
            stat,
            softnet: ProcFile::open(PROC_SOFTNET_STAT)?,
            throttle: CpuThrottle::open()?,
            exact,
            own: vec![own_pid()?],
            user_hz: user_hz(),
        })
    }

    /// How CPU time is counted.
    pub fn clock(&self) -> CpuClock {
        if self.exact.is_ok() { CpuClock::Exact } else { CpuClock::Tick }
    }

    /// Why the exact clock is not used, when it is not.
    pub fn clock_reason(&self) -> Option<&str> {
        self.exact.as_ref().err().map(String::as_str)
    }

    /// Counts a process that does not descend from this one, and all that do
    /// descend from it, as part of the measurement, not as other load.
    pub fn add_own_process(&mut self, pid: u32) {
        self.own.push(pid);
    }

    /// Reads right before the measured interval: the CPU clock comes last, so
    /// that reading itself is not in the sample.
    ///
    /// # Errors
    /// A file that cannot be read, or has another form.
    pub fn begin(&self) -> Result<MachineSnapshot> {
        let processes = self.read_processes()?;
        let throttled = self.throttle.read()?;
        let softnet = SoftnetStat::read(&self.softnet)?;
        let clock = self.read_clock()?;
        Ok(MachineSnapshot { clock, softnet, processes, throttled })
    }

    /// Reads right after the measured interval: the CPU clock comes first.
    ///
    /// # Errors
    /// As [`Machine::begin`].
    pub fn end(&self) -> Result<MachineSnapshot> {
        let clock = self.read_clock()?;
        let softnet = SoftnetStat::read(&self.softnet)?;
        let throttled = self.throttle.read()?;
        let processes = self.read_processes()?;
        Ok(MachineSnapshot { clock, softnet, processes, throttled })
    }

    /// What happened between [`Machine::begin`] and [`Machine::end`].
    pub fn difference(&self, before: &MachineSnapshot, after: &MachineSnapshot) -> MachineSample {
        let ticks = after.clock.stat.total.since(&before.clock.stat.total);
        let cpu = match (&before.clock.exact, &after.clock.exact) {
            (Some(before), Some(after)) => {
                split::from_exact(&after.since(before), &ticks, self.user_hz)
            }
            _ => split::from_ticks(&ticks, self.user_hz),
        };
        let softnet = after.softnet.since(&before.softnet);
        let seconds = after.clock.at.duration_since(before.clock.at).as_secs_f64();
        let cpus = after.clock.stat.cpus.len();
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let listed = after.processes.at.duration_since(before.processes.at).as_secs_f64();
        let foreign = after.processes.foreign_ticks.saturating_sub(before.processes.foreign_ticks)
            as f64
            / self.user_hz as f64;
        let disturbance = Disturbance {
            steal_share: share(cpu.steal, split::total(&cpu)),
            throttled_share: share(after.throttled.since(&before.throttled).as_secs_f64(), seconds),
            // Ticks are coarser than a short sample.
            other_share: share(foreign, listed * cpus as f64).min(1.0),
        };
        MachineSample {
            cpu,
            seconds,
            cpus,
            softnet_processed: softnet.processed,
            softnet_dropped: softnet.dropped,
            softnet_squeezed: softnet.time_squeeze,
            disturbance,
        }
    }

    /// Share of all CPUs busy while this thread sleeps for `duration`, 0..1.
    ///
    /// # Errors
    /// As [`Machine::begin`].
    pub fn idle_load(&self, duration: Duration) -> Result<f64> {
        let before = self.begin()?;
        std::thread::sleep(duration);
        let after = self.end()?;
        Ok(self.difference(&before, &after).busy_share())
    }

    /// The machine's entry in the results. `privileges` is `root`,
    /// `user-namespace` or `user`, `idle_load` comes from [`Machine::idle_load`].
    ///
    /// # Errors
    /// As [`MachineFacts::read`].
    pub fn record(&self, privileges: &str, idle_load: f64) -> Result<results::Machine> {
        let facts = MachineFacts::read()?;
        Ok(results::Machine {
            cpu_model: facts.cpu_model,
            cpus: facts.online_cpus,
            memory_bytes: facts.memory_bytes,
            kernel: facts.kernel_release,
            os: facts.os,
            hypervisor: facts.hypervisor,
            cpu_clock: self.clock().name().to_owned(),
            cpu_clock_reason: self.clock_reason().map(str::to_owned),
            privileges: privileges.to_owned(),
            idle_load,
        })
    }

    fn read_clock(&self) -> Result<ClockReading> {
        let stat = CpuStat::read(&self.stat)?;
        let exact = match &self.exact {
            Ok(clock) => Some(clock.read().map_err(|reason| SamplerError::CpuClock { reason })?),
            Err(_) => None,
        };
        Ok(ClockReading { at: Instant::now(), stat, exact })
    }

    fn read_processes(&self) -> Result<ProcessReading> {
        let foreign_ticks = Processes::read()?.foreign_ticks(&self.own);
        Ok(ProcessReading { at: Instant::now(), foreign_ticks })
    }
}

/// This process's ID as the mounted `/proc` has it, which may be of another PID
/// namespace than `getpid()`.
fn own_pid() -> Result<u32> {
    let target = std::fs::read_link("/proc/self")
        .map_err(|e| sys::Error::io("readlink", "/proc/self", &e))?;
    let pid = target.to_str().and_then(|pid| pid.parse().ok());
    Ok(pid.ok_or_else(|| sys::Error::new("readlink", "/proc/self", nix::errno::Errno::EINVAL))?)
}
