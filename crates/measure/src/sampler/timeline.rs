//! Timeline of every CPU during a run: CPU time by kind and interrupts, in equal steps, recorded by
//! a separate thread.
//!
//! Reading the three files takes a fraction of a millisecond per step and delays other work on that
//! CPU. Beside other programs, steps are longer and the thread has the lowest priority.
//!
//! A run of any length keeps at most [`MOST_STEPS`] steps: when they are full, pairs are merged
//! and the step length doubles. CPU time comes from `/proc/stat`, sampled by the timer tick. It is
//! for the overview; the samples' figures use the exact clock.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netstate::cpu::{CpuStat, CpuTicks, PROC_STAT};
use netstate::interrupts::{Interrupts, PROC_INTERRUPTS, PROC_SOFTIRQS};
use netstate::proc::{ProcError, ProcFile};

use results::{CpuTimeline, InterruptTimeline, Mark, Timeline};

/// Initial length of a step.
const STEP: Duration = Duration::from_millis(250);
/// Initial length of a step at low priority.
const GENTLE_STEP: Duration = Duration::from_secs(2);
/// Maximum number of steps.
const MOST_STEPS: usize = 480;
/// Softirqs that process packets. Others would hide them.
const SOFTIRQS: [&str; 2] = ["NET_RX", "NET_TX"];

/// Records until finished or dropped.
#[derive(Debug)]
pub struct Recorder {
    begun: Instant,
    marks: Vec<Mark>,
    stop: Sender<()>,
    thread: Option<JoinHandle<Steps>>,
}

#[derive(Debug)]
struct Files {
    stat: ProcFile,
    interrupts: ProcFile,
    softirqs: ProcFile,
}

/// One reading, or the difference of two.
#[derive(Debug, Clone, Default)]
struct Reading {
    cpus: BTreeMap<usize, CpuTicks>,
    interrupts: BTreeMap<(String, usize), u64>,
}

#[derive(Debug)]
struct Steps {
    length: Duration,
    steps: Vec<Reading>,
    /// End of the incomplete step, and its readings so far.
    due: Instant,
    rest: Reading,
}

impl Recorder {
    /// Starts recording; in longer steps and at the lowest priority if `gives_way`.
    ///
    /// # Errors
    /// If one of the files cannot be opened or parsed.
    pub fn start(gives_way: bool) -> Result<Recorder, ProcError> {
        let step = if gives_way { GENTLE_STEP } else { STEP };
        let files = Files {
            stat: ProcFile::open(PROC_STAT)?,
            interrupts: ProcFile::open(PROC_INTERRUPTS)?,
            softirqs: ProcFile::open(PROC_SOFTIRQS)?,
        };
        let first = files.read()?;
        let (stop, stopped) = mpsc::channel();
        let begun = Instant::now();
        let thread = std::thread::Builder::new()
            .name("timeline".to_owned())
            .spawn(move || {
                if gives_way && let Err(error) = sys::priority::give_way() {
                    tracing::debug!(%error, "the timeline is recorded at normal priority");
                }
                let mut record = Steps::new(step, begun);
                let mut before = first;
                loop {
                    let wait = record.due.saturating_duration_since(Instant::now());
                    let ends = match stopped.recv_timeout(wait) {
                        Err(RecvTimeoutError::Timeout) => false,
                        Ok(()) | Err(RecvTimeoutError::Disconnected) => true,
                    };
                    // Record a failed reading as an empty step, and continue.
                    let after = files.read().unwrap_or_else(|_| before.clone());
                    record.add(after.since(&before), Instant::now());
                    before = after;
                    if ends {
                        return record;
                    }
                }
            })
            .map_err(|e| sys::Error::io("clone", "thread of the timeline", &e))?;
        Ok(Recorder { begun, marks: Vec::new(), stop, thread: Some(thread) })
    }

    /// Records that a cell is measured from now on.
    pub fn mark(&mut self, cell: usize) {
        self.marks.push(Mark { at_s: self.begun.elapsed().as_secs_f64(), cell });
    }

    /// Ends recording; `None` if the run was shorter than a step.
    pub fn finish(mut self) -> Option<Timeline> {
        // Fails only if the thread has already ended.
        let _ = self.stop.send(());
        // A panic there loses the timeline, but no figure.
        let record = self.thread.take()?.join().ok()?;
        let marks = std::mem::take(&mut self.marks);
        (!record.steps.is_empty()).then(|| record.timeline(marks))
    }
}

