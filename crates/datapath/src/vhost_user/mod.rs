//! Guests by vhost-user. Their rings are read and written in place, in the guest's memory.
//!
//! The guest's QEMU connects to a Unix socket (`socket`) and passes its memory ([`memory`]) and the
//! places of its rings. `server` is the thread that serves the connection, `session` executes its
//! requests, and `message` parses them. `device` is the state shared by that thread and those that
//! move frames. For the latter, each queue pair is a `queue`, which reads and writes frames as a
//! TAP does. Only `ring` accesses the rings themselves.
//!
//! Invariants:
//! - Every value in the guest's memory is read once, validated, and used as read. It cannot cause a
//!   panic, an access outside the guest's memory, or an unbounded loop.
//! - Guest memory is mapped only if its file cannot be shrunk (`F_SEAL_SHRINK`).
//! - A ring that breaks the specification is disabled until the guest restarts it. A client that
//!   breaks the protocol is disconnected. The other side continues in both cases.
//! - After `GET_VRING_BASE` is answered, and after the client has disconnected, the ring is not
//!   accessed.
//! - A frame is copied before it is validated.
//! - If this process has a memory limit, guests cannot make it exceed the limit (`untouched`).

mod device;
pub mod features;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod memory;
pub mod message;
mod queue;
pub mod ring;
mod ring_error;
mod server;
mod session;
mod socket;
#[cfg(test)]
mod tests;
mod untouched;

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use sys::tap::Offload;

pub use crate::error::SocketError;

pub use device::{GuestState, GuestStatus};
pub(crate) use queue::GuestQueue;
pub use session::SessionError;

/// Maximum number of entries of a ring.
pub const SIZE_MAX: u16 = 32_768;

use crate::Result;
use crate::threads::Threads;
use device::Device;
use untouched::MemoryLimit;

/// Maximum number of queue pairs of a guest: a ring's number has eight bits.
pub const QUEUES_MAX: usize = 128;

/// Prefix of a socket's path where a TAP could also be named. Names of devices contain no colon.
pub const PREFIX: &str = "vhost-user:";

/// Settings of a guest's port.
#[derive(Debug, Clone)]
pub struct GuestPortOptions {
    pub socket: PathBuf,
    /// Number of queue pairs, 1 to [`QUEUES_MAX`].
    pub queues: usize,
    /// Offered offloads. The guest may accept fewer.
    pub offload: Offload,
}

impl GuestPortOptions {
    /// Returns a port with one queue pair and every offload.
    pub fn at(socket: impl Into<PathBuf>) -> GuestPortOptions {
        GuestPortOptions { socket: socket.into(), queues: 1, offload: Offload::PLAIN }
    }
}

/// A port to which a guest's QEMU can connect. It is served when the bridge or the endpoint starts.
#[derive(Debug)]
pub struct GuestPort {
    device: Arc<Device>,
    listener: UnixListener,
    offload: Offload,
}

impl GuestPort {
    /// Listens on the socket.
    ///
    /// # Errors
    /// [`SocketError`]; if there are no more descriptors.
    pub fn listen(options: &GuestPortOptions) -> Result<GuestPort> {
        GuestPort::listen_within(options, MemoryLimit::open())
    }

    fn listen_within(
        options: &GuestPortOptions,
        limit: Option<Arc<MemoryLimit>>,
    ) -> Result<GuestPort> {
        let name = options.socket.display().to_string();
        let wrong = |reason: String| SocketError { path: name.escape_debug().to_string(), reason };
        // The path is printed on a terminal and passed to QEMU's comma-separated options.
        if !socket::is_plain(options.socket.as_os_str()) {
            return Err(wrong("expected a path of printable characters".to_owned()).into());
        }
        // Each queue has a thread and two rings.
        if !(1..=QUEUES_MAX).contains(&options.queues) {
            let problem = format!("{} queues, expected 1 to {QUEUES_MAX}", options.queues);
            return Err(wrong(problem).into());
        }
        // Keep only those TAP offloads that virtio has.
        let offload = options.offload.without(Offload::ALL.without(Offload::PLAIN));
        let listener = socket::listen_at(&options.socket)?;
        let device = Arc::new(Device::new(&name, options.queues, offload, limit)?);
        Ok(GuestPort { device, listener, offload })
    }

    /// Returns the path of the socket.
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// Returns the number of queue pairs.
    pub fn queue_count(&self) -> usize {
        self.device.queues()
    }

    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// Returns a handle for status queries while the port is served.
    pub fn watcher(&self) -> GuestWatcher {
        GuestWatcher(self.device.clone())
    }

    pub(crate) fn pairs(&self) -> Vec<GuestQueue> {
        let queue = |queue| GuestQueue::new(self.device.clone(), queue);
        (0..self.device.queues()).map(queue).collect()
    }

    pub(crate) fn serve(self, threads: &mut Threads) -> Result<()> {
        server::spawn(threads, self.device, self.listener)
    }
}

/// A handle to query the status of a guest's port from any thread.
#[derive(Debug, Clone)]
pub struct GuestWatcher(Arc<Device>);

impl GuestWatcher {
    pub fn status(&self) -> GuestStatus {
        self.0.status()
    }

    /// Returns a descriptor that becomes readable when there are log lines.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.0.event()
    }

    /// Returns the log lines since the last call: clients that connected, disconnected or were
    /// rejected, and rings that broke the specification.
    pub fn news(&self) -> Vec<String> {
        self.0.news()
    }
}
