//! The thread that keeps maps and hooks in step with the kernel.
//!
//! A notification first withdraws the maps, then everything is read anew. The
//! heartbeat is written by the same thread: when it hangs, packets take the slow
//! path. What the kernel does not notify is looked at with each heartbeat (tables
//! of iptables-legacy), each fifth (tcx programs of others) or once a second (XDP
//! attached by a link, path MTUs, sysctls).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;
use netstate::Netlink;
use netstate::netfilter::legacy_tables;
use netstate::watch::Watch;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::netns::NetNs;
use sys::tcx::{self, Hook};

use crate::bpf::{Programs, Role};
use crate::facts::gather;
use crate::maps::{Maps, counts};
use crate::plan::Plan;
use crate::status::{Counted, DeviceStatus, PartStatus, Status};
use crate::{Result, abi};

/// Between heartbeats; the programs allow 100 ms.
const BEAT: u16 = 20;
/// Programs of others are looked for each so many heartbeats.
const LOOK: u64 = 5;
/// Everything is read anew after this time, whatever was notified.
const AUDIT: Duration = Duration::from_secs(1);
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
    /// Every one of the namespace.
    All,
    /// These, when they are there.
    Named(BTreeSet<String>),
}

impl Wanted {
    fn wants(&self, name: &str) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Named(names) => names.contains(name),
        }
    }
}

