//! The fast path of a namespace as who runs it sees it: started, told what to accelerate,
//! asked what became of it, stopped. The work is that of a thread (`mirror`).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sys::netns::NetNs;

use crate::bpf::{Programs, Role};
use crate::counters::Counters;
use crate::mirror::Mirror;
use crate::status::Status;
use crate::{Result, lock};

/// What a change of what is wanted may take.
const FOLLOWED: Duration = Duration::from_secs(1);

/// Forwarding entries that there is room for, where nobody says otherwise.
pub const ROOM: u32 = 65_536;

/// Whether this kernel lets this process run the fast path: loads the programs and
/// attaches one to the loopback device of `netns`, for a moment.
///
/// # Errors
/// What the kernel refuses.
pub fn probe(netns: &NetNs) -> Result<()> {
    const LOOPBACK: u32 = 1;
    let programs = Programs::load(ROOM)?;
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
    pub(crate) fn wants(&self, name: &str) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Named(names) => names.contains(name),
        }
    }

    /// Whether some may be in sandboxes: their names are those of namespace and device.
    pub(crate) fn wants_sandboxes(&self) -> bool {
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

/// What the thread and its owner both have.
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    /// No heartbeat and no reading: what a hanging daemon looks like.
    pub(crate) paused: AtomicBool,
    pub(crate) wanted: Mutex<Wanted>,
    /// What the maps are made for.
    pub(crate) in_force: Mutex<Wanted>,
    /// Told when that has changed.
    pub(crate) followed: Condvar,
    pub(crate) status: Mutex<Status>,
}

impl Accel {
    /// Starts the fast path for devices of `netns`, and returns when the first
    /// plan is in force.
    ///
    /// # Errors
    /// When the programs cannot be loaded or the state not be read; nothing is
    /// attached then.
    pub fn start(netns: &NetNs, wanted: Wanted) -> Result<Accel> {
        Accel::with_room(netns, wanted, ROOM)
    }

    /// The same with room for so many forwarding entries, those of all devices together;
    /// addresses that find none stay slow.
    ///
    /// # Errors
    /// As [`Accel::start`].
    pub fn with_room(netns: &NetNs, wanted: Wanted, room: u32) -> Result<Accel> {
        let programs = Programs::load(room)?;
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
                room,
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
            .wait_timeout_while(in_force, FOLLOWED, |in_force| *in_force != wanted)
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
