//! State shared by the sessions of a server.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use probe::answering::Answerer;
use results::Privileges;
use sys::netns::NetNs;

use super::Limits;
use super::turns::Turns;
use crate::sampler::{Drops, Machine, SamplerError};

/// State shared by all sessions.
#[derive(Debug)]
pub(super) struct Shared {
    pub limits: Limits,
    pub data_port: u16,
    pub netns: Arc<NetNs>,
    /// Open while a session uses them, so that an idle server costs nothing.
    pub samplers: Mutex<Weak<Samplers>>,
    pub privileges: Privileges,
    /// The socket for probes.
    pub answerer: Answerer,
    /// Clients whose loads run or wait.
    pub turns: Turns,
    pub stop: Arc<AtomicBool>,
}

/// Samplers of this machine.
#[derive(Debug)]
pub(super) struct Samplers {
    pub machine: Machine,
    /// `None` if BPF is not allowed.
    pub drops: Option<Arc<Drops>>,
}

impl Shared {
    /// Returns the samplers. The first session that needs them opens them.
    pub fn samplers(&self) -> Result<Arc<Samplers>, SamplerError> {
        let mut slot = self.samplers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = slot.upgrade() {
            return Ok(open);
        }
        let machine = Machine::open(true)?;
        // Without BPF, losses are attributed by counters only.
        let opened = Arc::new(Samplers { machine, drops: Drops::open().ok().map(Arc::new) });
        *slot = Arc::downgrade(&opened);
        Ok(opened)
    }
}
