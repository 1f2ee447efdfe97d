//! The exact CPU clock: loads and reads `bpf/cpu_clock.bpf.c`.
//!
//! The programs attach to trace points of the scheduler, softirqs and interrupts, and vanish with
//! this process. A program run takes less than 0.1 µs (97 ns by `kernel.bpf_stats_enabled`, its own
//! two clock readings included, on a KVM guest). There are two runs per softirq and interrupt and
//! one per task switch. The clock needs CAP_BPF and CAP_PERFMON in the initial user namespace, a
//! kernel with BTF (5.11 or newer for the helpers), and a kernel without PREEMPT_RT.

use std::time::{Duration, Instant};

use libbpf_rs::btf::types::Typedef;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ProgramInput, ProgramType};
use nix::time::{ClockId, clock_gettime};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cpu_clock.bpf.o"));

/// Size of `struct cpu_clock` in the C source, in `u64`s.
const WORDS: usize = KINDS + 6;

/// Number of kinds of time, `enum kind` in the C source.
const KINDS: usize = 10;

/// Maximum processes whose descendants belong to the measurement, as in the C source.
const MAX_OWN: usize = 4;

/// Maximum readings of the map until no CPU's value was being written.
const READINGS: usize = 1000;

/// Time limit for each CPU to run a thread of this process, which starts its clock.
const START_LIMIT: Duration = Duration::from_secs(2);

/// Time by kind over all CPUs, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CpuNs {
    /// Indexed by [`Kind`].
    ns: [u64; KINDS],
}

/// Kinds of time, in the order of `enum kind` in the C source.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// The idle task.
    Idle,
    /// Tasks of other programs.
    Task,
    /// Softirqs that process no packets, and ksoftirqd's own time.
    Softirq,
    /// Hardware interrupt handlers that raised no network softirq.
    Irq,
    /// Tasks of the measurement.
    OwnTask,
    /// Network softirqs raised by tasks of the measurement.
    NetOwn,
    /// Network softirqs raised by tasks of other programs.
    NetOther,
    /// Network softirqs raised by interrupts or kernel threads, and threads of NAPI.
    NetOpen,
    /// Hardware interrupt handlers that raised a network softirq.
    IrqNet,
    /// Kernel threads other than ksoftirqd and those of NAPI.
    KernelThread,
}

impl CpuNs {
    #[cfg(test)]
    pub(super) fn of(times: &[(Kind, u64)]) -> CpuNs {
        let mut all = CpuNs::default();
        for (kind, ns) in times {
            all.ns[*kind as usize] += ns;
        }
        all
    }

    fn sum(&self, kinds: &[Kind]) -> u64 {
        kinds.iter().map(|kind| self.ns[*kind as usize]).sum()
    }

    /// Time of the idle task.
    pub(super) fn idle(&self) -> u64 {
        self.sum(&[Kind::Idle])
    }

    /// Time of all tasks other than ksoftirqd and threads of NAPI.
    pub(super) fn task(&self) -> u64 {
        self.sum(&[Kind::Task, Kind::OwnTask, Kind::KernelThread])
    }

    /// Time of softirqs in any context.
    pub(super) fn softirq(&self) -> u64 {
        self.sum(&[Kind::Softirq, Kind::NetOwn, Kind::NetOther, Kind::NetOpen])
    }

    /// Time of hardware interrupt handlers in any context.
    pub(super) fn irq(&self) -> u64 {
        self.sum(&[Kind::Irq, Kind::IrqNet])
    }

    /// Time that the measurement certainly caused.
    pub(super) fn own(&self) -> u64 {
        self.sum(&[Kind::OwnTask, Kind::NetOwn])
    }

    /// Time whose cause is unknown: packets that arrive by an interrupt, and kernel threads.
    pub(super) fn open(&self) -> u64 {
        self.sum(&[Kind::NetOpen, Kind::IrqNet, Kind::KernelThread])
    }
}

/// One CPU's clock at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct OneCpu {
    /// Indexed by `enum kind`; `None` before the first event.
    ns: Option<[u64; KINDS]>,
}

/// All CPUs' clocks at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ExactReading {
    cpus: Vec<OneCpu>,
}

