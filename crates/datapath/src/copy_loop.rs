//! The simplest user-space bridge, as a reference: a thread that reads a packet from one of two TAP
//! devices and writes it to the other, with one system call each and no offload. Faster engines are
//! compared with it, so it stays this simple on purpose.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use sys::tap::Tap;
use sys::{Error, Result};

/// Ethernet header and the largest layer-3 MTU of a TAP.
const LARGEST_FRAME: usize = 14 + 65_535;

/// Packets that the loop read but could not write.
#[derive(Debug, Default)]
pub struct Drops {
    /// The other device refused the frame (down, or out of buffers).
    pub refused: AtomicU64,
}

/// The running loop. Dropping it ends the loop and closes both devices.
#[derive(Debug)]
pub struct CopyLoop {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    drops: Arc<Drops>,
}

impl CopyLoop {
    /// Starts a thread that moves packets in both directions until this is dropped.
    ///
    /// # Errors
    /// If there are no more descriptors or threads.
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

    /// Returns the packets that were read but not written.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }
}

impl Drop for CopyLoop {
    fn drop(&mut self) {
        // Writing can only fail after 2^64 - 1 writes.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has no consequence: the loop is only a reference for
            // measurements.
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
            // A signal does not end the loop.
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return,
        }
        let is_ready = |at: usize| ready[at].any().unwrap_or(false);
        // Stop was requested.
        if is_ready(2) {
            return;
        }
        let (from_left, from_right) = (is_ready(0), is_ready(1));
        // The device is gone or broken: the loop ends, as a naive program would.
        if from_left && copy_one(left, right, &mut frame, drops).is_err() {
            return;
        }
        if from_right && copy_one(right, left, &mut frame, drops).is_err() {
            return;
        }
    }
}

/// Moves one packet; fails if `from` is gone.
fn copy_one(from: &Tap, to: &Tap, frame: &mut [u8], drops: &Drops) -> std::io::Result<()> {
    let length = match from.read(frame) {
        Ok(length) => length,
        // The wakeup was spurious.
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
        Err(error) => return Err(error),
    };
    if to.write(&frame[..length]).is_err() {
        // The receiver is down or full. Drop the frame, as a wire would lose it.
        drops.refused.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
