//! The thread that keeps maps and hooks in step with the kernel.
//!
//! A notification first withdraws the maps, then everything is read anew. The
//! heartbeat is written by the same thread: when it hangs, packets take the slow
//! path. What the kernel does not notify is looked at with each heartbeat (tables
//! of iptables-legacy), each fifth (tcx programs of others; in sandboxes those tables,
//! too) or once a second (XDP attached by a link, path MTUs, sysctls).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netstate::overlay::Overlay;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::netns::NetNs;

use crate::abi::Place;
use crate::bpf::{Programs, Role};
use crate::counters::Counters;
use crate::facts::{Extent, Seen};
use crate::maps::Maps;
use crate::plan::{DevicePlan, Plan, Sandboxed};
use crate::sandbox::{Sandbox, Search};
use crate::space::Space;
use crate::status::{DeviceStatus, Status};
use crate::trampoline::Trampoline;
use crate::{Result, facts, lock, sandbox, trampoline};

/// Between heartbeats; the programs allow 100 ms.
const BEAT: u16 = 20;
/// Programs of others are looked for each so many heartbeats.
const LOOK: u64 = 5;
/// After this time everything but entries is read anew, whatever was notified.
const AUDIT: Duration = Duration::from_secs(1);
/// Entries, too, each so many times; there may be many, and the kernel tells of each.
const WHOLE: u64 = 30;
/// Attempts to read the state without a change meanwhile.
const ATTEMPTS: usize = 10;

/// Whether this kernel lets this process run the fast path: loads the programs and
/// attaches one to the loopback device of `netns`, for a moment.
///
/// # Errors
/// What the kernel refuses.
pub fn probe(netns: &NetNs) -> Result<()> {
    const LOOPBACK: u32 = 1;
    let programs = Programs::load()?;
    netns.run(|| programs.attach(Role::Egress, LOOPBACK, "lo").map(drop))?
}

/// Which VXLAN devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Every one of the namespace, and of sandboxes whose underlay it is.
    All,
    /// These, when they are there; one of a sandbox is `NAMESPACE/DEVICE`.
    Named(BTreeSet<String>),
}

impl Wanted {
    fn wants(&self, name: &str) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Named(names) => names.contains(name),
        }
    }

    /// Whether some may be in sandboxes: their names are those of namespace and device.
    fn wants_sandboxes(&self) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Named(names) => names.iter().any(|name| name.contains('/')),
        }
    }
}

/// A running fast path. Dropping it detaches everything.
pub struct Accel {
    shared: Arc<Shared>,
    counters: Arc<Mutex<Counters>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stop: AtomicBool,
    /// No heartbeat and no reading: what a hanging daemon looks like.
    paused: AtomicBool,
    wanted: Mutex<Wanted>,
    /// What the maps are made for.
    in_force: Mutex<Wanted>,
    /// Told when that has changed.
    followed: Condvar,
    status: Mutex<Status>,
}

