//! `overlane trace`: follows single packets through devices, tunnels and namespaces.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use doctor::{Scope, collect, diagnose};
use nix::time::{ClockId, clock_gettime};
use observe::{
    Called, Filter, Journey, Journeys, NotTold, Pace, Packet, PacketEnding, Places, Tracer,
};

use crate::capture_file::CaptureFile;
use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::output::{complain, print, print_json_line, style};
use crate::packet_filter::hosts;
use crate::trace_args::Trace;

/// Time between two checks whether to stop.
const TICK: Duration = Duration::from_millis(50);
/// Time between two readings of namespaces, devices and connections.
const REFRESH: Duration = Duration::from_secs(2);
/// Largest N of `--sample 1/N`.
const MOST_SAMPLED: u32 = 1 << 30;

/// Traces packets until a limit or a signal, and prints them.
///
/// # Errors
/// Wrong usage; a kernel without tracing, or missing privileges.
pub fn run(arguments: &Trace) -> anyhow::Result<Exit> {
    let filter = Filter {
        sample: arguments.sample.as_deref().map_or(Ok(1), sample)?,
        drops_only: arguments.drops_only,
        headers: arguments.pcapng.as_ref().map(|_| arguments.payload),
        ..arguments.filter.parse()?
    };
    // The BPF program has a buffer of this size.
    if arguments.payload > Filter::MOST_PAYLOAD {
        let (got, most) = (arguments.payload, Filter::MOST_PAYLOAD);
        return Err(usage("--payload", format!("{got}: expected at most {most} bytes")));
    }
    // Create the file before attaching programs, so that a wrong path fails early.
    let capture = arguments.pcapng.as_deref().map(CaptureFile::new).transpose()?;
    let stop = interrupt::flag()?;
    let mut places = Places::of_machine()?;
    let mut tracer = Tracer::start(filter, &places)?;
    for left_out in &places.left_out {
        complain(&format!("skipped: {left_out}"));
    }
    for not_seen in &tracer.not_seen {
        complain(&format!("this kernel does not show {not_seen}"));
    }
    let hosts = hosts();
    complain("tracing: Ctrl-C ends it");
    let (begun, mut refreshed) = (Instant::now(), None::<Instant>);
    // An explicit --sample stays as given. Drops have their own rate limit: excess ones are
    // counted.
    let is_paced = arguments.sample.is_none() && !arguments.drops_only;
    let mut pace = is_paced.then(Pace::default);
    let mut looked = Instant::now();
    let mut telling =
        Telling { arguments, capture, told: 0, checks: BTreeSet::new(), not_told: Vec::new() };
    let mut journeys = Journeys::default();
    let is_over = |told: u64| {
        stop.load(Ordering::Relaxed)
            || arguments.duration.is_some_and(|limit| begun.elapsed() >= *limit)
            || arguments.count.is_some_and(|count| told >= count)
    };
    while !is_over(telling.told) {
        // Namespaces and devices come and go while tracing.
        if refreshed.is_none_or(|at| at.elapsed() >= REFRESH) {
            places = tracer.refresh()?;
            refreshed = Some(Instant::now());
        }
        let events = tracer.poll(TICK)?;
        if let Some(pace) = &mut pace {
            keep(pace, &mut tracer, events.len(), looked.elapsed())?;
            looked = Instant::now();
        }
        let mut ended = journeys.take(events);
        ended.extend(journeys.settle_when_due(now()?));
        let names = Called { places: &places, hosts: &hosts, tracer: &tracer };
        telling.tell(&ended, &names)?;
        if let Some(capture) = &mut telling.capture {
            capture.write(journeys.oldest().unwrap_or(u64::MAX))?;
        }
    }
    let names = Called { places: &places, hosts: &hosts, tracer: &tracer };
    telling.tell(&journeys.finish(), &names)?;
    if let Some(capture) = &mut telling.capture {
        capture.write(u64::MAX)?;
    }
    let (told, lost) = (telling.told, tracer.lost()?);
    let not_told = tracer.not_told()?;
    let counted: u64 = not_told.iter().map(|drops| drops.packets).sum();
    complain(&match counted {
        // scripts/peers parses both forms.
        0 => format!("{told} packets told, {lost} events lost"),
        _ => format!("{told} packets told, {counted} drops only counted, {lost} events lost"),
    });
    for drops in &not_told {
        complain(&format!("only counted: {drops}"));
    }
    if arguments.explain {
        explain(&telling.checks)?;
    }
    Ok(if stop.load(Ordering::Relaxed) { Exit::Interrupted } else { Exit::Done })
}

