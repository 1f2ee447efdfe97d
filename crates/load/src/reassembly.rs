//! Waits for room in the receiver's fragment reassembly memory before a load.
//!
//! A flood of datagrams above the MTU leaves incomplete packets in the receiver's memory, one for
//! each datagram that lost a fragment. They stay for `net.ipv4.ipfrag_time` (30 s). While they
//! fill the memory, no fragmented datagram arrives, which would be blamed on the next load's
//! path. Only time frees the memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netstate::reassembly::Reassembly;
use sys::netns::NetNs;

use super::control::TICK;
use super::{Between, Ends, EngineError, Load};

/// Largest datagram payload that is never fragmented: IPv6's minimum MTU (RFC 8200) minus headers.
const NEVER_CUT: u32 = 1280 - 48;
/// Maximum share of the memory in use before a load. A datagram of 64 KiB takes about a
/// thirtieth of the usual 4 MiB.
const ROOM: f64 = 0.5;
/// Added to the time after which the kernel drops the last fragment.
const GRACE: Duration = Duration::from_secs(5);

/// Note for loads that had to wait.
const WAITED: &str = "before some samples the receiver's memory for fragments was full of \
    incomplete datagrams of the previous load; these samples waited until it was free \
    (net.ipv4.ipfrag_time)";
/// Note for a flood whose fragments were not reassembled.
const FULL: &str = "after some samples the receiver's memory for fragments was full \
    (net.ipv4.ipfrag_high_thresh): datagrams that lost a fragment occupy it, and no other \
    datagram can be reassembled";

/// Note for a flood of which nothing arrived.
pub const NOTHING_ARRIVED: &str = "nothing arrived of some floods, although a datagram of the \
    same size was answered before, and a small one after them";

/// Returns whether a load's datagrams may need reassembly.
fn concerns(load: &Load) -> bool {
    let datagrams = !load.workload.is_tcp();
    datagrams && load.message_bytes > NEVER_CUT
}

/// Reads the memory in a namespace; `None` if the kernel does not report it.
fn read(netns: &NetNs) -> Option<Reassembly> {
    netns.run(Reassembly::read).ok()?.ok()
}

/// Waits until both ends have room for fragments, and returns whether it had to wait. If there is
/// no room after the kernel's time limit, the load is tried anyway.
pub(super) fn await_room(load: &Load, ends: &Ends, stop: &AtomicBool) -> Result<bool, EngineError> {
    // The load's packets never need reassembly.
    if !concerns(load) {
        return Ok(false);
    }
    let begun = Instant::now();
    let mut waited = false;
    for netns in [ends.server, ends.client] {
        while let Some(memory) = read(netns).filter(|memory| memory.share() > ROOM) {
            // Ctrl-C must not wait for ipfrag_time.
            if stop.load(Ordering::Relaxed) {
                return Err(EngineError::Stopped);
            }
            // Other traffic keeps the memory full: try the load anyway.
            if begun.elapsed() > Duration::from_secs(memory.seconds) + GRACE {
                return Ok(waited);
            }
            waited = true;
            std::thread::sleep(TICK);
        }
    }
    Ok(waited)
}

/// Returns whether the receiver has no room for fragments; false if it is on another machine.
pub(super) fn is_full(load: &Load, between: &Between<'_>) -> bool {
    match between {
        Between::Here(ends) if concerns(load) => {
            read(ends.server).is_some_and(|memory| memory.share() > ROOM)
        }
        // Another machine's memory cannot be read.
        _ => false,
    }
}

/// State of the receiver's reassembly memory.
pub(super) struct Room {
    /// The load had to wait for room.
    pub waited: bool,
    /// There was no room after the load.
    pub full: bool,
}

impl Room {
    /// Returns the notes for the results.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let said = [(self.waited, WAITED), (self.full, FULL)];
        said.into_iter().filter(|(applies, _)| *applies).map(|(_, note)| note.to_owned())
    }

    /// Adds the reason to a missing answer, if a full memory explains it.
    pub fn explain(&self, error: EngineError) -> EngineError {
        match error {
            EngineError::NoAnswer { target, stage, waited, detail } if self.full => {
                let detail = format!("{detail}; the receiver's memory for fragments is full");
                EngineError::NoAnswer { target, stage, waited, detail }
            }
            error => error,
        }
    }
}
