//! `overlane watch`: shows the network live, interval by interval.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use daemon::background::READY;
use daemon::confinement::{self, serving};
use daemon::notify::notify;
use daemon::watch_metrics::WatchService;
use nix::time::{ClockId, clock_gettime};
use observe::peer::Peer;
use observe::{Budget, Snapshot};

use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::output::{columns, complain, print, print_folded, print_json_line};
use crate::packet_filter::hosts;
use crate::recording::{Indexed, Recorder, Recording};
use crate::screen::{self, Source};
use crate::watch_args::Watch;
use crate::watch_peer::{self, Serving};

/// Allowed interval lengths: below, the overhead dominates; above, averages say little.
const INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);
/// Time limit for the peer to answer before the first interval starts without it.
const BEGINNING: Duration = Duration::from_secs(6);

/// `--once` looks for a packet for this long if the budget left little time to look.
const LOOKING: Duration = Duration::from_secs(10);

/// Shows intervals until a limit or a signal.
///
/// # Errors
/// Wrong usage; a kernel without tracing, or missing privileges; a file that is not a recording.
pub fn run(arguments: &Watch) -> anyhow::Result<Exit> {
    let wants_text = arguments.json || arguments.text || arguments.once;
    let wants_none = arguments.count.is_some() || arguments.metrics.is_some();
    let wants_none = wants_none || arguments.serve.is_some();
    let has_screen = !wants_text && !wants_none && screen::is_possible();
    match &arguments.from {
        Some(path) if has_screen => {
            let recording = Indexed::open(path)?;
            on_screen(|stop| screen::run(Source::Recording(recording), stop))
        }
        Some(path) => play(path, arguments),
        None => {
            let mut measuring = Measuring::start(arguments)?;
            if has_screen {
                return on_screen(|stop| measuring.on_screen(stop));
            }
            measuring.as_text(arguments)
        }
    }
}

/// Runs the interface until it exits or a signal arrives, and restores the terminal.
fn on_screen(show: impl FnOnce(&Arc<AtomicBool>) -> anyhow::Result<Exit>) -> anyhow::Result<Exit> {
    let stop = interrupt::flag_that_waits()?;
    show(&stop)
}

/// A running observation and the outputs of its intervals.
struct Measuring {
    watch: observe::Watch,
    interval: Duration,
    record: Option<Recorder>,
    service: Option<WatchService>,
    serving: Option<Serving>,
    peer: Option<Peer>,
}

impl Measuring {
    fn start(arguments: &Watch) -> anyhow::Result<Measuring> {
        let interval = Duration::from(arguments.interval);
        if !INTERVALS.contains(&interval) {
            let (least, most) = (INTERVALS.start(), INTERVALS.end());
            let problem = format!("{interval:?}: expected {least:?} to {most:?}");
            return Err(usage("--interval", problem));
        }
        arguments.filter.check_device()?;
        let (filter, budget) = (arguments.filter.parse()?, budget(&arguments.budget)?);
        let namespaces = arguments.filter.namespaces()?;
        // A token without a connection is likely a mistake.
        if arguments.token.is_some() && arguments.serve.is_none() && arguments.peer.is_none() {
            return Err(usage("--token", "it requires --serve or --peer"));
        }
        let token = arguments.token.as_deref();
        let server = arguments.serve.as_deref().map(|address| watch_peer::listen(address, token));
        let server = server.transpose()?;
        let wanted = arguments
            .peer
            .as_deref()
            .map(|address| watch_peer::wanted(address, token, &filter, interval));
        let wanted = wanted.transpose()?;
        // Remote hosts reach only the process that `listen` started. This one keeps the rights to
        // trace, and gives up the others. Threads inherit the reduced rights.
        let rights = match server {
            Some(_) => {
                confinement::prepare()?;
                Some(serving::give_up_but_watching()?)
            }
            None => None,
        };
        // Fail on an occupied address before writing or attaching anything.
        let service = arguments.metrics.as_ref().map(WatchService::at).transpose()?;
        let record = arguments.record.as_deref().map(Recorder::new).transpose()?;
        let mut watch = observe::Watch::start(filter, &namespaces, budget)?;
        if let Some(service) = &service {
            service.begin(&mut watch);
        }
        let serving = server.map(|server| watch_peer::begin(server, &mut watch)).transpose()?;
        let peer = wanted.map(|wanted| wanted.begin(&mut watch)).transpose()?;
        rights.as_ref().map(serving::confine).transpose()?;
        Ok(Measuring { watch, interval, record, service, serving, peer })
    }