/// Adapts the sampling rate to the number of `events` read in the `elapsed` time.
fn keep(
    pace: &mut Pace,
    tracer: &mut Tracer,
    events: usize,
    elapsed: Duration,
) -> anyhow::Result<()> {
    let Some(change) = pace.look(events as u64, tracer.lost()?, elapsed) else { return Ok(()) };
    tracer.sample(change.one_in)?;
    let lost = match change.lost {
        0 => String::new(),
        lost => format!("{lost} events lost: "),
    };
    complain(&match change.one_in {
        1 => "now tracing every packet".to_owned(),
        one_in => format!("{lost}now tracing 1 in {one_in} packets"),
    });
    Ok(())
}

/// Returns `CLOCK_MONOTONIC` in ns.
fn now() -> anyhow::Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).context("clock_gettime")?;
    Ok(u64::try_from(Duration::from(time).as_nanos())?)
}

/// Prints packets.
struct Telling<'a> {
    arguments: &'a Trace,
    /// The file of `--pcapng`.
    capture: Option<CaptureFile>,
    /// Number of packets printed so far.
    told: u64,
    /// Codes of the `doctor` checks for the causes of the printed drops.
    checks: BTreeSet<String>,
    /// Drops that were only counted, as of the last printed packet.
    not_told: Vec<NotTold>,
}

impl Telling<'_> {
    /// Prints the journeys that pass `--slower-than`, up to `--count`.
    fn tell(&mut self, ended: &[Journey], names: &Called<'_>) -> anyhow::Result<()> {
        let slower_than = self.arguments.slower_than.map(|limit| limit.as_nanos());
        let is_slow =
            |journey: &&Journey| slower_than.is_none_or(|limit| u128::from(journey.took()) > limit);
        let mut is_first = self.arguments.drops_only;
        for journey in ended.iter().filter(is_slow) {
            // One poll may return more journeys than --count still allows.
            if self.arguments.count.is_some_and(|count| self.told >= count) {
                break;
            }
            let mut packet = Packet::of(journey, names);
            // Attach the counts to the first packet of a batch only, so that none is counted twice.
            if std::mem::take(&mut is_first) {
                let all = names.tracer.not_told()?;
                packet.not_told = NotTold::since(&self.not_told, &all);
                self.not_told = all;
            }
            if let Some(capture) = &mut self.capture {
                capture.add(journey, &packet);
            }
            match self.arguments.json {
                true => print_json_line(&packet)?,
                false => print(&packet.text())?,
            }
            self.told += 1;
            self.checks.extend(packet.legs.into_iter().filter_map(|leg| match leg.ending {
                PacketEnding::Dropped { check, .. } => check,
                _ => None,
            }));
        }
        Ok(())
    }
}

/// Runs these checks on this host and prints the findings.
fn explain(checks: &BTreeSet<String>) -> anyhow::Result<()> {
    // Without a matching check, reading the whole host would be useless.
    if checks.is_empty() {
        return print("no doctor check covers the reported drops");
    }
    let mut diagnosis = diagnose(&collect(Scope::All, Duration::ZERO)?);
    diagnosis.findings.retain(|finding| checks.contains(&finding.code));
    let found = |code: &&String| diagnosis.findings.iter().any(|finding| finding.code == **code);
    for code in checks.iter().filter(|code| !found(code)) {
        print(&format!("{code} has no finding now (overlane doctor explain {code})"))?;
    }
    match diagnosis.findings.is_empty() {
        true => Ok(()),
        false => print(&report::diagnosis_text(&diagnosis, style())),
    }
}

/// Parses `1/N`.
fn sample(text: &str) -> anyhow::Result<u32> {
    let sample = text.strip_prefix("1/").and_then(|text| text.parse::<u32>().ok());
    let sample = sample.filter(|sample| (1..=MOST_SAMPLED).contains(sample));
    sample.ok_or_else(|| {
        usage("--sample", format!("{text:?}: expected 1/N, N from 1 to {MOST_SAMPLED}"))
    })
}
