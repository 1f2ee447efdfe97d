//! Room for fragments before a load.
//!
//! A flood of datagrams longer than the MTU leaves a packet of which a fragment is
//! missing in the receiver's memory for each that was lost. They stay for
//! `net.ipv4.ipfrag_time` (30 s), and while they fill it no fragmented datagram arrives
//! at all: that would be taken for the next load's path. Nothing but time empties it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netstate::reassembly::Reassembly;
use sys::netns::NetNs;

use super::control::TICK;
use super::{Between, Ends, EngineError, Load};

/// Longest datagram that no path cuts: what is left of IPv6's least MTU (RFC 8200).
const NEVER_CUT: u32 = 1280 - 48;
/// Share of the memory that may be in use before a load: a datagram of 64 KiB takes
/// about a thirtieth of the usual 4 MiB.
const ROOM: f64 = 0.5;
/// On top of the time after which the kernel gives up the last fragment.
const GRACE: Duration = Duration::from_secs(5);

/// Said where a load had to wait.
const WAITED: &str = "before some samples the receiver's memory for fragments was full \
    of incomplete datagrams of the load before; they were begun when it had emptied \
    (net.ipv4.ipfrag_time)";
/// Said of a flood whose fragments were not put together.
const FULL: &str = "after some samples the receiver's memory for fragments was full \
    (net.ipv4.ipfrag_high_thresh): datagrams of which a fragment was lost keep it, and then \
    no other one can be put together";

/// Said of a flood that the path carried nothing of.
pub const NOTHING_ARRIVED: &str = "of some floods nothing arrived: a datagram of the same size \
    was answered before, a small one after them";

/// Whether a load's datagrams may have to be put together.
fn concerns(load: &Load) -> bool {
    let datagrams = !load.workload.is_tcp();
    datagrams && load.message_bytes > NEVER_CUT
}

/// What is read in a namespace; `None` where the kernel does not say.
fn read(netns: &NetNs) -> Option<Reassembly> {
    netns.run(Reassembly::read).ok()?.ok()
}

/// Waits until both ends have room for fragments; whether they had none. Where they
/// still have none after the time that the kernel sets, the load is tried anyway.
pub(super) fn await_room(load: &Load, ends: &Ends, stop: &AtomicBool) -> Result<bool, EngineError> {
    if !concerns(load) {
        return Ok(false);
    }
    let begun = Instant::now();
    let mut waited = false;
    for netns in [ends.server, ends.client] {
        while let Some(memory) = read(netns).filter(|memory| memory.share() > ROOM) {
            if stop.load(Ordering::Relaxed) {
                return Err(EngineError::Stopped);
            }
            if begun.elapsed() > Duration::from_secs(memory.seconds) + GRACE {
                return Ok(waited);
            }
            waited = true;
            std::thread::sleep(TICK);
        }
    }
    Ok(waited)
}

/// Whether the receiver of a load has no room for fragments; false where it is on
/// another machine.
pub(super) fn is_full(load: &Load, between: &Between<'_>) -> bool {
    match between {
        Between::Here(ends) if concerns(load) => {
            read(ends.server).is_some_and(|memory| memory.share() > ROOM)
        }
        _ => false,
    }
}

/// What was seen of the receiver's room for fragments.
pub(super) struct Room {
    /// The load had to wait for it.
    pub waited: bool,
    /// There was none after the load.
    pub full: bool,
}

impl Room {
    /// What a reader must know.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let said = [(self.waited, WAITED), (self.full, FULL)];
        said.into_iter().filter(|(applies, _)| *applies).map(|(_, note)| note.to_owned())
    }

    /// Why a path did not answer, where this is known to be the reason.
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
