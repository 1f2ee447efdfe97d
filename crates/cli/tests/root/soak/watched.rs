//! Watches a program from outside.

use std::time::Instant;

/// Limit of the growth of resident memory after the start, bytes.
const GROWTH: u64 = 4 << 20;

/// CPU time that a process has taken, s.
pub fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name may have spaces; it ends with the last parenthesis.
    let fields: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks as f64 / netstate::cpu::user_hz() as f64
}

/// Resources of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Resident memory without files (`RssAnon`), bytes. Pages of the program's file become
    /// resident one by one, on first use.
    pub memory: u64,
    /// Entries of `/proc/PID/fd`.
    pub descriptors: usize,
    /// Entries of `/proc/PID/task`.
    pub threads: usize,
}

impl Held {
    pub fn by(pid: u32) -> Held {
        let count = |what| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let kib: u64 = line.trim_end_matches("kB").trim().parse().unwrap();
        Held { memory: kib << 10, descriptors: count("fd"), threads: count("task") }
    }
}

/// A program's resources over its life, compared with its state after the first traffic.
#[derive(Debug)]
pub struct Watched {
    pid: u32,
    start: Instant,
    /// After the first traffic.
    first: Option<Held>,
    pub largest: u64,
}

impl Watched {
    pub fn new(pid: u32) -> Watched {
        Watched { pid, start: Instant::now(), first: None, largest: 0 }
    }

    /// Asserts that it uses no more resources than after the first traffic.
    pub fn look(&mut self) -> Held {
        let first = *self.first.get_or_insert_with(|| Held::by(self.pid));
        // A connection of a recent request may not be closed yet.
        let now = testbed::poll("descriptors as before", super::foreground::LIMIT, || {
            let now = Held::by(self.pid);
            let same = (now.descriptors, now.threads) == (first.descriptors, first.threads);
            Ok(if same { Ok(now) } else { Err(format!("{first:?} before, {now:?}")) })
        });
        let now = now.unwrap();
        assert!(now.memory <= first.memory + GROWTH, "{first:?} before, {now:?}");
        self.largest = self.largest.max(now.memory);
        now
    }

    /// Resources at the start and at most, and its share of a CPU, as text.
    pub fn summary(&self) -> String {
        let first = self.first.map_or(0, |held| held.memory);
        let share = cpu_seconds(self.pid) / self.start.elapsed().as_secs_f64();
        format!(
            "{} KiB, then at most {} KiB; {:.0}% of a CPU",
            first >> 10,
            self.largest >> 10,
            share * 100.0
        )
    }
}