    /// Measures the next interval. It ends early if `goes_on` returns false.
    fn next(&mut self, goes_on: &dyn Fn() -> bool) -> anyhow::Result<Snapshot> {
        let own_cpu = || {
            // Cannot fail: every kernel has this clock.
            clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
        };
        let service = self.service.as_ref();
        // Called throughout the interval, so it also sends the heartbeat.
        let goes_on = || {
            service.iter().for_each(|service| service.beat());
            goes_on()
        };
        let mut snapshot = self.watch.interval(self.interval, &own_cpu, &hosts(), &goes_on)?;
        snapshot.peer = self.peer.as_ref().map(Peer::seen);
        if let Some(record) = &mut self.record {
            record.add(&snapshot)?;
        }
        Ok(snapshot)
    }

    fn as_text(&mut self, arguments: &Watch) -> anyhow::Result<Exit> {
        let stop = interrupt::flag()?;
        let goes_on = || !stop.load(Ordering::Relaxed);
        let mut left = if arguments.once { Some(1) } else { arguments.count };
        let metrics = arguments.metrics.as_ref().map(|place| format!("metrics at {place}"));
        let places = metrics.into_iter().chain(self.serving.as_ref().map(Serving::place));
        let places: Vec<String> = places.collect();
        if !places.is_empty() {
            // With printed intervals, standard output must have nothing else.
            if !is_shown(arguments) {
                print(&format!("{READY}: {}", places.join("; ")))?;
            }
            notify("READY=1")?;
        }
        // Wait for the peer: otherwise the first interval, perhaps the only one, would lack its
        // data.
        self.peer.iter().for_each(|peer| peer.begun(BEGINNING, &goes_on));
        while goes_on() && left != Some(0) {
            let begun = Instant::now();
            let mut snapshot = self.next(&goes_on)?;
            while arguments.once
                && followed_too_little(&snapshot)
                && begun.elapsed() < LOOKING
                && goes_on()
            {
                snapshot = self.next(&goes_on)?;
            }
            if is_shown(arguments) {
                show(&snapshot, arguments)?;
            }
            left = left.map(|left| left - 1);
        }
        // A signal is the normal end of a service.
        let is_done = goes_on() || is_service(arguments);
        Ok(if is_done { Exit::Done } else { Exit::Interrupted })
    }

    /// Runs the interface in its own thread, so that keys do not wait for an interval.
    fn on_screen(&mut self, stop: &AtomicBool) -> anyhow::Result<Exit> {
        std::thread::scope(|scope| {
            let (sender, intervals) = mpsc::channel();
            let screen = scope.spawn(move || screen::run(Source::Live(intervals), stop));
            let goes_on = || !screen.is_finished();
            let mut measured = Ok(());
            while goes_on() && measured.is_ok() {
                // Sending fails once the interface has exited; the loop then ends.
                measured = self.next(&goes_on).map(|snapshot| drop(sender.send(snapshot)));
            }
            // Closing the channel ends the interface if it is still running.
            drop(sender);
            let shown = screen.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            measured.and(shown)
        })
    }
}

/// Returns whether no packet was followed because the budget left little time to look.
fn followed_too_little(snapshot: &Snapshot) -> bool {
    snapshot.followed == 0 && snapshot.looked < 0.5
}

/// Returns whether `watch` runs as a service, for Prometheus or another host.
fn is_service(arguments: &Watch) -> bool {
    arguments.metrics.is_some() || arguments.serve.is_some()
}

/// Returns whether intervals are printed. A service prints them only on request.
fn is_shown(arguments: &Watch) -> bool {
    !is_service(arguments) || arguments.json || arguments.text || arguments.once
}

fn show(snapshot: &Snapshot, arguments: &Watch) -> anyhow::Result<()> {
    match arguments.json {
        true => print_json_line(snapshot),
        false => print_folded(&snapshot.text_within(columns())),
    }
}

fn budget(text: &str) -> anyhow::Result<Budget> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    let cpu = percent.filter(|percent| (0.1..=100.0).contains(percent));
    let cpu = cpu.ok_or_else(|| usage("--budget", format!("{text:?}: expected 0.1% to 100%")))?;
    Ok(Budget { cpu, most: 1 })
}

/// Prints a recording.
fn play(path: &Path, arguments: &Watch) -> anyhow::Result<Exit> {
    let mut recording = Recording::open(path)?;
    let stop = interrupt::flag()?;
    let mut left = if arguments.once { 1 } else { arguments.count.unwrap_or(u64::MAX) };
    while left > 0
        && let Some(snapshot) = recording.next()?
    {
        if stop.load(Ordering::Relaxed) {
            return Ok(Exit::Interrupted);
        }
        show(&snapshot, arguments)?;
        left -= 1;
    }
    if arguments.json {
        complain("end of the recording");
    }
    Ok(Exit::Done)
}
