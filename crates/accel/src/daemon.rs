//! The public interface of a running fast path: start it, select devices, read the status, stop it.
//! A thread does the work (`mirroring`).

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sys::netns::NetNs;

use crate::Result;
use crate::admission::{self, CaretakerWatch};
use crate::lock::lock;
use crate::mirroring::{Finder, HomeWatch, Reconciler, Security, Shared, Source};
use crate::model::{Accounting, Wanted};
use crate::programs::{Counters, DecapGso, FlowMaps, Programs, Role};
use crate::status::{FlowsStatus, Status};
use crate::vitals::Vitals;

/// Time limit for a change of the wanted devices.
const FOLLOWED: Duration = Duration::from_secs(1);

/// Default limit of forwarding entries in the maps.
pub const DEFAULT_MAX_ENTRIES: u32 = 65_536;

/// Default limit of connections through packet filters that have a verdict.
pub const DEFAULT_MAX_FLOWS: u32 = 100_000;

/// Checks whether this process may run the fast path on this kernel: loads the programs and briefly
/// attaches one to the loopback device of `netns`.
pub fn probe(netns: &NetNs) -> Result<()> {
    const LOOPBACK: u32 = 1;
    let programs = Programs::load(DEFAULT_MAX_ENTRIES, DEFAULT_MAX_FLOWS, DecapGso::default())?;
    netns.run(|| programs.attach(Role::Encap, LOOPBACK, "lo").map(drop))?
}

/// Settings of the fast path.
#[derive(Debug)]
pub struct Options {
    /// Limit of forwarding entries, all devices together. Packets for entries above the limit take
    /// the slow path.
    pub max_entries: u32,
    /// A separate process that finds sandboxes.
    pub finder: Option<Finder>,
    /// Shows whether the caretaker of connections runs. If it ends, TCP connections through packet
    /// filters take the slow path. `None`: nobody takes care of connections after a kill.
    pub caretaker: Option<CaretakerWatch>,
    /// Limit of connections through packet filters that have a verdict. A new one replaces the
    /// oldest.
    pub max_flows: u32,
    /// Which counters of rules and of conntrack stay exact.
    pub accounting: Accounting,
    /// Number of sandboxes for which programs are loaded at the start, because a confined process
    /// can load none later. 0: load programs on demand.
    pub spares: u16,
    /// Ids of the programs of the process that this one takes over from. They are not treated as
    /// foreign programs. That process runs until it is asked to stop.
    pub predecessor: BTreeSet<u32>,
    /// Security modules, if they were opened before this process dropped privileges.
    pub security: Option<Security>,
    /// Decapsulation of GSO packets. Other values than the default are for tests.
    pub decap_gso: DecapGso,
    /// Treat VXLAN devices as if they had these limits of GSO packets, which this kernel does not
    /// permit. For tests.
    #[cfg(feature = "test-support")]
    pub gso_max_size: Option<u32>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            max_entries: DEFAULT_MAX_ENTRIES,
            finder: None,
            caretaker: None,
            max_flows: DEFAULT_MAX_FLOWS,
            accounting: Accounting::default(),
            spares: 0,
            predecessor: BTreeSet::new(),
            security: None,
            decap_gso: DecapGso::default(),
            #[cfg(feature = "test-support")]
            gso_max_size: None,
        }
    }
}

/// A running fast path. Dropping it detaches everything.
pub struct Accel {
    shared: Arc<Shared>,
    counters: Arc<Mutex<Counters>>,
    threads: Vec<JoinHandle<()>>,
    home: Option<HomeWatch>,
}

impl Accel {
    /// Starts the fast path for devices of `netns`. Returns once the first plan is in force.
    ///
    /// # Errors
    /// If the programs cannot be loaded or the state cannot be read. Nothing is attached then.
    pub fn start(netns: &NetNs, wanted: Wanted) -> Result<Accel> {
        Accel::with(netns, wanted, Options::default())
    }

