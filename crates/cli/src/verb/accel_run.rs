//! `overlane accel run`: runs the fast path in the foreground, as a service or node agent.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use accel::events::What;
use accel::{Accel, Caretaker, Finder, Options, Security, Wanted};
use anyhow::Context;
use daemon::accelerator;
use daemon::background::READY;
use daemon::confinement::{self, accel as confined};
use daemon::metrics::{self, Bound, ListenAddress, Page};
use daemon::notify::notify;
use daemon::serving::{Listener, Serving};
use daemon::signals::{on_signals, wait, wait_beside};
use daemon::takeover;
use signal_hook::consts::{SIGINT, SIGTERM};
use sys::netns::NetNs;

use super::accel::check;
use super::accel_headline::headline;
use crate::accel_args::AccelServe;
use crate::accel_events::{self, Events, Sink};
use crate::exit::Exit;
use crate::named_netns::netns;
use crate::output::print;

/// Number of sandboxes to load programs for in advance: a confined process cannot load any.
const SANDBOXES: u16 = 12;

/// Accelerates until a signal or a takeover ends it.
pub fn run(serve: &AccelServe) -> anyhow::Result<Exit> {
    let arguments = &serve.run.devices;
    let netns = netns("--netns", arguments.netns.as_deref())?;
    check(arguments, &netns)?;
    let (claim, mut takeover) = match serve.takeover {
        true => takeover::claim(&netns)?,
        false => (accelerator::claim(&netns)?, None),
    };
    let (mut pages, also) = pages(serve, takeover.is_some())?;
    let sink = serve.events.as_deref().map(accel_events::open).transpose()?;
    let end = on_signals(&[SIGINT, SIGTERM])?;
    let wanted = match &arguments.device {
        Some(device) => Wanted::Named([device.clone()].into()),
        None => Wanted::All,
    };
    let max_entries = serve.run.max_entries.unwrap_or(accel::DEFAULT_MAX_ENTRIES);
    confinement::prepare()?;
    // Needs access to other processes and to rename(2), which confinement takes away below.
    if let Some(takeover) = &mut takeover {
        takeover.prepare(&claim, also)?;
    }
    let caretaker = Caretaker::start(&netns, confined::give_up_but_renewing)?;
    // The finder keeps rights that this process gives up below.
    let finder = Finder::start(&netns, &[caretaker.pid()], confined::give_up_but_looking)?;
    // Reads addresses of the kernel, which it hides from the confined process.
    let security = Security::open();
    let rights = confined::give_up()?;
    let running = Arc::new(OnceLock::new());
    // Probes get an answer ("starting") before the fast path is attached.
    let mut probes = pages.listening()?.map(|listener| answer(listener, &running)).transpose()?;
    let predecessor = takeover.as_ref().map(|s| s.predecessor().programs.clone());
    let options = Options {
        max_entries,
        finder: Some(finder),
        caretaker: Some(caretaker.watch()?),
        predecessor: predecessor.unwrap_or_default(),
        max_flows: serve.run.max_flows.unwrap_or(accel::DEFAULT_MAX_FLOWS),
        accounting: serve.run.counters(),
        spares: SANDBOXES,
        security: Some(security),
        ..Options::default()
    };
    caretaker.arm()?;
    let begun = begin(&netns, &wanted, options, &end);
    let Ok(Some(accel)) = begun else {
        // Nothing is attached. A running predecessor's connections stay on its fast path.
        caretaker.end();
        return begun.map(|_| Exit::Done);
    };
    let accel = Arc::new(accel);
    let _ = running.set(Arc::downgrade(&accel));
    let handed_over = Arc::new(AtomicBool::new(false));
    let door = accelerator::door(&claim, accel.clone(), wanted, handed_over.clone())?;
    let serving = Serving::start(vec![door])?;
    if let Some(listener) = pages.beside()? {
        probes = Some(answer(listener, &running)?);
    }
    let predecessor = takeover.map(|takeover| takeover.take_over()).transpose()?;
    confined::confine(&rights)?;
    let events = sink.map(|sink| begin_events(sink, &accel, &netns, predecessor)).transpose()?;
    if !serve.events.as_deref().is_some_and(accel_events::is_stdout) {
        print(&ready(&accel))?;
    }
    notify("READY=1")?;
    let deleted: Vec<_> = accel.deleted().into_iter().collect();
    wait_beside([serving.ended(), end.as_fd()], &deleted)?;
    // In this order, so that when the requester sees the connection close, everything is detached
    // and the name is free. The socket file stays: a confined process cannot remove files.
    let asker = serving.stop();
    let handed_over = handed_over.load(Ordering::Acquire);
    if !(handed_over && serve.linger) {
        notify("STOPPING=1")?;
    }
    drop(probes);
    if let (Some(events), true) = (&events, handed_over) {
        events.send(What::HandedOver);
    }
    detach(accel);
    // Every connection was left to conntrack, or belongs to a successor.
    caretaker.end();
    if let Some(events) = events {
        events.send(What::Stopped);
        drop(events);
    }
    drop(claim);
    drop(asker);
    if handed_over && serve.linger {
        // The supervisor would restart this process, which would then take over in turn.
        wait([end.as_fd()])?;
        notify("STOPPING=1")?;
    }
    Ok(Exit::Done)
}

