//! `overlane trace`: follows single packets through devices, tunnels and namespaces.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use doctor::{Scope, collect, diagnose};
use observe::{Filter, Finished, PaceChange, PacketEnding, TraceOptions, TraceSession};

use crate::capture_file::CaptureFile;
use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::output::{complain, print, print_json_line, style};
use crate::packet_filter::hosts;
use crate::trace_args::Trace;

/// Time between two checks whether to stop.
const TICK: Duration = Duration::from_millis(50);
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
    // An explicit --sample stays as given.
    let adapts = arguments.sample.is_none();
    let slower_than = arguments.slower_than.map(|limit| *limit);
    let mut session =
        TraceSession::start(TraceOptions { filter, hosts: hosts(), adapts, slower_than })?;
    for left_out in session.left_out() {
        complain(&format!("skipped: {left_out}"));
    }
    for not_seen in session.not_seen() {
        complain(&format!("this kernel does not show {not_seen}"));
    }
    complain("tracing: Ctrl-C ends it");
    let begun = Instant::now();
    let mut output = PacketOutput { arguments, capture, shown: 0, checks: BTreeSet::new() };
    let is_over = |shown: u64| {
        stop.load(Ordering::Relaxed)
            || arguments.duration.is_some_and(|limit| begun.elapsed() >= *limit)
            || arguments.count.is_some_and(|count| shown >= count)
    };
    while !is_over(output.shown) {
        let finished = session.poll(TICK)?;
        if let Some(change) = session.rate_change() {
            complain(&rate(change));
        }
        output.show(finished)?;
        output.write(session.oldest().unwrap_or(u64::MAX))?;
    }
    output.show(session.finish()?)?;
    output.write(u64::MAX)?;
    let (shown, lost, not_told) = (output.shown, session.lost()?, session.counted()?);
    let counted: u64 = not_told.iter().map(|drops| drops.packets).sum();
    complain(&match counted {
        // bench/peers parses both forms.
        0 => format!("{shown} packets reported, {lost} events lost"),
        _ => format!("{shown} packets reported, {counted} drops only counted, {lost} events lost"),
    });
    for drops in &not_told {
        complain(&format!("only counted: {drops}"));
    }
    if arguments.explain {
        explain(&output.checks)?;
    }
    Ok(if stop.load(Ordering::Relaxed) { Exit::Interrupted } else { Exit::Done })
}

/// Describes a change of the sample rate.
fn rate(change: PaceChange) -> String {
    let lost = match change.lost {
        0 => String::new(),
        lost => format!("{lost} events lost: "),
    };
    match change.one_in {
        1 => "now tracing every packet".to_owned(),
        one_in => format!("{lost}now tracing 1 in {one_in} packets"),
    }
}

/// Prints packets, and writes them to the file of `--pcapng`.
struct PacketOutput<'a> {
    arguments: &'a Trace,
    capture: Option<CaptureFile>,
    shown: u64,
    /// Codes of the `doctor` checks for the causes of the printed drops.
    checks: BTreeSet<String>,
}

impl PacketOutput<'_> {
    /// Prints packets up to `--count`.
    fn show(&mut self, finished: Vec<Finished>) -> anyhow::Result<()> {
        for Finished { journey, packet } in finished {
            // One poll may return more packets than --count still allows.
            if self.arguments.count.is_some_and(|count| self.shown >= count) {
                break;
            }
            if let Some(capture) = &mut self.capture {
                capture.add(&journey, &packet);
            }
            match self.arguments.json {
                true => print_json_line(&packet)?,
                false => print(&packet.text())?,
            }
            self.shown += 1;
            self.checks.extend(packet.legs.into_iter().filter_map(|leg| match leg.ending {
                PacketEnding::Dropped { check, .. } => check,
                _ => None,
            }));
        }
        Ok(())
    }

    /// Writes the steps before this time (`CLOCK_MONOTONIC`, ns) to the file.
    fn write(&mut self, before: u64) -> anyhow::Result<()> {
        self.capture.as_mut().map_or(Ok(()), |capture| capture.write(before))
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
