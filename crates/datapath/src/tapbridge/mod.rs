//! Two TAP devices or guests joined in user space, GSO packets uncut.
//!
//! A frame's way: a [`Port`] is one side, a device with its queues, or a
//! [`GuestPort`] is, a guest's rings ([`crate::vhost_user`]); an engine
//! reads from one port's queue and hands the frame to `forward`, which lets
//! [`netmap`] translate its addresses where asked for, cuts and sums what the
//! other port does not take uncut, and writes it there; every fate of a frame is
//! in [`crate::counters`].
//!
//! Invariants:
//! - received = forwarded + answered + dropped, each drop with its reason.
//! - Nothing is allocated per packet. No frame waits in user space but one for a
//!   guest that has offered no room.
//! - Frames of one queue keep their order.
//! - The devices are not persistent: they go with the descriptors, however the
//!   process ends.

mod engine;
mod forward;
pub mod netmap;
mod port;
mod queue;

use std::sync::Arc;
use std::time::Duration;

pub use crate::bridge_engine::{Engine, EngineChoice, Unavailable};
pub use engine::{Ready, Running};
pub(crate) use forward::{BUFFER as FRAME_BUFFER, needed, sane};
pub use port::{Port, PortOptions, QUEUES_MAX};

use crate::vhost_user::GuestPort;
use crate::{Error, Result};
use netmap::Netmap;
use queue::Queue;

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

/// What one side of a bridge is.
#[derive(Debug)]
pub enum BridgePort {
    /// A TAP device.
    Tap(Port),
    /// A guest by vhost-user.
    Guest(GuestPort),
}

impl From<Port> for BridgePort {
    fn from(port: Port) -> BridgePort {
        BridgePort::Tap(port)
    }
}

impl From<GuestPort> for BridgePort {
    fn from(port: GuestPort) -> BridgePort {
        BridgePort::Guest(port)
    }
}

impl BridgePort {
    /// Name of the device, or path of the socket.
    pub fn name(&self) -> &str {
        match self {
            BridgePort::Tap(port) => port.name(),
            BridgePort::Guest(port) => port.name(),
        }
    }

    /// What crosses uncut: of a guest, what it is offered.
    pub fn offload(&self) -> sys::tap::Offload {
        match self {
            BridgePort::Tap(port) => port.offload(),
            BridgePort::Guest(port) => port.offload(),
        }
    }

    /// Queues, or pairs of a guest's.
    pub fn queue_count(&self) -> usize {
        match self {
            BridgePort::Tap(port) => port.queues().len(),
            BridgePort::Guest(port) => port.queue_count(),
        }
    }

    /// The TAP device, if it is one.
    pub fn tap(&self) -> Option<&Port> {
        match self {
            BridgePort::Tap(port) => Some(port),
            BridgePort::Guest(_) => None,
        }
    }

    /// The queues, and what serves the guest.
    fn into_parts(self) -> (Vec<Queue>, Option<GuestPort>) {
        match self {
            BridgePort::Tap(port) => {
                let offload = port.offload();
                let queues = port.into_queues().into_iter();
                (queues.map(|tap| Queue::Tap(Arc::new(tap), offload)).collect(), None)
            }
            BridgePort::Guest(port) => {
                (port.pairs().into_iter().map(Queue::Guest).collect(), Some(port))
            }
        }
    }
}

/// Two ports that are not yet joined.
#[derive(Debug)]
pub struct Bridge {
    left: BridgePort,
    right: BridgePort,
    netmap: Option<Netmap>,
    busy_poll: Duration,
}

impl Bridge {
    /// Joins two ports; frames move from [`Ready::start`] on.
    ///
    /// # Errors
    /// [`Error::Queues`]; [`Error::Guest`] where addresses are to be translated.
    pub fn new(
        left: impl Into<BridgePort>,
        right: impl Into<BridgePort>,
        netmap: Option<Netmap>,
    ) -> Result<Bridge> {
        let (left, right) = (left.into(), right.into());
        let (left_queues, right_queues) = (left.queue_count(), right.queue_count());
        if left_queues != right_queues {
            let (left, right) = (left.name().to_owned(), right.name().to_owned());
            return Err(Error::Queues { left, left_queues, right, right_queues });
        }
        for port in [&left, &right] {
            if netmap.is_some() && port.tap().is_none() {
                let what = "hardware address to answer ARP with, as netmap does";
                return Err(Error::Guest { port: port.name().to_owned(), what });
            }
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
    pub fn port(&self, side: Side) -> &BridgePort {
        match side {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
    }
}