/// A running fast path. Dropping it detaches everything.
pub struct Accel {
    shared: Arc<Shared>,
    counts: MapHandle,
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

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let counts = programs.map("counts", abi::COUNT)?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            wanted: Mutex::new(wanted.clone()),
            in_force: Mutex::new(wanted),
            followed: Condvar::new(),
            status: Mutex::new(Status {
                pid: std::process::id(),
                netns: netns.inode(),
                ..Status::default()
            }),
        });
        let (ready, is_ready) = std::sync::mpsc::channel();
        let netns = netns.try_clone()?;
        let theirs = shared.clone();
        let thread = std::thread::Builder::new()
            .name("accel".into())
            .spawn(move || {
                // The thread lives in the namespace: its sockets, hooks, sysctls.
                let mirror = netns
                    .enter_for_good()
                    .map_err(Into::into)
                    .and_then(|()| Mirror::new(programs, theirs))
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
        let accel = Accel { shared, counts, thread: Some(thread) };
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
        status.packets = counts(&self.counts)
            .into_iter()
            .filter(|(_, (packets, _))| *packets > 0)
            .map(|(reason, (packets, bytes))| {
                (reason.word().to_owned(), Counted { packets, bytes })
            })
            .collect();
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
    watch: Watch,
    netlink: Netlink,
    maps: Maps,
    // Links before the programs: detached first.
    hooks: BTreeMap<(u32, Role), OwnedFd>,
    programs: Programs,
    plan: Plan,
    wanted: Wanted,
    legacy: Vec<String>,
    /// Links that matter, to look at for programs of others.
    looked_at: BTreeSet<u32>,
    occupied: BTreeSet<u32>,
    beats: u64,
    /// Everything was read, and had changed again by then.
    unsettled: bool,
    read_at: Instant,
}

impl Mirror {
    fn new(programs: Programs, shared: Arc<Shared>) -> Result<Mirror> {
        let wanted = lock(&shared.wanted).clone();
        Ok(Mirror {
            shared,
            // Before the first reading: nothing is missed between.
            watch: Watch::open()?,
            netlink: Netlink::open()?,
            maps: Maps::of(&programs)?,
            hooks: BTreeMap::new(),
            programs,
            plan: Plan::default(),
            wanted,
            legacy: Vec::new(),
            looked_at: BTreeSet::new(),
            occupied: BTreeSet::new(),
            beats: 0,
            unsettled: false,
            read_at: Instant::now(),
        })
    }

    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            let mut fds: Vec<PollFd> =
                self.watch.fds().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
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
        if self.watch.changed() || wanted != self.wanted {
            // Before anything is read: from now on nothing is forwarded by what
            // may no longer be so.
            self.maps.withdraw()?;
            self.wanted = wanted;
            return self.rebuild();
        }
        self.maps.beat()?;
        self.beats += 1;
        if self.unsettled
            || legacy_tables() != self.legacy
            || (self.beats.is_multiple_of(LOOK) && self.occupied() != self.occupied)
        {
            return self.rebuild();
        }
        if self.read_at.elapsed() >= AUDIT {
            self.read_at = Instant::now();
            let facts = gather(&self.netlink, &self.occupied)?;
            let plan = Plan::new(&facts, |name| self.wanted.wants(name));
            if plan != self.plan || self.maps.generation() & 1 == 1 {
                return self.rebuild();
            }
        }
        Ok(())
    }

    /// Links at whose hooks there are other programs than ours: one at the egress of a
    /// VXLAN device or a tenant's port would be passed by.
    fn occupied(&self) -> BTreeSet<u32> {
        let ours = |index: u32| self.hooks.keys().filter(|(at, _)| *at == index).count() as u32;
        // A device that has gone has none.
        let at = |index: u32, hook| tcx::count(index, hook).unwrap_or(0);
        let is_occupied =
            |index: &u32| at(*index, Hook::Ingress) > ours(*index) || at(*index, Hook::Egress) > 0;
        self.looked_at.iter().copied().filter(is_occupied).collect()
    }

    /// Reads everything and brings maps and hooks to it.
    fn rebuild(&mut self) -> Result<()> {
        self.maps.withdraw()?;
        for attempt in 0.. {
            self.read_at = Instant::now();
            let mut facts = gather(&self.netlink, &self.occupied)?;
            self.looked_at = facts.overlay.links.keys().copied().collect();
            self.occupied = self.occupied();
            facts.occupied = self.occupied.clone();
            self.legacy = legacy_tables();
            let plan = Plan::new(&facts, |name| self.wanted.wants(name));
            // The answers may be of different moments when something changed
            // between them; then they are not published.
            if self.watch.changed() {
                if attempt < ATTEMPTS {
                    continue;
                }
                // So much changes that the slow path is the right one; the next
                // beat comes back to it.
                self.unsettled = true;
                self.note(plan, 0);
                return Ok(());
            }
            self.hook(&plan, &facts.overlay)?;
            let left_out = self.maps.publish(&plan)?;
            self.unsettled = false;
            self.note(plan, left_out);
            return Ok(());
        }
        Ok(())
    }

    fn hook(&mut self, plan: &Plan, overlay: &netstate::overlay::Overlay) -> Result<()> {
        let wanted: BTreeSet<(u32, Role)> = (plan.ports.keys().map(|port| (*port, Role::Egress)))
            .chain(plan.nics.iter().map(|nic| (*nic, Role::Ingress)))
            .collect();
        self.hooks.retain(|hook, _| wanted.contains(hook));
        for hook in wanted {
            if !self.hooks.contains_key(&hook) {
                let name = overlay.links.get(&hook.0).map_or("?", |link| link.name.as_str());
                self.hooks.insert(hook, self.programs.attach(hook.1, hook.0, name)?);
            }
        }
        Ok(())
    }

    fn note(&mut self, plan: Plan, left_out: usize) {
        let mut status = lock(&self.shared.status);
        status.generation = self.maps.generation();
        status.entries = self.maps.entries();
        status.left_out = left_out;
        status.problem = None;
        status.devices = plan
            .devices
            .iter()
            .map(|device| DeviceStatus {
                device: device.name.clone(),
                refused: device.refused.clone(),
                ports: device
                    .ports
                    .iter()
                    .map(|(name, refused)| PartStatus {
                        name: name.clone(),
                        refused: refused.clone(),
                    })
                    .collect(),
                remotes: device
                    .remotes
                    .iter()
                    .map(|(address, refused)| PartStatus {
                        name: address.to_string(),
                        refused: refused.clone(),
                    })
                    .collect(),
            })
            .collect();
        drop(status);
        *lock(&self.shared.in_force) = self.wanted.clone();
        self.shared.followed.notify_all();
        self.plan = plan;
    }
}
