//! What the sessions of a server share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use results::Privileges;
use sys::netns::NetNs;

use super::Limits;
use crate::sampler::{Drops, Machine, SamplerError};

/// State of the server that all sessions use.
#[derive(Debug)]
pub(super) struct Shared {
    pub limits: Limits,
    pub data_port: u16,
    pub netns: Arc<NetNs>,
    /// Open while a session uses them: a server that only waits costs nothing.
    pub samplers: Mutex<Weak<Samplers>>,
    pub privileges: Privileges,
    /// A load is running.
    pub busy: AtomicBool,
    pub stop: Arc<AtomicBool>,
}

/// What reads this machine.
#[derive(Debug)]
pub(super) struct Samplers {
    pub machine: Machine,
    /// Not where BPF is not allowed.
    pub drops: Option<Arc<Drops>>,
}

impl Shared {
    /// The samplers, opened by the first session that wants them.
    pub fn samplers(&self) -> Result<Arc<Samplers>, SamplerError> {
        let mut slot = self.samplers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = slot.upgrade() {
            return Ok(open);
        }
        let machine = Machine::open(true)?;
        // Without BPF losses are attributed by counters only.
        let opened = Arc::new(Samplers { machine, drops: Drops::open().ok().map(Arc::new) });
        *slot = Arc::downgrade(&opened);
        Ok(opened)
    }
}
