//! The exact CPU clock: loads and reads `bpf/cpu_clock.bpf.c`.
//!
//! The programs attach to trace points of the scheduler, softirqs and interrupts, and vanish with
//! this process. A program run takes less than 0.1 µs (97 ns by `kernel.bpf_stats_enabled`, its own
//! two clock readings included, on a KVM guest). There are two runs per softirq and interrupt and
//! one per task switch. The clock needs CAP_BPF and CAP_PERFMON in the initial user namespace, a
//! kernel with BTF (5.11 or newer for the helpers), and a kernel without PREEMPT_RT.

use std::time::{Duration, Instant};

use libbpf_rs::btf::types::Typedef;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use nix::time::{ClockId, clock_gettime};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cpu_clock.bpf.o"));

/// Size of `struct cpu_clock` in the C source, in `u64`s.
const WORDS: usize = 9;

/// Maximum readings of the map until no CPU's value was being written.
const READINGS: usize = 1000;

/// Time limit for each CPU to run a thread of this process, which starts its clock.
const START_LIMIT: Duration = Duration::from_secs(2);

/// Time by kind over all CPUs, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CpuNs {
    /// Time of the idle task.
    pub idle: u64,
    /// Time of tasks, including kernel threads other than ksoftirqd.
    pub task: u64,
    /// Time of softirqs in any context, and of ksoftirqd.
    pub softirq: u64,
    /// Time of hardware interrupt handlers in any context.
    pub irq: u64,
}

/// One CPU's clock at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct OneCpu {
    /// Indexed by `enum kind`; `None` before the first event.
    ns: Option<[u64; 4]>,
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
            let delta = |kind: usize| (after[kind].wrapping_sub(before[kind]) as i64).max(0) as u64;
            sum.idle += delta(0);
            sum.task += delta(1);
            sum.softirq += delta(2);
            sum.irq += delta(3);
        }
        sum
    }
}

/// Attached programs and the map of their clocks; dropping it detaches them.
#[derive(Debug)]
pub(super) struct ExactClock {
    clocks: MapHandle,
    // Dropping a link detaches its program.
    _links: Vec<Link>,
}

impl ExactClock {
    /// Loads and attaches the programs and starts the clock of each of `cpus`.
    ///
    /// # Errors
    /// The reason why this machine has no exact clock.
    pub(super) fn open(cpus: &[usize]) -> Result<ExactClock, String> {
        if std::fs::read_to_string("/sys/kernel/realtime").is_ok_and(|rt| rt.trim() == "1") {
            return Err("a PREEMPT_RT kernel preempts softirqs".to_owned());
        }
        let (mut object, btf) = bpf_load::open(OBJECT)?;
        // The kernel detaches a trace point by calling the other CPUs. For the trace point of that
        // call itself, this may never end in QEMU 7.2's software emulation
        // (docs/src/design/measuring.md).
        let without_calls = sys::emulation::is_tcg();
        for mut program in object.progs_mut() {
            // Skip trace points of other architectures. Those that exist on every architecture fail
            // to load with an error.
            let name = program.name().to_string_lossy().into_owned();
            let is_call = name.starts_with("call_function");
            let optional = is_call || name.starts_with("local_timer");
            let trace_point = btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"));
            if (optional && trace_point.is_none()) || (is_call && without_calls) {
                program.set_autoload(false);
            }
        }
        let object = bpf_load::load(object)?;
        let clocks = bpf_load::map(&object, "clocks", 4, 8 * WORDS)?;
        let mut links = Vec::new();
        // Attach exits first: with an entry but no exit program, the CPU would count as in an
        // interrupt for good.
        let (exits, others): (Vec<_>, Vec<_>) = object
            .progs_mut()
            .filter(|program| program.autoload())
            .partition(|program| program.name().to_string_lossy().ends_with("_exit"));
        for program in exits.into_iter().chain(others) {
            let link = program
                .attach()
                .map_err(|e| format!("attaching {}: {e}", program.section().to_string_lossy()))?;
            links.push(link);
        }
        let clock = ExactClock { clocks, _links: links };
        clock.start(cpus)?;
        Ok(clock)
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
            let cpus: Result<Vec<OneCpu>, [u64; WORDS]> =
                values.iter().map(|value| one_cpu(&words(value), now)).collect();
            match cpus {
                Ok(cpus) => return Ok(ExactReading { cpus }),
                Err(value) => torn = Some(value),
            }
            std::thread::yield_now();
        }
        Err(format!("a CPU's times are inconsistent after {READINGS} readings: {torn:?}"))
    }
}

