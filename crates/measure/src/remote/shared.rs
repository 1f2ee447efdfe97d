//! What the sessions of a server share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use results::Privileges;
use sys::netns::NetNs;

use super::event::Event;
use super::refusals::Refusals;
use super::{Limits, Token};
use crate::sampler::{Drops, Machine, SamplerError};

/// State of the server that all sessions use.
#[derive(Debug)]
pub(super) struct Shared {
    pub token: Option<Token>,
    pub limits: Limits,
    pub data_port: u16,
    pub netns: Arc<NetNs>,
    /// Open while a session uses them: a server that only waits costs nothing.
    pub samplers: Mutex<Weak<Samplers>>,
    pub privileges: Privileges,
    /// A load is running.
    pub busy: AtomicBool,
    pub stop: Arc<AtomicBool>,
    pub sessions: AtomicU32,
    pub refusals: Mutex<Refusals>,
}

/// What reads this machine.
#[derive(Debug)]
pub(super) struct Samplers {
    pub machine: Machine,
    /// Not where BPF is not allowed.
    pub drops: Option<Arc<Drops>>,
}

impl Shared {
    /// Tells of a connection that came to nothing, unless enough was told of such.
    pub fn turn_away(&self, from: SocketAddr, why: String, tell: &(dyn Fn(Event) + Send + Sync)) {
        let told = {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            refusals.note(from, Instant::now())
        };
        if told {
            tell(Event::TurnedAway(from, why));
        }
    }

    /// Tells of those of which nothing was told.
    pub fn sum_up(&self, ends: bool, tell: &(dyn Fn(Event) + Send + Sync)) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = refusals.sum(Instant::now(), ends);
        drop(refusals);
        sum.into_iter().for_each(tell);
    }

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
