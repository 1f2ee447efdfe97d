//! A thread per queue pair that takes frames by batches from a ring (io_uring).
//!
//! Both queues are read by requests that never end, so that what has come while the
//! thread was at work costs it one system call; each frame is still written by one.
//! Limits: as many frames wait in user space as there are buffers; these do not stay
//! in a CPU's cache as the epoll engine's single one does.

use std::os::fd::AsFd;

use nix::errno::Errno;
use sys::frame_ring::{Event, FrameRing};

use super::super::forward::{BUFFER, Forwarder};
use super::super::{Bridge, Result};
use crate::Error;
use crate::threads::Threads;

/// Buffers of a ring; more than a few would only be cold when they are used again.
const BUFFERS: u16 = 16;

/// A ring for each pair of queues, from left and right, and for the end.
///
/// # Errors
/// Why this engine cannot run.
pub(super) fn open(bridge: &Bridge, threads: &Threads) -> sys::Result<Vec<FrameRing>> {
    let (Some(left), Some(right)) = (bridge.left.tap(), bridge.right.tap()) else {
        // A guest tells of its frames by events, and has them in its memory.
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

/// Starts a thread with a pair's ring.
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
                Event::Frame(from, bytes) => forwarders[from].frame(bytes)?,
                // Only the end is polled.
                Event::Readable(_) => return Ok(()),
                Event::Failed(from, errno) => {
                    let device = forwarders[from].source();
                    return Err(match errno {
                        Errno::EBADFD => Error::Vanished(device.name().to_owned()),
                        other => sys::Error::new("read", device.name(), other).into(),
                    });
                }
            }
        }
    }
}