fn words(value: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(value.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// Returns one CPU's times at `now`. If the value was read between the program's two writes, its
/// times do not add up, and it is returned as the error.
fn one_cpu(value: &[u64; WORDS], now: u64) -> Result<OneCpu, [u64; WORDS]> {
    let [idle, task, softirq, irq, start, last, in_irq, in_softirq, task_kind] = *value;
    if last == 0 {
        return Ok(OneCpu { ns: None });
    }
    let mut ns = [idle, task, softirq, irq];
    let sum = ns.iter().fold(0_u64, |sum, ns| sum.wrapping_add(*ns));
    if start == 0 || sum != last.wrapping_sub(start) {
        return Err(*value);
    }
    let running = match (in_irq, in_softirq, task_kind) {
        (0, 0, kind @ 0..=2) => kind as usize,
        (0, 0, _) => return Err(*value),
        (0, ..) => 2,
        _ => 3,
    };
    // `last` may be slightly after `now`, which was read earlier. The difference is then negative
    // and corrects the sum to `now`.
    ns[running] = ns[running].wrapping_add(now.wrapping_sub(last));
    Ok(OneCpu { ns: Some(ns) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_stretch_is_charged_to_what_runs() {
        let at = |in_irq, in_softirq, task_kind| {
            one_cpu(&[10, 20, 30, 40, 1000, 1100, in_irq, in_softirq, task_kind], 1150).unwrap().ns
        };
        assert_eq!(at(0, 0, 0), Some([60, 20, 30, 40]));
        assert_eq!(at(0, 0, 1), Some([10, 70, 30, 40]));
        assert_eq!(at(0, 0, 2), Some([10, 20, 80, 40]));
        assert_eq!(at(0, 1, 1), Some([10, 20, 80, 40]));
        assert_eq!(at(1, 1, 1), Some([10, 20, 30, 90]));
    }

    #[test]
    fn a_value_caught_half_written_is_refused() {
        let value = [10, 20, 30, 40, 1000, 1101, 0, 0, 1];
        assert_eq!(one_cpu(&value, 1150), Err(value));
        let value = [10, 20, 30, 40, 0, 100, 0, 0, 1];
        assert_eq!(one_cpu(&value, 1150), Err(value));
        assert_eq!(one_cpu(&[0; WORDS], 1150).unwrap().ns, None);
    }

    #[test]
    fn an_event_after_the_clock_was_read_is_taken_back() {
        let value = [10, 20, 30, 40, 1000, 1100, 0, 0, 1];
        assert_eq!(one_cpu(&value, 1095).unwrap().ns, Some([10, 15, 30, 40]));
    }

    #[test]
    fn differences_leave_out_cpus_that_were_not_there_at_both_moments() {
        let reading = |cpus: &[Option<[u64; 4]>]| ExactReading {
            cpus: cpus.iter().map(|ns| OneCpu { ns: *ns }).collect(),
        };
        let before = reading(&[Some([1, 2, 3, 4]), None, Some([5, 5, 5, 5])]);
        let after = reading(&[Some([2, 4, 6, 3]), Some([9, 9, 9, 9]), Some([5, 6, 5, 5])]);
        let expected = CpuNs { idle: 1, task: 3, softirq: 3, irq: 0 };
        assert_eq!(after.since(&before), expected);
    }
}
