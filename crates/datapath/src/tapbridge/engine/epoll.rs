//! A thread per queue pair that sleeps in `epoll_wait`.
//!
//! A ready queue is read until it is empty, so that under load a frame costs one read and one
//! write, and the sleep is paid once per burst. At most [`BUDGET`] frames are read in a row while
//! the opposite queue waits.

use std::os::fd::AsFd;
use std::time::Duration;

use super::super::Result;
use super::super::forward::{Forwarder, Pumped};
use crate::threads::{Sources, Threads};

/// Maximum number of frames of one direction before the other gets its turn. This many GSO packets
/// are about the size of a socket's receive buffer; more in a row would only fill queues.
const BUDGET: usize = 64;

/// Starts a thread for a pair of queues.
pub(super) fn spawn(
    threads: &mut Threads,
    index: usize,
    forwarders: [Forwarder; 2],
    busy_poll: Duration,
) -> Result<()> {
    let sources = forwarders.each_ref().map(Forwarder::source);
    let sources = sources.map(|queue| queue.tap().map(|tap| (tap.as_fd(), tap.name())));
    let sources = threads.places(&sources, busy_poll)?;
    Ok(threads.spawn(&format!("tapbridge {index}"), move || run(sources, forwarders))?)
}

fn run(mut sources: Sources, mut forwarders: [Forwarder; 2]) -> Result<()> {
    let mut ready = [false; 2];
    while sources.wait(&mut ready)? {
        while ready != [false; 2] {
            if !sources.go_on() {
                return Ok(());
            }
            for (forwarder, ready) in forwarders.iter_mut().zip(&mut ready) {
                if *ready {
                    *ready = forwarder.pump(BUDGET)? == Pumped::More;
                }
            }
        }
    }
    Ok(())
}
