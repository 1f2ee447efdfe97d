//! State shared by the reconciler thread and its owner.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};

use super::search::Source;
use crate::admission::Verdicts;
use crate::lock::lock;
use crate::model::{Accounting, Wanted};
use crate::status::Status;
use crate::vitals::Pulse;

pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    /// Stops heartbeats and reads, to simulate a hanging daemon.
    #[cfg(feature = "test-support")]
    pub(crate) paused: AtomicBool,
    /// Limits of GSO packets that VXLAN devices are treated to have.
    #[cfg(feature = "test-support")]
    pub(crate) gso_max_size: std::sync::OnceLock<u32>,
    pub(crate) wanted: Mutex<Wanted>,
    /// The wanted devices that the current plan covers.
    pub(crate) in_force: Mutex<Wanted>,
    /// Signalled when `in_force` changes.
    pub(crate) followed: Condvar,
    /// State that verdicts on flows depend on, and their counts.
    pub(crate) verdicts: Verdicts,
    /// Which counters of rules and of conntrack stay exact.
    pub(crate) accounting: Accounting,
    /// Locked only to clone or replace the pointer, so that readers never delay the heartbeat.
    status: Mutex<Arc<Status>>,
    pub(crate) pulse: Pulse,
    /// Ids of all programs that this process ever loaded.
    pub(crate) programs: Mutex<BTreeSet<u32>>,
    /// Ids of the programs of the process that this one takes over from.
    pub(crate) predecessor: BTreeSet<u32>,
    /// Process that searches for sandboxes.
    pub(crate) source: Source,
}

impl Shared {
    pub(crate) fn new(
        wanted: Wanted,
        status: Status,
        source: Source,
        predecessor: BTreeSet<u32>,
        accounting: Accounting,
    ) -> Shared {
        Shared {
            stop: AtomicBool::new(false),
            #[cfg(feature = "test-support")]
            paused: AtomicBool::new(false),
            #[cfg(feature = "test-support")]
            gso_max_size: std::sync::OnceLock::new(),
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

    /// Returns the latest status.
    pub(crate) fn status(&self) -> Arc<Status> {
        lock(&self.status).clone()
    }

    /// Changes the status. Only the reconciler calls this.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.status();
        // Clones the status, outside the lock, if a reader still holds it.
        change(Arc::make_mut(&mut status));
        let _last = std::mem::replace(&mut *lock(&self.status), status);
    }
}
