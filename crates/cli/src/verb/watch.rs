//! `overlane watch`: the network, live, interval by interval.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use foreign::bounded::{Limits, Weights};
use nix::time::{ClockId, clock_gettime};
use observe::{Budget, Snapshot};

use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::output::{complain, print, print_json_line};
use crate::packet_filter::hosts;
use crate::watch_args::Watch;

/// Shorter ones are mostly work for this program, longer ones are averages of nothing.
const INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);
/// A line of a recording: an interval of 64 ways of 64 hops has less.
const LIMITS: Limits = Limits {
    bytes: 16 << 20,
    string: 4096,
    word: 64,
    depth: 16,
    memory: 64 << 20,
    weights: Weights { object: 512, list: 64, string: 64, word: 8 },
};

/// Shows interval after interval until it is told to end.
///
/// # Errors
/// Usage; a kernel that lets nobody look, or not this process; a recording that is none.
pub fn run(arguments: &Watch) -> anyhow::Result<Exit> {
    match &arguments.from {
        Some(path) => play(path, arguments),
        None => watch(arguments),
    }
}

fn watch(arguments: &Watch) -> anyhow::Result<Exit> {
    let interval = Duration::from(arguments.interval);
    if !INTERVALS.contains(&interval) {
        let (least, most) = (INTERVALS.start(), INTERVALS.end());
        let problem = format!("{interval:?}: expected {least:?} to {most:?}");
        return Err(usage("--interval", problem));
    }
    let (filter, budget) = (arguments.filter.parse()?, budget(&arguments.budget)?);
    let mut record = arguments.record.as_deref().map(recording).transpose()?;
    let stop = interrupt::flag()?;
    let goes_on = || !stop.load(Ordering::Relaxed);
    let mut watch = observe::Watch::start(filter, budget)?;
    let mut left = if arguments.once { Some(1) } else { arguments.count };
    let own_cpu = || {
        // The kernel has this clock always.
        clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
    };
    while goes_on() && left != Some(0) {
        let snapshot = watch.interval(interval, &own_cpu, &hosts(), &goes_on)?;
        show(&snapshot, arguments)?;
        if let Some((file, path)) = &mut record {
            let line = serde_json::to_string(&snapshot)? + "\n";
            let written = file.write_all(line.as_bytes());
            written.with_context(|| format!("write {}", path.display()))?;
        }
        left = left.map(|left| left - 1);
    }
    Ok(if goes_on() { Exit::Done } else { Exit::Interrupted })
}

fn show(snapshot: &Snapshot, arguments: &Watch) -> anyhow::Result<()> {
    match arguments.json {
        true => print_json_line(snapshot),
        false => print(&snapshot.text()),
    }
}

/// A new file: an earlier recording is nobody's to lose.
fn recording(path: &Path) -> anyhow::Result<(File, &Path)> {
    let file = File::create_new(path);
    let file = file.map_err(|error| {
        usage("--record", format!("{} cannot be made: {error}", path.display()))
    })?;
    Ok((file, path))
}

fn budget(text: &str) -> anyhow::Result<Budget> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    let cpu = percent.filter(|percent| (0.1..=100.0).contains(percent));
    let cpu = cpu.ok_or_else(|| usage("--budget", format!("{text:?}: expected 0.1% to 100%")))?;
    Ok(Budget { cpu, most: 1 })
}

/// Shows a recording.
fn play(path: &Path, arguments: &Watch) -> anyhow::Result<Exit> {
    let problem = |line: usize, error: &dyn std::fmt::Display| {
        usage("FILE", format!("{}, line {line}: {error}", path.display()))
    };
    let file = File::open(path).map_err(|e| usage("FILE", format!("{}: {e}", path.display())))?;
    let mut reader = BufReader::new(file);
    let most = if arguments.once { 1 } else { arguments.count.unwrap_or(u64::MAX) };
    let stop = interrupt::flag()?;
    for number in 1.. {
        let mut line = Vec::new();
        let mut limited = reader.by_ref().take(LIMITS.bytes + 1);
        limited.read_until(b'\n', &mut line).map_err(|error| problem(number, &error))?;
        if line.is_empty() || number as u64 > most {
            break;
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(Exit::Interrupted);
        }
        LIMITS.check(&line).map_err(|error| problem(number, &error))?;
        let snapshot: Snapshot =
            serde_json::from_slice(&line).map_err(|error| problem(number, &error))?;
        if snapshot.format != observe::FORMAT {
            let (got, wanted) = (snapshot.format, observe::FORMAT);
            return Err(problem(number, &format!("format {got}, this version reads {wanted}")));
        }
        show(&snapshot, arguments)?;
    }
    if arguments.json {
        complain("end of the recording");
    }
    Ok(Exit::Done)
}