    /// Does the same with options.
    pub fn with(netns: &NetNs, wanted: Wanted, options: Options) -> Result<Accel> {
        let max_entries = options.max_entries;
        let programs = Programs::load(max_entries, options.max_flows.max(1), options.decap_gso)?;
        let flows = FlowMaps::of(&programs)?;
        let counters = Arc::new(Mutex::new(Counters::of(&programs)?));
        let status = Status {
            pid: Some(std::process::id()),
            netns: netns.inode(),
            max_entries,
            decap_gso: programs.unwraps_gso(),
            ..Status::default()
        };
        let source = options.finder.map_or(Source::Here, |finder| Source::Finder(finder.into()));
        let shared =
            Arc::new(Shared::new(wanted, status, source, options.predecessor, options.accounting));
        #[cfg(feature = "test-support")]
        if let Some(size) = options.gso_max_size {
            let _ = shared.gso_max_size.set(size);
        }
        let admission = admission(netns, flows, options.caretaker, shared.clone())?;
        let security = options.security.unwrap_or_else(Security::open);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let netns = netns.try_clone()?;
        let theirs = (shared.clone(), counters.clone());
        let thread = std::thread::Builder::new()
            .name("accel".into())
            .spawn(move || {
                // The thread enters the namespace for good: its sockets, hooks and sysctls belong
                // to it.
                let reconciler = netns
                    .enter_for_good()
                    .map_err(Into::into)
                    .and_then(|()| {
                        Reconciler::new(&netns, programs, theirs, options.spares, security)
                    })
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
        let mut accel = Accel { shared, counters, threads: vec![thread, admission], home: None };
        let ready = is_ready.recv();
        if let (Ok(Ok(())), Source::Finder(finder)) = (&ready, &accel.shared.source) {
            accel.home = Some(HomeWatch::start(finder.clone())?);
        }
        match ready {
            Ok(result) => result.map(|()| accel),
            // The thread panicked; the panic message has the cause.
            Err(_) => Err(crate::Error::ThreadEnded),
        }
    }

    /// Changes which devices are accelerated. Returns once the change is in force.
    ///
    /// # Errors
    /// If the reconciler does not apply the change within a second.
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
        let expected = "change the accelerated devices";
        Err(crate::Error::NotFollowed { expected, seconds: FOLLOWED.as_secs() })
    }

    /// Returns the status. Counters are read from the maps now; the rest comes from the last plan.
    pub fn status(&self) -> Status {
        let mut status = Status::clone(&self.shared.status());
        // The counters need many system calls. Read them without the lock that publishing a plan
        // needs.
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

    /// Returns the status of the last plan, without counters. The value is immutable: a new plan
    /// replaces it.
    pub fn noted(&self) -> Arc<Status> {
        self.shared.status()
    }

    /// Returns the kernel's ids of its programs, so that a successor does not treat them as
    /// foreign.
    pub fn programs(&self) -> BTreeSet<u32> {
        lock(&self.shared.programs).clone()
    }

    /// Returns a descriptor that becomes readable when the namespace was deleted: no other process
    /// keeps it alive, so this one must end. `None` without a [`Finder`].
    pub fn deleted(&self) -> Option<BorrowedFd<'_>> {
        self.home.as_ref().map(HomeWatch::deleted)
    }

    /// Returns the heartbeat's age and the counts of withdrawals and rebuilds.
    pub fn vitals(&self) -> Vitals {
        self.shared.pulse.vitals()
    }

    /// Stops the heartbeat and the reconciler without detaching anything, or resumes them. For
    /// tests of the packets' path in that state.
    #[cfg(feature = "test-support")]
    pub fn pause(&self, paused: bool) {
        self.shared.paused.store(paused, Ordering::Release);
    }
}

/// Starts the thread that gives verdicts on flows.
fn admission(
    netns: &NetNs,
    flows: FlowMaps,
    caretaker: Option<CaretakerWatch>,
    shared: Arc<Shared>,
) -> Result<JoinHandle<()>> {
    let netns = netns.try_clone()?;
    let run = move || {
        let done = netns
            .enter_for_good()
            .map_err(Into::into)
            .and_then(|()| admission::run(flows, &shared.verdicts, caretaker, &shared.stop));
        if let Err(error) = done {
            // Without verdicts, packets that meet rules take the slow path.
            tracing::warn!(
                "the verdict thread has ended, filtered flows take the slow path: {error}"
            );
        }
    };
    let thread = std::thread::Builder::new().name("accel-verdicts".into()).spawn(run);
    Ok(thread.map_err(|e| sys::Error::io("start thread", "accel-verdicts", &e))?)
}

impl Drop for Accel {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Searching many processes can take longer than a caller wants to wait.
        if let Source::Finder(finder) = &self.shared.source {
            finder.stop();
        }
        for thread in self.threads.drain(..) {
            // A panic of a thread was reported when it happened.
            let _ = thread.join();
        }
    }
}
