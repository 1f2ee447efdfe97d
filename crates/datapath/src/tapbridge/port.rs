//! A TAP device as one side of the bridge, with its queues and offloads.

use sys::netns::NetNs;
use sys::tap::{Offload, Tap, TapOptions};

use crate::vnet_layout::HEADER;

/// The kernel's `MAX_TAP_QUEUES`.
pub const QUEUES_MAX: usize = 256;

#[derive(Debug, Clone)]
pub struct PortOptions {
    /// Device name; it must not exist in the namespace.
    pub name: String,
    /// Number of queues, 1 to [`QUEUES_MAX`].
    pub queues: usize,
    /// Wanted offloads. An older kernel may support fewer.
    pub offload: Offload,
}

impl PortOptions {
    /// Returns a device with one queue and every offload.
    pub fn named(name: impl Into<String>) -> PortOptions {
        PortOptions { name: name.into(), queues: 1, offload: Offload::ALL }
    }
}

/// A TAP device with all its queues. It is removed when this is dropped.
#[derive(Debug)]
pub struct Port {
    queues: Vec<Tap>,
    offload: Offload,
}

impl Port {
    /// Creates the device in that namespace, down and without an address.
    ///
    /// # Errors
    /// As [`Tap::open`]: `EBUSY` if the name is in use, `EPERM` without `CAP_NET_ADMIN`, `E2BIG`
    /// for too many queues.
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

    /// Returns the name of the device, which all queues share.
    pub fn name(&self) -> &str {
        self.queues[0].name()
    }

    /// Returns the current namespace of the device.
    pub fn netns(&self) -> sys::Result<NetNs> {
        self.queues[0].netns()
    }

    /// Returns the queues, at least one.
    pub fn queues(&self) -> &[Tap] {
        &self.queues
    }

    /// Returns the offloads negotiated with the kernel.
    pub fn offload(&self) -> Offload {
        self.offload
    }

    pub(crate) fn into_queues(self) -> Vec<Tap> {
        self.queues
    }
}
