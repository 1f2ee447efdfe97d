//! A thread per queue pair that takes frames in batches from a ring (io_uring).
//!
//! Both queues are read with multishot requests, so that all frames that arrived while the thread
//! was busy cost one system call. Each frame is still written with one call. Limits: as many frames
//! wait in user space as there are buffers, and these do not stay in a CPU's cache as the single
//! buffer of the epoll engine does.

use std::os::fd::AsFd;

use nix::errno::Errno;
use sys::frame_ring::{Completion, FrameRing};

use super::super::forward::{BUFFER, Forwarder};
use super::super::{Bridge, Result};
use crate::Error;
use crate::threads::Threads;

/// Buffers of a ring. More would no longer be in the cache when they are reused.
const BUFFERS: u16 = 16;

/// Creates a ring for each pair of queues, left and right, and the stop event.
///
/// # Errors
/// If this engine cannot run.
pub(super) fn open(bridge: &Bridge, threads: &Threads) -> sys::Result<Vec<FrameRing>> {
    let (Some(left), Some(right)) = (bridge.left.tap(), bridge.right.tap()) else {
        // A guest signals its frames with eventfds and keeps them in its memory, which a ring
        // cannot read.
        return Err(sys::Error::new("io_uring", "a guest's port", Errno::EOPNOTSUPP));
    };
    let pairs = left.queues().iter().zip(right.queues());
    pairs
        .map(|(left, right)| {
            let frames = [left.as_fd(), right.as_fd()];
            FrameRing::new(&frames, &[threads.stopping()], BUFFERS, BUFFER)
        })
        .collect()
}

/// Starts a thread with the ring of a pair.
pub(super) fn spawn(
    threads: &mut Threads,
    index: usize,
    ring: FrameRing,
    forwarders: [Forwarder; 2],
) -> Result<()> {
    Ok(threads.spawn(&format!("tapbridge {index}"), move || run(ring, forwarders))?)
}

fn run(mut ring: FrameRing, mut forwarders: [Forwarder; 2]) -> Result<()> {
    loop {
        ring.wait()?;
        while let Some(event) = ring.event() {
            match event {
                Completion::Frame(from, bytes) => forwarders[from].frame(bytes)?,
                // Only the stop event is polled.
                Completion::Readable(_) => return Ok(()),
                Completion::Failed(from, errno) => {
                    let device = forwarders[from].source();
                    // EBADFD is the kernel's error for a deleted TAP device.
                    return Err(match errno {
                        Errno::EBADFD => Error::Vanished(device.name().to_owned()),
                        other => sys::Error::new("read", device.name(), other).into(),
                    });
                }
            }
        }
    }
}
