//! The naive reference: two TAP devices joined by a thread that reads one
//! packet and writes it, a system call each, no offload.
//!
//! It is what a first version of any user-space bridge looks like, and what the
//! faster engines are measured against; it is kept this plain on purpose.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use sys::tap::Tap;
use sys::{Error, Result};

/// Ethernet header and the largest layer-3 MTU a TAP takes.
const LARGEST_FRAME: usize = 14 + 65_535;

/// Packets that the loop read and could not write.
#[derive(Debug, Default)]
pub struct Drops {
    /// The other device refused the frame (down, or out of buffers).
    pub refused: AtomicU64,
}

/// The running loop; dropping it ends it and closes both devices.
#[derive(Debug)]
pub struct CopyLoop {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    drops: Arc<Drops>,
}

impl CopyLoop {
    /// Starts a thread that moves packets both ways until this is dropped.
    ///
    /// # Errors
    /// When descriptors or threads have run out.
    pub fn start(left: Tap, right: Tap) -> Result<CopyLoop> {
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)
            .map_err(|e| Error::new("eventfd", "copy loop", e))?;
        let stop = Arc::new(stop);
        let drops = Arc::new(Drops::default());
        left.set_nonblocking(true)?;
        right.set_nonblocking(true)?;
        let thread = std::thread::Builder::new()
            .name("tap copy loop".into())
            .spawn({
                let (stop, drops) = (stop.clone(), drops.clone());
                move || run(&left, &right, &stop, &drops)
            })
            .map_err(|e| Error::io("start thread", "tap copy loop", &e))?;
        Ok(CopyLoop { stop, thread: Some(thread), drops })
    }

    /// Packets read and not written.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }
}

impl Drop for CopyLoop {
    fn drop(&mut self) {
        // An eventfd that cannot be written to would need 2^64 - 1 writes.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(left: &Tap, right: &Tap, stop: &EventFd, drops: &Drops) {
    let mut frame = vec![0u8; LARGEST_FRAME];
    loop {
        let mut ready = [
            PollFd::new(left.as_fd(), PollFlags::POLLIN),
            PollFd::new(right.as_fd(), PollFlags::POLLIN),
            PollFd::new(stop.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return,
        }
        let is_ready = |at: usize| ready[at].any().unwrap_or(false);
        if is_ready(2) {
            return;
        }
        let (from_left, from_right) = (is_ready(0), is_ready(1));
        if from_left && copy_one(left, right, &mut frame, drops).is_err() {
            return;
        }
        if from_right && copy_one(right, left, &mut frame, drops).is_err() {
            return;
        }
    }
}

/// Moves one packet; an error means that `from` is gone.
fn copy_one(from: &Tap, to: &Tap, frame: &mut [u8], drops: &Drops) -> std::io::Result<()> {
    let length = match from.read(frame) {
        Ok(length) => length,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
        Err(error) => return Err(error),
    };
    if to.write(&frame[..length]).is_err() {
        // The receiver is down or full: what a wire would do is lose the frame.
        drops.refused.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
