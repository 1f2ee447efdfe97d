//! `overlane accel run`: the fast path in the foreground, as a service or a node's agent.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use accel::events::What;
use accel::{Accel, Finder, Options, Wanted};
use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use sys::netns::NetNs;

use super::accel::{check, state};
use crate::accel_args::AccelServe;
use crate::accel_events::{self, Events, Sink};
use crate::accelerator;
use crate::background::READY;
use crate::confinement::{self, accel as confined};
use crate::exit::Exit;
use crate::metrics::{self, Bound, ListenAddress, Page};
use crate::named_netns::netns;
use crate::notify::notify;
use crate::output::print;
use crate::serving::{Listener, Serving};
use crate::signals::{on_signals, wait};
use crate::succession;

/// Sandboxes at a time that there are programs for: a confined process loads no more.
const SANDBOXES: u16 = 12;

/// Accelerates until told to end.
pub fn run(serve: &AccelServe) -> anyhow::Result<Exit> {
    let arguments = &serve.run.devices;
    let netns = netns("--netns", arguments.netns.as_deref())?;
    check(arguments, &netns)?;
    let (claim, mut succession) = match serve.takeover {
        true => succession::claim(&netns)?,
        false => (accelerator::claim(&netns)?, None),
    };
    let (mut pages, also) = pages(serve, succession.is_some())?;
    let sink = serve.events.as_deref().map(accel_events::open).transpose()?;
    let end = on_signals(&[SIGINT, SIGTERM])?;
    let wanted = match &arguments.device {
        Some(device) => Wanted::Named([device.clone()].into()),
        None => Wanted::All,
    };
    let max_entries = serve.run.max_entries.unwrap_or(accel::DEFAULT_MAX_ENTRIES);
    confinement::prepare()?;
    // Before this process gives up looking into others and renaming files.
    if let Some(succession) = &mut succession {
        succession.prepare(&claim, also)?;
    }
    let finder = Finder::start(&netns, confined::give_up_but_looking)?;
    let rights = confined::give_up()?;
    let running = Arc::new(OnceLock::new());
    // Asked before the fast path stands, it says so.
    let mut probes = pages.listening()?.map(|listener| answer(listener, &running)).transpose()?;
    let predecessor = succession.as_ref().map(|s| s.predecessor().programs.clone());
    let options = Options {
        max_entries,
        finder: Some(finder),
        predecessor: predecessor.unwrap_or_default(),
        max_flows: serve.run.max_flows.unwrap_or(accel::DEFAULT_MAX_FLOWS),
        accounting: serve.run.accounting,
        spares: SANDBOXES,
    };
    let Some(accel) = begin(&netns, &wanted, options, &end)? else { return Ok(Exit::Done) };
    let accel = Arc::new(accel);
    let _ = running.set(Arc::downgrade(&accel));
    let handed_over = Arc::new(AtomicBool::new(false));
    let door = accelerator::door(&claim, accel.clone(), wanted, handed_over.clone())?;
    let serving = Serving::start(vec![door])?;
    if let Some(listener) = pages.beside()? {
        probes = Some(answer(listener, &running)?);
    }
    let predecessor = succession.map(|succession| succession.take_over()).transpose()?;
    confined::confine(&rights)?;
    let events = sink.map(|sink| begin_events(sink, &accel, &netns, predecessor)).transpose()?;
    if !serve.events.as_deref().is_some_and(accel_events::is_stdout) {
        print(&ready(&accel))?;
    }
    notify("READY=1")?;
    wait([serving.ended(), end.as_fd()])?;
    // In this order: when the asker sees the end, everything is detached and the
    // name is free again. The file stays: this process may not remove any.
    let asker = serving.stop();
    let handed_over = handed_over.load(Ordering::Acquire);
    if !(handed_over && serve.linger) {
        notify("STOPPING=1")?;
    }
    drop(probes);
    if let (Some(events), true) = (&events, handed_over) {
        events.tell(What::HandedOver);
    }
    detach(accel);
    if let Some(events) = events {
        events.tell(What::Stopped);
        drop(events);
    }
    drop(claim);
    drop(asker);
    if handed_over && serve.linger {
        // Whoever started this one would start it again, and that one would take over again.
        wait([end.as_fd()])?;
        notify("STOPPING=1")?;
    }
    Ok(Exit::Done)
}

/// One line: who waits for it may close the pipe behind it.
fn ready(accel: &Accel) -> String {
    let devices: Vec<String> = accel
        .noted()
        .devices
        .iter()
        .map(|device| format!("{}: {}", device.device, state(&device.refused)))
        .collect();
    let devices =
        if devices.is_empty() { "no VXLAN device yet".to_owned() } else { devices.join(", ") };
    format!("{READY}: {devices}; confined: {}", confinement::in_force())
}

/// Drops it, when nobody looks at it.
fn detach(mut accel: Arc<Accel>) {
    // The thread of the events looks at it for some microseconds at a time.
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

/// The place of the metrics, before they are served.
enum Pages {
    None,
    Listening(Listener),
    /// Of a predecessor, too, which answers until this process takes over.
    Bound(Bound),
    /// The same of a file, which is renamed then.
    Beside(Listener),
}

/// Opens it: a confined program opens no sockets. The files are renamed by who takes over.
fn pages(
    serve: &AccelServe,
    succeeds: bool,
) -> anyhow::Result<(Pages, Option<(PathBuf, PathBuf)>)> {
    Ok(match (&serve.metrics, serve.takeover) {
        (None, _) => (Pages::None, None),
        (Some(ListenAddress::Tcp(address)), true) => {
            let bound = metrics::bind_beside(address)?;
            (if succeeds { Pages::Bound(bound) } else { Pages::Listening(bound.listen()?) }, None)
        }
        (Some(ListenAddress::Unix(path)), true) if succeeds => {
            let mut next = path.as_os_str().to_owned();
            next.push(".next");
            let next = PathBuf::from(next);
            let listener = metrics::listen(&ListenAddress::Unix(next.clone()))?;
            (Pages::Beside(listener), Some((next, path.clone())))
        }
        (Some(place), _) => (Pages::Listening(metrics::listen(place)?), None),
    })
}

impl Pages {
    /// What can be answered at before the fast path stands.
    fn listening(&mut self) -> anyhow::Result<Option<Listener>> {
        Ok(match std::mem::replace(self, Pages::None) {
            Pages::Listening(listener) => Some(listener),
            other => {
                *self = other;
                None
            }
        })
    }

    /// What is answered at from now on, in place of the predecessor.
    fn beside(self) -> anyhow::Result<Option<Listener>> {
        Ok(match self {
            Pages::Bound(bound) => Some(bound.listen()?),
            Pages::Beside(listener) => Some(listener),
            Pages::None | Pages::Listening(_) => None,
        })
    }
}

/// Answers from now on.
fn answer(listener: Listener, running: &Arc<OnceLock<Weak<Accel>>>) -> anyhow::Result<Serving> {
    metrics::look_after(listener, FastPath(running.clone()))
}

/// The fast path, once it stands.
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
            // A machine with many processes is read for long before the first heartbeat.
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

/// Starts the fast path; `None` where a signal has ended it before it stood. Reading a
/// machine with many processes may take longer than anyone waits for the end.
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
        // What is attached by now goes with the process.
        return Ok(None);
    }
    match thread.join() {
        Ok(accel) => Ok(Some(accel?)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