impl Files {
    fn read(&self) -> Result<Reading, ProcError> {
        let mut interrupts = BTreeMap::new();
        let softirqs = Interrupts::read(PROC_SOFTIRQS, &self.softirqs)?;
        let softirqs = softirqs.counts.into_iter().filter(|(n, _)| SOFTIRQS.contains(&n.as_str()));
        let hard = Interrupts::read(PROC_INTERRUPTS, &self.interrupts)?;
        for (name, cpus) in hard.counts.into_iter().chain(softirqs) {
            interrupts.extend(cpus.into_iter().map(|(cpu, n)| ((name.clone(), cpu), n)));
        }
        Ok(Reading { cpus: CpuStat::read(&self.stat)?.cpus, interrupts })
    }
}

impl Reading {
    fn since(&self, before: &Reading) -> Reading {
        let cpus = self.cpus.iter().map(|(cpu, ticks)| {
            // A CPU that has come online counts from the next step on.
            (*cpu, before.cpus.get(cpu).map_or(CpuTicks::default(), |b| ticks.since(b)))
        });
        let interrupts = self.interrupts.iter().filter_map(|(key, count)| {
            let new = count.saturating_sub(*before.interrupts.get(key)?);
            (new > 0).then(|| (key.clone(), new))
        });
        Reading { cpus: cpus.collect(), interrupts: interrupts.collect() }
    }

    /// Returns one of `parts` equal parts.
    fn part(&self, parts: u64) -> Reading {
        let interrupts = self.interrupts.iter().map(|(key, count)| (key.clone(), count / parts));
        Reading {
            cpus: self.cpus.iter().map(|(cpu, ticks)| (*cpu, ticks.part(parts))).collect(),
            interrupts: interrupts.collect(),
        }
    }

    fn plus(mut self, other: Reading) -> Reading {
        for (cpu, ticks) in other.cpus {
            let sum = self.cpus.entry(cpu).or_default();
            sum.user += ticks.user;
            sum.nice += ticks.nice;
            sum.system += ticks.system;
            sum.idle += ticks.idle;
            sum.iowait += ticks.iowait;
            sum.irq += ticks.irq;
            sum.softirq += ticks.softirq;
            sum.steal += ticks.steal;
        }
        for (key, count) in other.interrupts {
            *self.interrupts.entry(key).or_default() += count;
        }
        self
    }
}

impl Steps {
    fn new(length: Duration, begun: Instant) -> Steps {
        Steps { length, steps: Vec::new(), due: begun + length, rest: Reading::default() }
    }

    /// Adds what was read at `now`, spread evenly over all steps that a thread without a CPU has
    /// missed.
    fn add(&mut self, reading: Reading, now: Instant) {
        self.rest = std::mem::take(&mut self.rest).plus(reading);
        while self.due <= now {
            let late = now.duration_since(self.due).as_nanos() / self.length.as_nanos();
            let part = self.rest.part(u64::try_from(late).map_or(u64::MAX, |late| late + 1));
            self.rest = self.rest.since(&part);
            self.push(part);
            self.due += self.length;
        }
    }

    fn push(&mut self, step: Reading) {
        self.steps.push(step);
        // Full: merge pairs of steps.
        if self.steps.len() >= MOST_STEPS {
            let mut pairs = std::mem::take(&mut self.steps).into_iter();
            while let Some(one) = pairs.next() {
                self.steps.push(match pairs.next() {
                    Some(next) => one.plus(next),
                    None => one,
                });
            }
            self.length *= 2;
        }
    }

