//! The fast path of a namespace as who runs it sees it: started, told what to accelerate,
//! asked what became of it, stopped. The work is that of a thread (`mirroring`).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sys::netns::NetNs;

use crate::Result;
use crate::admission;
use crate::lock::lock;
use crate::mirroring::{Finder, Reconciler, Shared, Source};
use crate::model::Wanted;
use crate::programs::{Counters, FlowMaps, Programs, Role};
use crate::status::{FlowsStatus, Status};
use crate::vitals::Vitals;

/// What a change of what is wanted may take.
const FOLLOWED: Duration = Duration::from_secs(1);

/// The most forwarding entries that the maps take, where nobody says otherwise.
pub const DEFAULT_MAX_ENTRIES: u32 = 65_536;

/// The most connections through packet filters that have a verdict at once, likewise.
pub const DEFAULT_MAX_FLOWS: u32 = 100_000;

/// Whether this kernel lets this process run the fast path: loads the programs and
/// attaches one to the loopback device of `netns`, for a moment.
///
/// # Errors
/// What the kernel refuses.
pub fn probe(netns: &NetNs) -> Result<()> {
    const LOOPBACK: u32 = 1;
    let programs = Programs::load(DEFAULT_MAX_ENTRIES, DEFAULT_MAX_FLOWS)?;
    netns.run(|| programs.attach(Role::Encap, LOOPBACK, "lo").map(drop))?
}

/// How the fast path runs.
#[derive(Debug)]
pub struct Options {
    /// Forwarding entries that there is room for, those of all devices together; addresses
    /// that find none stay slow.
    pub max_entries: u32,
    /// Looks for sandboxes, in place of this process.
    pub finder: Option<Finder>,
    /// Connections through packet filters that there is room for; the oldest makes room.
    pub max_flows: u32,
    /// Packets that come to packet filters go by the slow path, all of them, so that counters
    /// of rules and of conntrack count each.
    pub accounting: bool,
    /// Sandboxes at a time that programs are loaded for at the start: a process that is
    /// confined afterwards loads none. 0: programs are loaded when they are needed.
    pub spares: u16,
    /// Ids of the programs of a process that this one takes over from: they are no
    /// strangers at the hooks. That process goes on until it is told to end.
    pub predecessor: BTreeSet<u32>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_entries: DEFAULT_MAX_ENTRIES,
            finder: None,
            max_flows: DEFAULT_MAX_FLOWS,
            accounting: false,
            spares: 0,
            predecessor: BTreeSet::new(),
        }
    }
}

/// A running fast path. Dropping it detaches everything.
pub struct Accel {
    shared: Arc<Shared>,
    counters: Arc<Mutex<Counters>>,
    threads: Vec<JoinHandle<()>>,
}

impl Accel {
    /// Starts the fast path for devices of `netns`, and returns when the first
    /// plan is in force.
    ///
    /// # Errors
    /// When the programs cannot be loaded or the state not be read; nothing is
    /// attached then.
    pub fn start(netns: &NetNs, wanted: Wanted) -> Result<Accel> {
        Accel::with(netns, wanted, Options::default())
    }