impl Accel {
    /// Starts the fast path for devices of `netns`, and returns when the first
    /// plan is in force.
    ///
    /// # Errors
    /// When the programs cannot be loaded or the state not be read; nothing is
    /// attached then.
    pub fn start(netns: &NetNs, wanted: Wanted) -> Result<Accel> {
        let programs = Programs::load()?;
        let counters = Arc::new(Mutex::new(Counters::of(&programs)?));
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            wanted: Mutex::new(wanted.clone()),
            in_force: Mutex::new(wanted),
            followed: Condvar::new(),
            status: Mutex::new(Status {
                pid: Some(std::process::id()),
                netns: netns.inode(),
                ..Status::default()
            }),
        });
        let (ready, is_ready) = std::sync::mpsc::channel();
        let netns = netns.try_clone()?;
        let theirs = (shared.clone(), counters.clone());
        let thread = std::thread::Builder::new()
            .name("accel".into())
            .spawn(move || {
                // The thread lives in the namespace: its sockets, hooks, sysctls.
                let mirror = netns
                    .enter_for_good()
                    .map_err(Into::into)
                    .and_then(|()| Mirror::new(&netns, programs, theirs))
                    .and_then(|mut mirror| mirror.rebuild().map(|()| mirror));
                match mirror {
                    Ok(mut mirror) => {
                        let _ = ready.send(Ok(()));
                        mirror.run();
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            })
            .map_err(|e| sys::Error::io("start thread", "accel", &e))?;
        let accel = Accel { shared, counters, thread: Some(thread) };
        match is_ready.recv() {
            Ok(result) => result.map(|()| accel),
            // The thread ended by a panic; joining it tells.
            Err(_) => Err(crate::Error::Sys(sys::Error::new(
                "start thread",
                "accel",
                nix::errno::Errno::EIO,
            ))),
        }
    }

    /// Changes which devices are accelerated, and waits until that is in force.
    ///
    /// # Errors
    /// When the mirror does not follow within a second.
    pub fn want(&self, wanted: Wanted) -> Result<()> {
        *lock(&self.shared.wanted) = wanted.clone();
        let in_force = lock(&self.shared.in_force);
        let (in_force, _) = self
            .shared
            .followed
            .wait_timeout_while(in_force, AUDIT, |in_force| *in_force != wanted)
            .unwrap_or_else(PoisonError::into_inner);
        if *in_force == wanted {
            return Ok(());
        }
        Err(crate::Error::Sys(sys::Error::new(
            "wait for",
            "the mirror's thread",
            nix::errno::Errno::ETIMEDOUT,
        )))
    }

    /// What is accelerated, why not, and what became of packets.
    pub fn status(&self) -> Status {
        let mut status = lock(&self.shared.status).clone();
        status.count(&lock(&self.counters));
        status
    }

    /// Stops the heartbeat and the mirror without detaching anything, or goes on:
    /// for tests of what packets do then.
    pub fn pause(&self, paused: bool) {
        self.shared.paused.store(paused, Ordering::Release);
    }
}

