//! What the reconciler's thread and its owner both have.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};

use super::search::Source;
use crate::admission::Verdicts;
use crate::lock::lock;
use crate::model::Wanted;
use crate::status::Status;
use crate::vitals::Pulse;

/// What the thread and its owner both have.
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    /// No heartbeat and no reading: what a hanging daemon looks like.
    #[cfg(feature = "test-support")]
    pub(crate) paused: AtomicBool,
    pub(crate) wanted: Mutex<Wanted>,
    /// What the maps are made for.
    pub(crate) in_force: Mutex<Wanted>,
    /// Told when that has changed.
    pub(crate) followed: Condvar,
    /// What verdicts on flows are given by, and what came of it.
    pub(crate) verdicts: Verdicts,
    /// None are given: every packet that comes to rules goes by the slow path.
    pub(crate) accounting: bool,
    /// Held for as long as it takes to clone a pointer: the thread of the heartbeat waits
    /// for nobody who reads.
    status: Mutex<Arc<Status>>,
    pub(crate) pulse: Pulse,
    /// Ids of this process's programs, all that there ever were.
    pub(crate) programs: Mutex<BTreeSet<u32>>,
    /// Ids of the programs of the process that this one takes over from.
    pub(crate) predecessor: BTreeSet<u32>,
    /// Where sandboxes are looked for.
    pub(crate) source: Source,
}

impl Shared {
    pub(crate) fn new(
        wanted: Wanted,
        status: Status,
        source: Source,
        predecessor: BTreeSet<u32>,
        accounting: bool,
    ) -> Shared {
        Shared {
            stop: AtomicBool::new(false),
            #[cfg(feature = "test-support")]
            paused: AtomicBool::new(false),
            wanted: Mutex::new(wanted.clone()),
            in_force: Mutex::new(wanted),
            followed: Condvar::new(),
            status: Mutex::new(Arc::new(status)),
            pulse: Pulse::new(),
            verdicts: Verdicts::default(),
            accounting,
            source,
            programs: Mutex::default(),
            predecessor,
        }
    }

    /// What was noted last.
    pub(crate) fn status(&self) -> Arc<Status> {
        lock(&self.status).clone()
    }

    /// Notes something; only the reconciler does.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.status();
        // Cloned outside of the lock where somebody still reads the last one.
        change(Arc::make_mut(&mut status));
        let _last = std::mem::replace(&mut *lock(&self.status), status);
    }
}