    fn timeline(&self, marks: Vec<Mark>) -> Timeline {
        let step_s = self.length.as_secs_f64();
        let mut cpus: BTreeMap<usize, CpuTimeline> = BTreeMap::new();
        let mut totals: BTreeMap<&(String, usize), u64> = BTreeMap::new();
        for step in &self.steps {
            for cpu in step.cpus.keys() {
                cpus.entry(*cpu).or_insert_with(|| CpuTimeline { cpu: *cpu, ..Default::default() });
            }
            for (key, count) in &step.interrupts {
                *totals.entry(key).or_default() += count;
            }
        }
        for (cpu, line) in &mut cpus {
            for step in &self.steps {
                let ticks = step.cpus.get(cpu).copied().unwrap_or_default();
                // Three digits suffice: a step has some hundred ticks at most.
                let share =
                    |part: u64| (part as f64 / ticks.total().max(1) as f64 * 1e3).round() / 1e3;
                line.user.push(share(ticks.user + ticks.nice));
                line.system.push(share(ticks.system));
                line.irq.push(share(ticks.irq));
                line.softirq.push(share(ticks.softirq));
                line.steal.push(share(ticks.steal));
            }
        }
        let least = (self.steps.len() as f64 * step_s) as u64;
        let interrupts = totals.into_iter().filter(|(_, total)| *total >= least.max(1));
        let interrupts = interrupts.map(|(key, _)| {
            let per_s = |step: &Reading| {
                let count = step.interrupts.get(key).copied().unwrap_or(0);
                (count as f64 / step_s * 10.0).round() / 10.0
            };
            InterruptTimeline {
                name: key.0.clone(),
                cpu: key.1,
                per_s: self.steps.iter().map(per_s).collect(),
            }
        });
        Timeline {
            step_s,
            interrupts: interrupts.collect(),
            cpus: cpus.into_values().collect(),
            marks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(user: u64, idle: u64, calls: u64) -> Reading {
        Reading {
            cpus: BTreeMap::from([(0, CpuTicks { user, idle, ..CpuTicks::default() })]),
            interrupts: BTreeMap::from([(("CAL".to_owned(), 0), calls)]),
        }
    }

    #[test]
    fn a_long_run_keeps_its_sums_in_fewer_steps() {
        let mut record = Steps::new(STEP, Instant::now());
        let mut pushed = 0;
        for _ in 0..MOST_STEPS * 3 {
            let times = (record.length.as_millis() / STEP.as_millis()) as u64;
            record.push(reading(20 * times, 5 * times, 100 * times));
            pushed += 100 * times;
        }
        assert!(record.steps.len() < MOST_STEPS);
        let timeline = record.timeline(Vec::new());
        assert_eq!(timeline.step_s, 8.0);
        assert!(timeline.cpus[0].user.iter().all(|share| *share == 0.8), "{timeline:?}");
        let calls: f64 = timeline.interrupts[0].per_s.iter().map(|n| n * timeline.step_s).sum();
        assert_eq!(calls, pushed as f64);
    }

    #[test]
    fn rare_interrupts_are_left_out() {
        let mut record = Steps::new(STEP, Instant::now());
        for _ in 0..100 {
            record.push(Reading { interrupts: BTreeMap::new(), ..reading(1, 1, 0) });
        }
        record.push(reading(1, 1, 3));
        assert!(record.timeline(Vec::new()).interrupts.is_empty());
    }

    #[test]
    fn this_machine_is_recorded() {
        for (gives_way, step) in [(false, STEP), (true, GENTLE_STEP)] {
            let mut recorder = Recorder::start(gives_way).unwrap();
            recorder.mark(0);
            std::thread::sleep(step * 3 / 2);
            let timeline = recorder.finish().unwrap();
            assert_eq!(timeline.step_s, step.as_secs_f64());
            assert!(!timeline.cpus.is_empty() && !timeline.cpus[0].user.is_empty());
            assert_eq!(timeline.marks.len(), 1);
        }
    }

    #[test]
    fn a_reading_that_comes_late_is_all_steps_that_were_missed() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let mut record = Steps::new(STEP, begun);
        // Too early, on time, late by two and a half steps.
        for (now, steps) in [(249, 0), (250, 1), (800, 3)] {
            record.add(reading(20, 5, 10), at(now));
            assert_eq!(record.steps.len(), steps, "{now} ms");
        }
        let calls = |record: &Steps| -> Vec<u64> {
            record.steps.iter().flat_map(|step| step.interrupts.values().copied()).collect()
        };
        // Values that came early belong to the first step.
        assert_eq!(calls(&record), [20, 5, 5]);

        // Late enough that steps are merged: no bytes are lost or early.
        let late = STEP.as_millis() as u64 * (MOST_STEPS as u64 * 5 + 1);
        record.add(reading(20_000, 5000, 100_000), at(late));
        assert!(record.steps.len() < MOST_STEPS && record.length > STEP * 4);
        let rest: u64 = record.rest.interrupts.values().sum();
        assert_eq!(calls(&record).iter().sum::<u64>() + rest, 100_030);
        assert!(record.due > at(late) && record.due <= at(late) + record.length);
    }
}