impl Drop for Accel {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's own.
struct Mirror {
    shared: Arc<Shared>,
    maps: Maps,
    home: Space,
    /// By inode.
    sandboxes: BTreeMap<u64, Sandbox>,
    /// The next one's number.
    next: u16,
    search: Option<Search>,
    /// What the maps are made from.
    seen: Seen,
    wanted: Wanted,
    beats: u64,
    audits: u64,
    /// Everything was read, and had changed again by then.
    unsettled: bool,
    read_at: Instant,
}

impl Mirror {
    fn new(
        netns: &NetNs,
        programs: Programs,
        (shared, counters): (Arc<Shared>, Arc<Mutex<Counters>>),
    ) -> Result<Mirror> {
        let wanted = lock(&shared.wanted).clone();
        let mut mirror = Mirror {
            shared,
            maps: Maps::of(&programs, counters)?,
            home: Space::new(0, netns.try_clone()?, programs)?,
            sandboxes: BTreeMap::new(),
            next: 1,
            search: None,
            seen: Seen::default(),
            wanted,
            beats: 0,
            audits: 0,
            unsettled: false,
            read_at: Instant::now(),
        };
        trampoline::remove_stale(&mirror.home.netlink)?;
        mirror.look_for_sandboxes()?;
        Ok(mirror)
    }

    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            let spaces =
                std::iter::once(&self.home).chain(self.sandboxes.values().map(|s| &s.space));
            let mut fds: Vec<PollFd> = spaces
                .flat_map(|space| space.watch.fds())
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            let _ = poll(&mut fds, PollTimeout::from(BEAT));
            if self.shared.paused.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(BEAT.into()));
                continue;
            }
            if let Err(error) = self.step() {
                // The slow path goes on; the next audit tries again.
                tracing::warn!("the fast path is off: {error}");
                lock(&self.shared.status).problem = Some(error.to_string());
                let _ = self.maps.withdraw();
                lock(&self.shared.status).generation = self.maps.generation();
            }
        }
        // Detaching is not one step for all hooks: none may take a packet that
        // another would have to give back.
        let _ = self.maps.withdraw();
    }

    fn step(&mut self) -> Result<()> {
        let wanted = lock(&self.shared.wanted).clone();
        let (changed, others) = (self.changed(), self.adopt()?);
        if changed && let Some(search) = &self.search {
            search.wake();
        }
        if changed || others || wanted != self.wanted {
            // Before anything is read: from now on nothing is forwarded by what
            // may no longer be so.
            self.maps.withdraw()?;
            if wanted != self.wanted {
                self.wanted = wanted;
                self.look_for_sandboxes()?;
            }
            return self.rebuild();
        }
        self.maps.beat()?;
        self.beats += 1;
        let look = self.beats.is_multiple_of(LOOK);
        let mut anew = self.unsettled || self.home.has_changed(look)?;
        // Entering a namespace is not for free.
        if look {
            for sandbox in self.sandboxes.values_mut() {
                anew |= sandbox.space.has_changed(look)?;
            }
        }
        if anew {
            return self.rebuild();
        }
        if self.read_at.elapsed() >= AUDIT {
            self.read_at = Instant::now();
            if self.maps.generation() & 1 == 1 || !self.is_as_seen()? {
                return self.rebuild();
            }
        }
        Ok(())
    }

    /// Whether everything is as it was when the plan was made.
    fn is_as_seen(&mut self) -> Result<bool> {
        self.audits += 1;
        let whole = self.audits.is_multiple_of(WHOLE);
        let extent = if whole { Extent::Whole } else { Extent::ButEntries };
        let mut now = Seen { home: self.home.read(extent)?, ..Seen::default() };
        for sandbox in self.sandboxes.values() {
            let sandboxed = sandbox.facts(sandbox.space.read(extent)?)?;
            now.sandboxes.insert(sandbox.space.number, sandboxed);
        }
        if whole {
            self.add_routes(&mut now)?;
            return Ok(now == self.seen);
        }
        // Which routes are asked for depends on the entries.
        now.give_entries(self.seen.take_entries());
        let routed = self.add_routes(&mut now);
        let entries = now.take_entries();
        let same = now == self.seen;
        self.seen.give_entries(entries);
        routed.map(|()| same)
    }

    /// Whether any namespace has changed; forgets it.
    fn changed(&self) -> bool {
        let mut changed = self.home.watch.changed();
        for sandbox in self.sandboxes.values() {
            changed |= sandbox.space.watch.changed();
        }
        changed
    }

    /// Looks for sandboxes now, and from now on where some are wanted.
    fn look_for_sandboxes(&mut self) -> Result<()> {
        if !self.wanted.wants_sandboxes() {
            self.search = None;
            return Ok(());
        }
        if self.search.is_none() {
            self.search = Some(Search::start(&self.home.netns)?);
        }
        self.follow(sandbox::find(&self.home.netns)?)?;
        Ok(())
    }

    /// Takes up sandboxes that were found, lets go those that nobody keeps; whether
    /// there were any.
    fn adopt(&mut self) -> Result<bool> {
        let gone: Vec<u64> = (self.sandboxes.iter())
            .filter(|(_, sandbox)| !sandbox.is_kept() || self.search.is_none())
            .map(|(inode, _)| *inode)
            .collect();
        for inode in &gone {
            self.maps.withdraw()?;
            self.let_go(*inode);
        }
        let found = self.search.as_ref().and_then(Search::found).unwrap_or_default();
        Ok(self.follow(found)? || !gone.is_empty())
    }

    fn follow(&mut self, found: Vec<sandbox::Found>) -> Result<bool> {
        let mut any = false;
        for found in found {
            let inode = found.inode();
            if self.sandboxes.contains_key(&inode) || self.next == u16::MAX {
                continue;
            }
            match Sandbox::new(self.next, found, &self.home.programs) {
                Ok(sandbox) => drop(self.sandboxes.insert(inode, sandbox)),
                // Tried again when it is found again; the others go on.
                Err(error) => {
                    tracing::warn!("net:[{inode}] stays slow: {error}");
                    continue;
                }
            }
            self.next += 1;
            any = true;
        }
        Ok(any)
    }

    fn let_go(&mut self, inode: u64) {
        let Some(mut sandbox) = self.sandboxes.remove(&inode) else { return };
        // Those at the tenants' first: none may send into a pair without programs.
        let _ = sandbox.space.hook(&BTreeSet::new(), &Overlay::default());
        if sandbox.trampoline.is_some() {
            Trampoline::remove(&self.home, &sandbox.space);
        }
    }

    /// Completes what was read by the ways to remote VTEPs, and leaves out our own pairs.
    fn add_routes(&self, seen: &mut Seen) -> Result<()> {
        let Seen { home, sandboxes } = seen;
        let netlink = &self.home.netlink;
        let overlay = std::mem::take(&mut home.overlay);
        let added = facts::add_routes(netlink, home, 0, &overlay);
        home.overlay = overlay;
        added?;
        for (number, sandboxed) in sandboxes {
            facts::add_routes(netlink, home, *number, &sandboxed.facts.overlay)?;
        }
        for trampoline in self.sandboxes.values().filter_map(|sandbox| sandbox.trampoline) {
            home.overlay.links.remove(&trampoline.outer);
        }
        Ok(())
    }

    /// Reads everything and brings maps and hooks to it.
    fn rebuild(&mut self) -> Result<()> {
        self.maps.withdraw()?;
        for attempt in 0.. {
            self.read_at = Instant::now();
            let mut seen = Seen { home: self.home.read_anew()?, ..Seen::default() };
            for sandbox in self.sandboxes.values_mut() {
                let facts = sandbox.space.read_anew()?;
                seen.sandboxes.insert(sandbox.space.number, sandbox.facts(facts)?);
            }
            self.add_routes(&mut seen)?;
            let plan = Plan::new(&seen.home, &seen.sandboxes, |name| self.wanted.wants(name));
            let joined = self.join(&plan)?;
            // The answers may be of different moments when something changed
            // between them; then they are not published.
            if self.changed() || joined {
                if attempt < ATTEMPTS {
                    continue;
                }
                // So much changes that the slow path is the right one; the next
                // beat comes back to it.
                self.unsettled = true;
                self.note(plan, 0);
                return Ok(());
            }
            self.hook(&plan, &seen.home.overlay, &seen.sandboxes)?;
            let left_out = self.maps.publish(&plan)?;
            self.seen = seen;
            self.unsettled = false;
            self.note(plan, left_out);
            return Ok(());
        }
        Ok(())
    }

    /// Joins sandboxes that need it to the NICs' namespace, and parts those that are not
    /// wanted any more; whether there were any.
    fn join(&mut self, plan: &Plan) -> Result<bool> {
        let mut any = false;
        for sandbox in self.sandboxes.values_mut() {
            let of = |device: &&DevicePlan| device.sandbox == Some(sandbox.space.number);
            let mut devices = plan.devices.iter().filter(of);
            match sandbox.trampoline {
                None if devices.any(|device| device.refused.is_none()) => {
                    match Trampoline::make(&self.home, &sandbox.space) {
                        Ok(both) => sandbox.trampoline = Some(both),
                        // The others go on.
                        Err(error) => sandbox.problem = Some(error.to_string()),
                    }
                    any = true;
                }
                Some(_) if devices.next().is_none() => {
                    // As in let_go().
                    sandbox.space.hook(&BTreeSet::new(), &Overlay::default())?;
                    Trampoline::remove(&self.home, &sandbox.space);
                    sandbox.trampoline = None;
                    any = true;
                }
                _ => {}
            }
        }
        Ok(any)
    }

    fn hook(
        &mut self,
        plan: &Plan,
        home: &Overlay,
        sandboxes: &BTreeMap<u16, Sandboxed>,
    ) -> Result<()> {
        let ports = |number: u16| {
            let of = move |place: &&Place| place.netns == number;
            plan.ports.keys().filter(of).map(|place| (place.index, Role::Egress))
        };
        let pairs = self.sandboxes.values().filter_map(|sandbox| sandbox.trampoline);
        let wanted = (ports(0).chain(plan.nics.iter().map(|nic| (*nic, Role::Ingress))))
            .chain(pairs.map(|pair| (pair.outer, Role::Outward)))
            .collect();
        self.home.hook(&wanted, home)?;
        for sandbox in self.sandboxes.values_mut() {
            let number = sandbox.space.number;
            let pair = sandbox.trampoline.map(|pair| (pair.inner, Role::Inward));
            let wanted = ports(number).chain(pair).collect();
            sandbox.space.hook(&wanted, &sandboxes[&number].facts.overlay)?;
        }
        Ok(())
    }

    fn note(&mut self, plan: Plan, left_out: usize) {
        let mut status = lock(&self.shared.status);
        status.generation = self.maps.generation();
        status.entries = self.maps.entries();
        status.left_out = left_out;
        status.problem = None;
        status.devices = DeviceStatus::all(&plan);
        drop(status);
        *lock(&self.shared.in_force) = self.wanted.clone();
        self.shared.followed.notify_all();
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let inodes: Vec<u64> = self.sandboxes.keys().copied().collect();
        for inode in inodes {
            self.let_go(inode);
        }
    }
}