/// Returns the `ready` line. One line, because the reader may close the pipe after it.
fn ready(accel: &Accel) -> String {
    let devices: Vec<String> = accel
        .noted()
        .devices
        .iter()
        .map(|device| format!("{}: {}", device.device, headline(device)))
        .collect();
    let devices =
        if devices.is_empty() { "no VXLAN device yet".to_owned() } else { devices.join(", ") };
    format!("{READY}: {devices}; confined: {}", confinement::in_force())
}

/// Drops the fast path once no other thread uses it.
fn detach(mut accel: Arc<Accel>) {
    // The event thread uses it for a few microseconds at a time.
    // Drop the last reference here, so that everything is detached when this returns.
    while let Err(shared) = Arc::try_unwrap(accel) {
        accel = shared;
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn begin_events(
    sink: Sink,
    accel: &Arc<Accel>,
    netns: &NetNs,
    predecessor: Option<u32>,
) -> anyhow::Result<Events> {
    let started = What::Started {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        netns: netns.inode(),
        predecessor,
    };
    Events::start(sink, accel, vec![started])
}

/// The listener for metrics before it serves.
enum Pages {
    None,
    Listening(Listener),
    /// A TCP address that the predecessor also serves until the takeover.
    Bound(Bound),
    /// A Unix socket beside the predecessor's, renamed over it at the takeover.
    Beside(Listener),
}

/// Opens the listener, because a confined process cannot. Also returns the files to rename.
fn pages(
    serve: &AccelServe,
    succeeds: bool,
) -> anyhow::Result<(Pages, Option<(PathBuf, PathBuf)>)> {
    Ok(match (&serve.metrics, serve.takeover) {
        (None, _) => (Pages::None, None),
        // With --takeover, share the address with the predecessor until the takeover.
        (Some(ListenAddress::Tcp(address)), true) => {
            let bound = metrics::bind_beside(address)?;
            (if succeeds { Pages::Bound(bound) } else { Pages::Listening(bound.listen()?) }, None)
        }
        (Some(ListenAddress::Unix(path)), true) if succeeds => {
            let mut next = path.as_os_str().to_owned();
            // A Unix socket cannot be shared, so bind a second file and rename it later.
            next.push(".next");
            let next = PathBuf::from(next);
            let listener = metrics::listen(&ListenAddress::Unix(next.clone()))?;
            (Pages::Beside(listener), Some((next, path.clone())))
        }
        (Some(place), _) => (Pages::Listening(metrics::listen(place)?), None),
    })
}

impl Pages {
    /// Takes the listener that can serve before the fast path is attached.
    fn listening(&mut self) -> anyhow::Result<Option<Listener>> {
        Ok(match std::mem::replace(self, Pages::None) {
            Pages::Listening(listener) => Some(listener),
            other => {
                *self = other;
                None
            }
        })
    }

    /// Returns the listener that replaces the predecessor's after the takeover.
    fn beside(self) -> anyhow::Result<Option<Listener>> {
        Ok(match self {
            Pages::Bound(bound) => Some(bound.listen()?),
            Pages::Beside(listener) => Some(listener),
            Pages::None | Pages::Listening(_) => None,
        })
    }
}

/// Starts to serve metrics and probes.
fn answer(listener: Listener, running: &Arc<OnceLock<Weak<Accel>>>) -> anyhow::Result<Serving> {
    metrics::look_after(listener, FastPath(running.clone()))
}

struct FastPath(Arc<OnceLock<Weak<Accel>>>);

impl FastPath {
    fn accel(&self) -> Option<Arc<Accel>> {
        self.0.get().and_then(Weak::upgrade)
    }
}

impl metrics::Service for FastPath {
    fn metrics(&self) -> Page {
        let Some(accel) = self.accel() else {
            return Page::unavailable("the fast path is starting\n");
        };
        let version = env!("CARGO_PKG_VERSION");
        Page::ok(accel::exposition(&accel.status(), &accel.vitals(), version))
    }

    fn healthz(&self) -> Page {
        match self.accel().map(|accel| accel.vitals()) {
            // Reading a machine with many processes takes long, before the first heartbeat.
            None => Page::ok("starting\n"),
            Some(vitals) if vitals.is_alive() => Page::ok("ok\n"),
            Some(vitals) => Page::unavailable(format!(
                "no heartbeat for {:.1} s\n",
                vitals.heartbeat_age.as_secs_f64()
            )),
        }
    }

    fn readyz(&self) -> Page {
        match self.accel().map(|accel| accel.vitals()) {
            Some(vitals) if vitals.was_in_force && vitals.is_alive() => Page::ok("ok\n"),
            _ => Page::unavailable("no plan is in force yet\n"),
        }
    }
}

/// Starts the fast path. Returns `None` if a signal arrives first: reading a machine with many
/// processes may take longer than a supervisor waits.
fn begin(
    netns: &NetNs,
    wanted: &Wanted,
    options: Options,
    end: &UnixStream,
) -> anyhow::Result<Option<Accel>> {
    let (netns, wanted) = (netns.try_clone()?, wanted.clone());
    let (begun, tell) = UnixStream::pair().context("socket pair")?;
    let thread = std::thread::Builder::new().name("begin".into()).spawn(move || {
        let accel = Accel::with(&netns, wanted, options);
        drop(tell);
        accel
    });
    let thread = thread.context("start thread begin")?;
    let [begun, ended] = wait([begun.as_fd(), end.as_fd()])?;
    if ended && !begun {
        // The kernel detaches the programs when the process exits.
        return Ok(None);
    }
    match thread.join() {
        Ok(accel) => Ok(Some(accel?)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
