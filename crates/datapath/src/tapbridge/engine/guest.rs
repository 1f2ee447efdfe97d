//! A thread per pair of queues, at least one of which belongs to a guest.
//!
//! While there is work, no notifications are exchanged: the thread polls the rings, and notifies a
//! guest once per round. Before it sleeps, it enables the guests' notifications and checks the
//! rings once more.

use std::os::fd::AsFd;
use std::time::Duration;

use super::super::Result;
use super::super::forward::{Forwarder, PATIENCE_MS, Pumped};
use crate::threads::{Sources, Threads};

/// Maximum number of frames of one direction before the other gets its turn and the guests are
/// notified.
const BUDGET: usize = 64;

/// Starts a thread for a pair of queues.
pub(super) fn spawn(
    threads: &mut Threads,
    index: usize,
    forwarders: [Forwarder; 2],
    busy_poll: Duration,
) -> Result<()> {
    let queues = forwarders.each_ref().map(Forwarder::source);
    let taps = queues.map(|queue| queue.tap().map(|tap| (tap.as_fd(), tap.name())));
    let sources = threads.places(&taps, busy_poll)?;
    for (source, queue) in queues.iter().enumerate() {
        if let Some(guest) = queue.guest() {
            guest.watch(sources.epoll().clone(), source as u64)?;
        }
    }
    Ok(threads.spawn(&format!("tapbridge {index}"), move || run(sources, forwarders))?)
}

fn run(mut sources: Sources, mut forwarders: [Forwarder; 2]) -> Result<()> {
    let mut ready = [true; 2];
    while sources.go_on() {
        let mut pumped = [Pumped::Dry; 2];
        for (at, forwarder) in forwarders.iter_mut().enumerate() {
            // Checking a ring is free, but reading an empty TAP costs a system call.
            if forwarder.source().tap().is_none() || ready[at] || forwarder.holds() {
                pumped[at] = forwarder.pump(BUDGET)?;
            }
        }
        for forwarder in &forwarders {
            if let Some(guest) = forwarder.source().guest() {
                guest.flush();
            }
        }
        ready = pumped.map(|pumped| pumped == Pumped::More);
        if ready != [false; 2] {
            // The other one may have frames by now.
            ready = [true; 2];
            continue;
        }
        let mut meanwhile = false;
        for (at, forwarder) in forwarders.iter().enumerate() {
            if let Some(guest) = forwarder.source().guest() {
                meanwhile |= guest.before_sleep(forwarders[1 - at].holds());
            }
        }
        let blocked = pumped.contains(&Pumped::Blocked);
        let go_on = match (meanwhile, blocked) {
            (true, _) => true,
            (false, true) => sources.wait_for(&mut ready, PATIENCE_MS)?,
            (false, false) => sources.wait(&mut ready)?,
        };
        if !go_on {
            return Ok(());
        }
        for forwarder in &forwarders {
            if let Some(guest) = forwarder.source().guest() {
                guest.after_sleep();
            }
        }
    }
    Ok(())
}
