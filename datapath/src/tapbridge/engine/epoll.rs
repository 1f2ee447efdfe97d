//! A thread per queue pair that sleeps in `epoll_wait`.
//!
//! A queue that has something is read until it is empty, so that under load a
//! frame costs one read and one write and the sleep is paid once per burst; but
//! no longer than [`BUDGET`] frames while the opposite one waits.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::super::forward::{Forwarder, Pumped};
use super::super::{Bridge, Result, Side};
use crate::counters::Tally;
use crate::threads::{Sources, Threads};

/// Frames of one direction before the other gets its turn. So many super-packets
/// are about a socket's receive buffer: more in a row would only fill queues.
const BUDGET: usize = 64;

/// `tallies` are by queue, left to right first.
pub(super) fn start(bridge: Bridge, tallies: &[[Arc<Tally>; 2]]) -> Result<Threads> {
    let (left_offload, right_offload) = (bridge.left.offload(), bridge.right.offload());
    let netmap = bridge.netmap;
    let pairs = bridge.left.into_queues().into_iter().zip(bridge.right.into_queues());
    let mut threads = Threads::new()?;
    for (index, ((left, right), tallies)) in pairs.zip(tallies).enumerate() {
        let (left, right) = (Arc::new(left), Arc::new(right));
        let [from_left, from_right] = tallies.clone();
        let sources =
            threads.sources(&[(left.as_fd(), left.name()), (right.as_fd(), right.name())])?;
        let forwarders = [
            Forwarder::new(
                left.clone(),
                left_offload,
                right.clone(),
                right_offload,
                Side::Left,
                netmap,
                from_left,
            ),
            Forwarder::new(
                right,
                right_offload,
                left,
                left_offload,
                Side::Right,
                netmap,
                from_right,
            ),
        ];
        // Those that run already end when `threads` is dropped.
        threads.spawn(&format!("tapbridge {index}"), move || run(sources, forwarders))?;
    }
    Ok(threads)
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
