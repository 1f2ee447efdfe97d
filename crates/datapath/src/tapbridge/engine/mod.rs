//! Engines, which move frames from one port to the other.

mod bpf;
mod epoll;
mod guest;
mod uring;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::forward::Forwarder;
use super::netmap::Netmap;
use super::queue::Queue;
use super::{Bridge, Result, Side};
use crate::bridge_engine::{Engine, EngineChoice, Unavailable};
use crate::counters::{Counters, Tally};
use crate::threads::Threads;
use bpf::Redirect;
use sys::frame_ring::FrameRing;

/// A running bridge. Dropping it ends it and removes its devices.
#[derive(Debug)]
pub struct Running {
    engine: Engine,
    redirect: Option<Redirect>,
    /// Counters per queue; left to right first.
    tallies: Vec<[Arc<Tally>; 2]>,
    threads: Threads,
}

/// A bridge whose engine is set up. It needs no capabilities from here on.
#[derive(Debug)]
pub struct Ready {
    bridge: Bridge,
    engine: Engine,
    redirect: Option<Redirect>,
    rings: Option<Vec<FrameRing>>,
    threads: Threads,
}

impl Bridge {
    /// Chooses and sets up the engine.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable).
    pub fn engine(self, choice: EngineChoice) -> Result<Ready> {
        let threads = Threads::new()?;
        let rings = match choice {
            EngineChoice::Only(engine @ Engine::Uring) if !self.busy_poll.is_zero() => {
                let reason = "busy polling is not available, because the ring sleeps in the \
                    kernel"
                    .to_owned();
                // Polling before sleeping needs a wait in user space.
                return Err(Unavailable { engine, reason }.into());
            }
            EngineChoice::Only(engine @ Engine::Uring) => {
                let rings = uring::open(&self, &threads);
                Some(rings.map_err(|e| Unavailable { engine, reason: e.to_string() })?)
            }
            // Other engines have no rings.
            _ => None,
        };
        let redirect = match choice {
            EngineChoice::Only(Engine::Epoll | Engine::Uring) => None,
            EngineChoice::Only(engine @ Engine::Bpf) => {
                Some(Redirect::attach(&self).map_err(|reason| Unavailable { engine, reason })?)
            }
            // The user did not ask for this engine, so the reason does not matter.
            EngineChoice::Auto => Redirect::attach(&self).ok(),
        };
        let engine = match (&redirect, &rings) {
            (Some(_), _) => Engine::Bpf,
            (None, Some(_)) => Engine::Uring,
            (None, None) => Engine::Epoll,
        };
        Ok(Ready { bridge: self, engine, redirect, rings, threads })
    }
}

impl Ready {
    /// Starts the threads, with the capabilities and CPUs of the calling thread.
    ///
    /// # Errors
    /// If there are no more threads or descriptors.
    pub fn start(self) -> Result<Running> {
        let Ready { bridge, engine, redirect, rings, mut threads } = self;
        let tallies: Vec<_> = (0..bridge.left.queue_count()).map(|_| Default::default()).collect();
        let mut rings = rings.into_iter().flatten();
        let Bridge { left, right, netmap, busy_poll } = bridge;
        let (left, right) = (left.into_parts(), right.into_parts());
        let with_guest = left.1.is_some() || right.1.is_some();
        let pairs = [left.0, right.0];
        for (index, forwarders) in forwarders(pairs, netmap, &tallies).enumerate() {
            // If this fails, dropping `threads` ends the threads that were started.
            match rings.next() {
                Some(ring) => uring::spawn(&mut threads, index, ring, forwarders)?,
                None if with_guest => guest::spawn(&mut threads, index, forwarders, busy_poll)?,
                None => epoll::spawn(&mut threads, index, forwarders, busy_poll)?,
            }
        }
        // Accept clients only when the threads that move their frames exist.
        for port in [left.1, right.1].into_iter().flatten() {
            port.serve(&mut threads)?;
        }
        Ok(Running { engine, redirect, tallies, threads })
    }
}

/// Returns the two forwarders of each pair of queues; `tallies` has the same order.
fn forwarders(
    pairs: [Vec<Queue>; 2],
    netmap: Option<Netmap>,
    tallies: &[[Arc<Tally>; 2]],
) -> impl Iterator<Item = [Forwarder; 2]> {
    let [left, right] = pairs;
    left.into_iter().zip(right).zip(tallies).map(move |((left, right), [from_left, from_right])| {
        let (l, r) = (left.clone(), right.clone());
        [
            Forwarder::new(l, r, Side::Left, netmap, from_left.clone()),
            Forwarder::new(right, left, Side::Right, netmap, from_right.clone()),
        ]
    })
}

impl Running {
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Returns the counters of frames from that side, summed over all queues.
    pub fn counters(&self, from: Side) -> Counters {
        let mut counters = Counters::sum(self.tallies.iter().map(|queue| &*queue[from as usize]));
        if let Some(redirect) = &self.redirect {
            redirect.count(from, &mut counters);
        }
        counters
    }

    /// Returns a descriptor that becomes readable when the bridge has ended by itself.
    /// [`Running::stop`] returns the reason.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.threads.ended()
    }

    /// Ends the bridge and removes its devices. Returns the counters of frames from the left and
    /// from the right, and the error if it had ended by itself.
    pub fn stop(mut self) -> ([Counters; 2], Result<()>) {
        let outcome = self.threads.join();
        (Side::BOTH.map(|from| self.counters(from)), outcome)
    }
}
