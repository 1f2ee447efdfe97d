//! One side of the bridge: a TAP device, its queues, what it takes uncut.

use sys::netns::NetNs;
use sys::tap::{Offload, Tap, TapOptions};

use crate::vnet_layout::HEADER;

/// The kernel's `MAX_TAP_QUEUES`.
pub const QUEUES_MAX: usize = 256;

/// What a port is to be.
#[derive(Debug, Clone)]
pub struct PortOptions {
    /// Device name; it must be free in its namespace.
    pub name: String,
    /// Queues, 1 to [`QUEUES_MAX`].
    pub queues: usize,
    /// What is wanted uncut; the kernel's age may leave less.
    pub offload: Offload,
}

impl PortOptions {
    /// A device with one queue and every offload.
    pub fn named(name: impl Into<String>) -> PortOptions {
        PortOptions { name: name.into(), queues: 1, offload: Offload::ALL }
    }
}

/// A TAP device with all its queues; it goes when this is dropped.
#[derive(Debug)]
pub struct Port {
    queues: Vec<Tap>,
    offload: Offload,
}

impl Port {
    /// Creates the device in that namespace, down and without address.
    ///
    /// # Errors
    /// As [`Tap::open`]: `EBUSY` for a name in use, `EPERM` without
    /// `CAP_NET_ADMIN`; `E2BIG` for too many queues.
    pub fn open(options: &PortOptions, netns: &NetNs) -> sys::Result<Port> {
        let tap_options = TapOptions {
            vnet_header: Some(HEADER),
            multi_queue: options.queues > 1,
            exclusive: true,
            ..TapOptions::named(&options.name)
        };
        let first = netns.run(|| Tap::open(&tap_options))??;
        let offload = first.negotiate_offload(options.offload)?;
        first.set_nonblocking(true)?;
        let mut queues = vec![first];
        for _ in 1..options.queues {
            let queue = queues[0].open_queue()?;
            queue.set_nonblocking(true)?;
            queues.push(queue);
        }
        Ok(Port { queues, offload })
    }

    /// Name of the device, which all queues share.
    pub fn name(&self) -> &str {
        self.queues[0].name()
    }

    /// The namespace the device is in now.
    ///
    /// # Errors
    /// As [`Tap::netns`].
    pub fn netns(&self) -> sys::Result<NetNs> {
        self.queues[0].netns()
    }

    /// The queues, at least one.
    pub fn queues(&self) -> &[Tap] {
        &self.queues
    }

    /// What crosses uncut, after negotiation with the kernel.
    pub fn offload(&self) -> Offload {
        self.offload
    }

    pub(crate) fn into_queues(self) -> Vec<Tap> {
        self.queues
    }
}
