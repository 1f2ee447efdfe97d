//! Two TAP devices joined in user space, GSO packets uncut.
//!
//! A frame's way: a [`Port`] is one side, a device with its queues; an engine
//! reads from one port's queue and hands the frame to `forward`, which lets
//! [`netmap`] translate its addresses where asked for, cuts and sums what the
//! other port does not take uncut, and writes it there; every fate of a frame is
//! in [`crate::counters`].
//!
//! Invariants:
//! - received = forwarded + answered + dropped, each drop with its reason.
//! - Nothing is allocated per packet, no frame waits in user space.
//! - Frames of one queue keep their order.
//! - The devices are not persistent: they go with the descriptors, however the
//!   process ends.

mod engine;
mod forward;
pub mod netmap;
mod port;

use std::time::Duration;

pub use crate::bridge_engine::{Engine, EngineChoice, Unavailable};
pub use engine::{Ready, Running};
pub(crate) use port::LAYOUT;
pub use port::{Port, PortOptions, QUEUES_MAX};

use crate::{Error, Result};
use netmap::Netmap;

/// One of the two ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first port; index 0 of arrays.
    Left,
    /// The second port; index 1 of arrays.
    Right,
}

impl Side {
    /// Both sides, in the order of arrays.
    pub const BOTH: [Side; 2] = [Side::Left, Side::Right];

    /// The side that packets of this side are forwarded to.
    #[must_use]
    pub const fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

/// Two ports that are not yet joined.
#[derive(Debug)]
pub struct Bridge {
    left: Port,
    right: Port,
    netmap: Option<Netmap>,
    busy_poll: Duration,
}

impl Bridge {
    /// Joins two ports; frames move from [`Ready::start`] on.
    ///
    /// # Errors
    /// [`Error::Queues`].
    pub fn new(left: Port, right: Port, netmap: Option<Netmap>) -> Result<Bridge> {
        let (left_queues, right_queues) = (left.queues().len(), right.queues().len());
        if left_queues != right_queues {
            let (left, right) = (left.name().to_owned(), right.name().to_owned());
            return Err(Error::Queues { left, left_queues, right, right_queues });
        }
        Ok(Bridge { left, right, netmap, busy_poll: Duration::ZERO })
    }

    /// Has threads look again for so long before they sleep, as long as that has been of
    /// use: packets wait less, the CPU is busy. Not with [`Engine::Uring`].
    #[must_use]
    pub fn polling(self, busy_poll: Duration) -> Bridge {
        Bridge { busy_poll, ..self }
    }

    /// One of the ports.
    pub fn port(&self, side: Side) -> &Port {
        match side {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
    }
}