impl ExactReading {
    /// Returns the increase since `before`, over all CPUs with both readings.
    pub(super) fn since(&self, before: &ExactReading) -> CpuNs {
        let mut sum = CpuNs::default();
        for (after, before) in self.cpus.iter().zip(&before.cpus) {
            // A CPU that came online meanwhile has no first reading.
            let (Some(after), Some(before)) = (after.ns, before.ns) else { continue };
            // A kind can run backwards by the length of one interrupt (see the C source): count
            // that as zero.
            for (sum, (after, before)) in sum.ns.iter_mut().zip(after.iter().zip(before)) {
                *sum += (after.wrapping_sub(before) as i64).max(0) as u64;
            }
        }
        sum
    }
}

/// Attached programs and the map of their clocks; dropping it detaches them.
#[derive(Debug)]
pub(super) struct ExactClock {
    clocks: MapHandle,
    owners: MapHandle,
    /// This process's PID in the initial PID namespace.
    own: u32,
    // Dropping a link detaches its program.
    _links: Vec<Link>,
}

impl ExactClock {
    /// Loads and attaches the programs and starts the clock of each of `cpus`.
    ///
    /// # Errors
    /// The reason why this machine has no exact clock.
    pub(super) fn open(cpus: &[usize]) -> Result<ExactClock, String> {
        // There softirqs run in threads, whose time the programs would count twice.
        if std::fs::read_to_string("/sys/kernel/realtime").is_ok_and(|rt| rt.trim() == "1") {
            return Err("a PREEMPT_RT kernel preempts softirqs".to_owned());
        }
        let (mut object, btf) = bpf_load::open(OBJECT)?;
        // The kernel detaches a trace point by calling the other CPUs. For the trace point of that
        // call itself, this may never end in QEMU 7.2's software emulation
        // (docs/src/design/measuring.md).
        let without_calls = sys::emulation::is_tcg();
        for mut program in object.progs_mut() {
            // Skip trace points of other architectures. A trace point that every architecture has
            // must load, so it fails with an error.
            let name = program.name().to_string_lossy().into_owned();
            let is_call = name.starts_with("call_function");
            let optional = is_call || name.starts_with("local_timer");
            let trace_point = btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"));
            if (optional && trace_point.is_none()) || (is_call && without_calls) {
                program.set_autoload(false);
            }
        }
        let mut object = bpf_load::load(object)?;
        let clocks = bpf_load::map(&object, "clocks", 4, 8 * WORDS)?;
        let owners = bpf_load::map(&object, "owners", 4, 4 * MAX_OWN)?;
        let own = add_caller(&mut object)?;
        let mut links = Vec::new();
        // Attach exits first: with an entry but no exit program, the CPU would count as in an
        // interrupt for good.
        let (exits, others): (Vec<_>, Vec<_>) = object
            .progs_mut()
            .filter(|program| program.autoload() && program.prog_type() != ProgramType::Syscall)
            .partition(|program| program.name().to_string_lossy().ends_with("_exit"));
        for program in exits.into_iter().chain(others) {
            let link = program
                .attach()
                .map_err(|e| format!("attaching {}: {e}", program.section().to_string_lossy()))?;
            links.push(link);
        }
        let clock = ExactClock { clocks, owners, own, _links: links };
        clock.start(cpus)?;
        Ok(clock)
    }

    /// Counts a process and its descendants as part of the measurement. `pid` and `own_pid`, this
    /// process's, are those of the mounted `/proc`.
    ///
    /// # Errors
    /// The reason why the process's time remains that of another program.
    pub(super) fn add_own(&self, pid: u32, own_pid: u32) -> Result<(), String> {
        // The programs see PIDs of the initial PID namespace, to which others cannot be translated.
        if own_pid != self.own {
            return Err("this process is in a PID namespace".to_owned());
        }
        let key = 0_u32.to_ne_bytes();
        let value = self.owners.lookup(&key, MapFlags::ANY).map_err(|e| e.to_string())?;
        let mut value = value.ok_or("map \"owners\" has no entry 0")?;
        let free = value.as_chunks_mut::<4>().0.iter_mut().find(|slot| **slot == [0; 4]);
        *free.ok_or_else(|| format!("more than {MAX_OWN} processes"))? = pid.to_ne_bytes();
        self.owners.update(&key, &value, MapFlags::ANY).map_err(|e| e.to_string())
    }

