//! Joins two TAP devices or guests in user space, without segmenting GSO packets.
//!
//! A side is a [`Port`], which is a device with its queues, or a [`GuestPort`], which is the rings
//! of a guest ([`crate::vhost_user`]). An engine reads frames from the queue of one port and passes
//! them to `forward`. It translates addresses with [`netmap`] if configured, segments frames and
//! completes checksums if the other port lacks the offloads, and writes them there.
//! [`crate::counters`] counts the outcome of every frame.
//!
//! Invariants:
//! - received = forwarded + answered + dropped, each drop with its reason.
//! - Nothing is allocated per packet. No frame waits in user space, except one per direction for a
//!   guest without free buffers.
//! - Frames of one queue keep their order.
//! - The devices are not persistent: the kernel removes them when their descriptors are closed,
//!   however the process ends.

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

    #[must_use]
    pub const fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

#[derive(Debug)]
pub enum BridgePort {
    Tap(Port),
    /// A vhost-user guest.
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
    /// Returns the name of the device, or the path of the socket.
    pub fn name(&self) -> &str {
        match self {
            BridgePort::Tap(port) => port.name(),
            BridgePort::Guest(port) => port.name(),
        }
    }

    /// Returns the offloads; for a guest, those that are offered.
    pub fn offload(&self) -> sys::tap::Offload {
        match self {
            BridgePort::Tap(port) => port.offload(),
            BridgePort::Guest(port) => port.offload(),
        }
    }

    /// Returns the number of queues, or of a guest's queue pairs.
    pub fn queue_count(&self) -> usize {
        match self {
            BridgePort::Tap(port) => port.queues().len(),
            BridgePort::Guest(port) => port.queue_count(),
        }
    }

    pub fn tap(&self) -> Option<&Port> {
        match self {
            BridgePort::Tap(port) => Some(port),
            BridgePort::Guest(_) => None,
        }
    }

    /// Splits it into its queues, and the port that serves the guest.
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

/// Two ports that are not joined yet.
#[derive(Debug)]
pub struct Bridge {
    left: BridgePort,
    right: BridgePort,
    netmap: Option<Netmap>,
    busy_poll: Duration,
}

impl Bridge {
    /// Joins two ports. Frames are moved from [`Ready::start`] on.
    ///
    /// # Errors
    /// [`Error::Queues`]; [`Error::Guest`] if addresses are to be translated for a guest.
    pub fn new(
        left: impl Into<BridgePort>,
        right: impl Into<BridgePort>,
        netmap: Option<Netmap>,
    ) -> Result<Bridge> {
        let (left, right) = (left.into(), right.into());
        let (left_queues, right_queues) = (left.queue_count(), right.queue_count());
        // Each queue is forwarded to the queue with the same number.
        if left_queues != right_queues {
            let (left, right) = (left.name().to_owned(), right.name().to_owned());
            return Err(Error::Queues { left, left_queues, right, right_queues });
        }
        for port in [&left, &right] {
            // netmap answers ARP with the device's hardware address, and a guest's is unknown.
            if netmap.is_some() && port.tap().is_none() {
                let what = "hardware address, which netmap needs to answer ARP";
                return Err(Error::Guest { port: port.name().to_owned(), what });
            }
        }
        Ok(Bridge { left, right, netmap, busy_poll: Duration::ZERO })
    }

    /// Busy-polls for up to this time before sleeping, while polling keeps finding packets. It
    /// reduces latency and keeps the CPU busy. Not with [`Engine::Uring`].
    #[must_use]
    pub fn polling(self, busy_poll: Duration) -> Bridge {
        Bridge { busy_poll, ..self }
    }

    pub fn port(&self, side: Side) -> &BridgePort {
        match side {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
    }
}