    /// The same with other options.
    ///
    /// # Errors
    /// As [`Accel::start`].
    pub fn with(netns: &NetNs, wanted: Wanted, options: Options) -> Result<Accel> {
        let max_entries = options.max_entries;
        let programs = Programs::load(max_entries, options.max_flows.max(1))?;
        let flows = FlowMaps::of(&programs)?;
        let counters = Arc::new(Mutex::new(Counters::of(&programs)?));
        let status = Status {
            pid: Some(std::process::id()),
            netns: netns.inode(),
            max_entries,
            ..Status::default()
        };
        let source = options.finder.map_or(Source::Here, |finder| Source::Finder(finder.into()));
        let shared =
            Arc::new(Shared::new(wanted, status, source, options.predecessor, options.accounting));
        let admission = admission(netns, flows, shared.clone())?;
        let (ready, is_ready) = std::sync::mpsc::channel();
        let netns = netns.try_clone()?;
        let theirs = (shared.clone(), counters.clone());
        let thread = std::thread::Builder::new()
            .name("accel".into())
            .spawn(move || {
                // The thread lives in the namespace: its sockets, hooks, sysctls.
                let reconciler = netns
                    .enter_for_good()
                    .map_err(Into::into)
                    .and_then(|()| Reconciler::new(&netns, programs, theirs, options.spares))
                    .and_then(|mut reconciler| reconciler.begin().map(|()| reconciler));
                match reconciler {
                    Ok(mut reconciler) => {
                        let _ = ready.send(Ok(()));
                        reconciler.run();
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            })
            .map_err(|e| sys::Error::io("start thread", "accel", &e))?;
        let accel = Accel { shared, counters, threads: vec![thread, admission] };
        match is_ready.recv() {
            Ok(result) => result.map(|()| accel),
            // The thread ended by a panic; joining it tells.
            Err(_) => Err(crate::Error::ThreadEnded),
        }
    }

    /// Changes which devices are accelerated, and waits until that is in force.
    ///
    /// # Errors
    /// When the reconciler does not follow within a second.
    pub fn want(&self, wanted: Wanted) -> Result<()> {
        *lock(&self.shared.wanted) = wanted.clone();
        let in_force = lock(&self.shared.in_force);
        let (in_force, _) = self
            .shared
            .followed
            .wait_timeout_while(in_force, FOLLOWED, |in_force| *in_force != wanted)
            .unwrap_or_else(PoisonError::into_inner);
        if *in_force == wanted {
            return Ok(());
        }
        let expected = "other devices to be accelerated";
        Err(crate::Error::NotFollowed { expected, seconds: FOLLOWED.as_secs() })
    }

    /// What is accelerated, why not, and what became of packets since the start. Counters are
    /// read now, from the maps of the programs; the rest is of the last plan.
    pub fn status(&self) -> Status {
        let mut status = Status::clone(&self.shared.status());
        // Many system calls, without the lock: who publishes a plan takes it, too.
        let counters = lock(&self.counters).clone();
        let (all, each) = counters.counted();
        status.count(all, &each);
        let basis = lock(&self.shared.verdicts.basis).clone();
        if !basis.is_idle() {
            let flows = lock(&self.shared.verdicts.status).clone();
            status.flows = Some(FlowsStatus { number: basis.number, ..flows });
        }
        status
    }

    /// What the last plan came to, without counters: a value that is replaced, never changed,
    /// while somebody has it.
    pub fn noted(&self) -> Arc<Status> {
        self.shared.status()
    }

    /// The kernel's ids of its programs: a successor takes them for no strangers.
    pub fn programs(&self) -> BTreeSet<u32> {
        lock(&self.shared.programs).clone()
    }

    /// How it goes on: the heartbeat's age, what was withdrawn and read anew.
    pub fn vitals(&self) -> Vitals {
        self.shared.pulse.vitals()
    }

    /// Stops the heartbeat and the reconciler without detaching anything, or goes on:
    /// for tests of what packets do then.
    #[cfg(feature = "test-support")]
    pub fn pause(&self, paused: bool) {
        self.shared.paused.store(paused, Ordering::Release);
    }
}

/// Starts the thread that gives verdicts on flows.
fn admission(netns: &NetNs, flows: FlowMaps, shared: Arc<Shared>) -> Result<JoinHandle<()>> {
    let netns = netns.try_clone()?;
    let run = move || {
        let done = netns
            .enter_for_good()
            .map_err(Into::into)
            .and_then(|()| admission::run(flows, &shared.verdicts, &shared.stop));
        if let Err(error) = done {
            // Without verdicts what comes to rules goes by the slow path.
            tracing::warn!("no more verdicts on flows: {error}");
        }
    };
    let thread = std::thread::Builder::new().name("accel-verdicts".into()).spawn(run);
    Ok(thread.map_err(|e| sys::Error::io("start thread", "accel-verdicts", &e))?)
}

impl Drop for Accel {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // A search of many processes takes longer than anyone waits for the end.
        if let Source::Finder(finder) = &self.shared.source {
            finder.stop();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
