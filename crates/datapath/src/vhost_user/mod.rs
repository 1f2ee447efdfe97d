//! Guests by vhost-user: their rings are read and written where they are, in the guest's
//! memory.
//!
//! The guest's QEMU connects to a Unix socket (`socket`) and hands over its memory
//! ([`memory`]) and where its rings are; `server` is the thread that listens to it,
//! `session` does what it asks for, `message` reads its bytes. `device` is what that thread
//! shares with those that move frames. For these each pair of queues is a `queue`, which
//! reads and writes frames as a TAP does. `ring` is the one place that looks into a ring.
//!
//! Invariants:
//! - What the guest's memory holds is read once, judged and used as read. It causes no
//!   panic, no access outside of the guest's memory, and no loop without a bound.
//! - Guest memory is mapped only where its file cannot be cut (`F_SEAL_SHRINK`).
//! - A ring that breaks a rule is not used again until the guest starts it anew; a client
//!   that does is sent away. The other side goes on.
//! - After `GET_VRING_BASE` is answered, and after the client has gone, nothing of the ring
//!   is touched.
//! - A frame is copied out before it is judged.

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

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use sys::tap::Offload;

pub use crate::error::SocketError;

pub use device::{GuestState, GuestStatus};
pub(crate) use queue::GuestQueue;
pub use session::SessionError;

/// Entries of a ring, at most.
pub const SIZE_MAX: u16 = 32_768;

use crate::Result;
use crate::threads::Threads;
use device::Device;

/// Pairs of queues of a guest, at most: the number of a ring has eight bits.
pub const QUEUES_MAX: usize = 128;

/// What precedes the path of a socket where a TAP could be named, too: no name of a device
/// has a colon.
pub const PREFIX: &str = "vhost-user:";

/// What a guest's port is to be.
#[derive(Debug, Clone)]
pub struct GuestPortOptions {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Pairs of queues, 1 to [`QUEUES_MAX`].
    pub queues: usize,
    /// What is offered uncut; the guest may take less.
    pub offload: Offload,
}

impl GuestPortOptions {
    /// A port with one pair of queues and every offload.
    pub fn at(socket: impl Into<PathBuf>) -> GuestPortOptions {
        GuestPortOptions { socket: socket.into(), queues: 1, offload: Offload::PLAIN }
    }
}

/// A port that a guest's QEMU can connect to. It is served from when the bridge or the
/// endpoint starts.
#[derive(Debug)]
pub struct GuestPort {
    device: Arc<Device>,
    listener: UnixListener,
    offload: Offload,
}

impl GuestPort {
    /// Listens at the socket.
    ///
    /// # Errors
    /// [`SocketError`]; when descriptors have run out.
    pub fn listen(options: &GuestPortOptions) -> Result<GuestPort> {
        let name = options.socket.display().to_string();
        let wrong = |reason: String| SocketError { path: name.escape_debug().to_string(), reason };
        if !socket::is_plain(options.socket.as_os_str()) {
            return Err(wrong("expected a path of printable characters".to_owned()).into());
        }
        if !(1..=QUEUES_MAX).contains(&options.queues) {
            let problem = format!("{} queues, expected 1 to {QUEUES_MAX}", options.queues);
            return Err(wrong(problem).into());
        }
        // Of those of a TAP, what virtio has.
        let offload = options.offload.without(Offload::ALL.without(Offload::PLAIN));
        let listener = socket::listen_at(&options.socket)?;
        let device = Arc::new(Device::new(&name, options.queues, offload)?);
        Ok(GuestPort { device, listener, offload })
    }

    /// Path of the socket.
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// Pairs of queues.
    pub fn queue_count(&self) -> usize {
        self.device.queues()
    }

    /// What is offered uncut.
    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// What can be asked while it is served.
    pub fn watcher(&self) -> GuestWatcher {
        GuestWatcher(self.device.clone())
    }

    /// The pairs of queues.
    pub(crate) fn pairs(&self) -> Vec<GuestQueue> {
        let queue = |queue| GuestQueue::new(self.device.clone(), queue);
        (0..self.device.queues()).map(queue).collect()
    }

    /// Starts the thread that serves the client.
    pub(crate) fn serve(self, threads: &mut Threads) -> Result<()> {
        server::spawn(threads, self.device, self.listener)
    }
}

/// What a guest's port is doing, asked from anywhere.
#[derive(Debug, Clone)]
pub struct GuestWatcher(Arc<Device>);

impl GuestWatcher {
    /// What it is doing now.
    pub fn status(&self) -> GuestStatus {
        self.0.status()
    }

    /// Becomes readable when there is news.
    pub fn told(&self) -> BorrowedFd<'_> {
        self.0.told()
    }

    /// What has happened since, a line each: clients that came, went or were sent away,
    /// rings that broke a rule.
    pub fn news(&self) -> Vec<String> {
        self.0.news()
    }
}