    /// Makes each CPU run something: its clock starts with its first event, and an idle CPU may
    /// have none for seconds.
    fn start(&self, cpus: &[usize]) -> Result<(), String> {
        let deadline = Instant::now() + START_LIMIT;
        std::thread::scope(|scope| {
            let starter = scope.spawn(|| {
                loop {
                    let reading = self.read()?;
                    let waiting =
                        |cpu: &&usize| reading.cpus.get(**cpu).is_none_or(|c| c.ns.is_none());
                    // Every CPU has reported its clock.
                    let Some(cpu) = cpus.iter().find(waiting) else { return Ok(()) };
                    if Instant::now() > deadline {
                        return Err(format!(
                            "CPU {cpu} ran no thread of overlane within {START_LIMIT:?}"
                        ));
                    }
                    // A CPU outside our cpuset is not available; its clock starts with other
                    // programs. Sleeping causes the task switch.
                    let _ = sys::affinity::pin(*cpu);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            starter.join().unwrap_or_else(|_| Err("the starting thread panicked".to_owned()))
        })
    }

    /// Reads the clocks, including the running stretch of each CPU.
    ///
    /// # Errors
    /// If the map cannot be read, or a CPU's value is inconsistent in all readings.
    pub(super) fn read(&self) -> Result<ExactReading, String> {
        let mut torn = None;
        for _ in 0..READINGS {
            let now = clock_gettime(ClockId::CLOCK_MONOTONIC)
                .map_err(|e| format!("clock_gettime(CLOCK_MONOTONIC): {e}"))?;
            let now = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
            let values = self
                .clocks
                .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
                .map_err(|e| format!("reading map \"clocks\": {e}"))?
                .ok_or("map \"clocks\" has no entry 0")?;
            let values: Vec<[u64; WORDS]> = values.iter().map(|value| words(value)).collect();
            let cpus = values.iter().map(|value| one_cpu(value, now)).collect();
            // A CPU changed its entry during the read: the times do not add up, so read again.
            match cpus {
                Some(cpus) => return Ok(ExactReading { cpus }),
                None => torn = values.into_iter().find(|value| one_cpu(value, now).is_none()),
            }
            std::thread::yield_now();
        }
        Err(format!("a CPU's times are inconsistent after {READINGS} readings: {torn:?}"))
    }
}

/// Adds this process to the measurement. Returns its PID in the initial PID namespace.
fn add_caller(object: &mut Object) -> Result<u32, String> {
    let program = object.progs_mut().find(|program| program.prog_type() == ProgramType::Syscall);
    let program = program.ok_or("the object has no program \"add_caller\"")?;
    let ran = program.test_run(ProgramInput::default());
    Ok(ran.map_err(|e| format!("running add_caller: {e}"))?.return_value)
}

fn words(value: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(value.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// Returns one CPU's times at `now`. `None`: the value was read between the program's two writes, so
/// its times do not add up.
fn one_cpu(value: &[u64; WORDS], now: u64) -> Option<OneCpu> {
    let [ns @ .., start, last, in_irq, in_softirq, task_kind, _raised] = *value;
    let mut ns: [u64; KINDS] = ns;
    if last == 0 {
        return Some(OneCpu { ns: None });
    }
    let sum = ns.iter().fold(0_u64, |sum, ns| sum.wrapping_add(*ns));
    // The entry was written during the read.
    if start == 0 || sum != last.wrapping_sub(start) {
        return None;
    }
    let running = [in_irq, in_softirq].into_iter().find(|kind| *kind != 0).unwrap_or(task_kind);
    let running = usize::try_from(running).ok().and_then(|kind| ns.get_mut(kind))?;
    // `last` may be slightly after `now`, which was read earlier. The difference is then negative
    // and corrects the sum to `now`.
    *running = running.wrapping_add(now.wrapping_sub(last));
    Some(OneCpu { ns: Some(ns) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: [u64; KINDS] = [10, 20, 30, 40, 0, 0, 0, 0, 0, 0];

    fn value(start: u64, last: u64, contexts: [u64; 3]) -> [u64; WORDS] {
        let mut value = [0; WORDS];
        value[..KINDS].copy_from_slice(&NS);
        value[KINDS..KINDS + 2].copy_from_slice(&[start, last]);
        value[KINDS + 2..KINDS + 5].copy_from_slice(&contexts);
        value
    }

    fn plus(kind: Kind, ns: i64) -> Option<[u64; KINDS]> {
        let mut all = NS;
        all[kind as usize] = all[kind as usize].wrapping_add_signed(ns);
        Some(all)
    }

    #[test]
    fn the_running_stretch_is_charged_to_what_runs() {
        let at = |in_irq: u64, in_softirq: u64, task_kind: u64| {
            one_cpu(&value(1000, 1100, [in_irq, in_softirq, task_kind]), 1150).unwrap().ns
        };
        for (in_irq, in_softirq, task, charged) in [
            (0, 0, Kind::Idle as u64, Kind::Idle),
            (0, 0, Kind::Task as u64, Kind::Task),
            (0, 0, Kind::OwnTask as u64, Kind::OwnTask),
            (0, 0, Kind::KernelThread as u64, Kind::KernelThread),
            (0, Kind::Softirq as u64, 1, Kind::Softirq),
            (0, Kind::NetOwn as u64, 1, Kind::NetOwn),
            (Kind::Irq as u64, Kind::NetOwn as u64, 1, Kind::Irq),
            (Kind::IrqNet as u64, 0, 1, Kind::IrqNet),
        ] {
            assert_eq!(at(in_irq, in_softirq, task), plus(charged, 50), "{charged:?}");
        }
    }

    #[test]
    fn a_value_caught_half_written_is_refused() {
        for bad in
            [value(1000, 1101, [0, 0, 1]), value(0, 100, [0, 0, 1]), value(1000, 1100, [0, 0, 99])]
        {
            assert_eq!(one_cpu(&bad, 1150), None);
        }
        assert_eq!(one_cpu(&[0; WORDS], 1150).unwrap().ns, None);
    }

    #[test]
    fn an_event_after_the_clock_was_read_is_taken_back() {
        assert_eq!(one_cpu(&value(1000, 1100, [0, 0, 1]), 1095).unwrap().ns, plus(Kind::Task, -5));
    }

    #[test]
    fn differences_leave_out_cpus_that_were_not_there_at_both_moments() {
        let cpu = |first: [u64; 4]| {
            let mut ns = [0; KINDS];
            ns[..4].copy_from_slice(&first);
            Some(ns)
        };
        let reading = |cpus: &[Option<[u64; KINDS]>]| ExactReading {
            cpus: cpus.iter().map(|ns| OneCpu { ns: *ns }).collect(),
        };
        let before = reading(&[cpu([1, 2, 3, 4]), None, cpu([5, 5, 5, 5])]);
        let after = reading(&[cpu([2, 4, 6, 3]), cpu([9, 9, 9, 9]), cpu([5, 6, 5, 5])]);
        let since = after.since(&before);
        assert_eq!((since.idle(), since.task(), since.softirq(), since.irq()), (1, 3, 3, 0));
    }

    #[test]
    fn only_tasks_and_softirqs_of_the_measurement_are_certainly_its_own() {
        let all: Vec<(Kind, u64)> = [
            Kind::Idle,
            Kind::Task,
            Kind::Softirq,
            Kind::Irq,
            Kind::OwnTask,
            Kind::NetOwn,
            Kind::NetOther,
            Kind::NetOpen,
            Kind::IrqNet,
            Kind::KernelThread,
        ]
        .into_iter()
        .enumerate()
        .map(|(at, kind)| (kind, 1 << at))
        .collect();
        let all = CpuNs::of(&all);
        assert_eq!((all.own(), all.open()), (0b11_0000, 0b11_1000_0000));
        assert_eq!(all.idle() + all.task() + all.softirq() + all.irq(), (1 << KINDS) - 1);
    }
}
