//! State of one network in one thread.

use std::io::{self, IoSlice};
use std::sync::Arc;

use packet::ethernet::MacAddr;
use sys::tap::Tap;

use super::guest_writer::GuestWriter;
use super::network::{Network, Policy};
use crate::counters::Tally;
use crate::vnet_layout::HEADER;

/// Destination of frames for the tenants.
#[derive(Debug)]
pub(super) enum Writer {
    Tap(Tap),
    /// A pair of a guest's queues.
    Guest(GuestWriter),
    /// A buffer, for tests and fuzzing.
    #[cfg(any(test, feature = "fuzz"))]
    Nowhere(std::cell::RefCell<Vec<([u8; HEADER], Vec<u8>)>>),
}

impl Writer {
    pub(super) fn tap(&self) -> Option<&Tap> {
        match self {
            Writer::Tap(tap) => Some(tap),
            Writer::Guest(_) => None,
            #[cfg(any(test, feature = "fuzz"))]
            Writer::Nowhere(_) => None,
        }
    }

    pub(super) fn guest(&self) -> Option<&GuestWriter> {
        match self {
            Writer::Guest(guest) => Some(guest),
            _ => None,
        }
    }

    pub(super) fn write(&self, header: &[u8; HEADER], frame: &[u8]) -> io::Result<()> {
        match self {
            Writer::Tap(tap) => {
                tap.write_vectored(&[IoSlice::new(header), IoSlice::new(frame)]).map(drop)
            }
            Writer::Guest(guest) => guest.write(header, frame),
            #[cfg(any(test, feature = "fuzz"))]
            Writer::Nowhere(written) => {
                written.borrow_mut().push((*header, frame.to_vec()));
                Ok(())
            }
        }
    }
}

/// A network, with the thread's queue of its TAP and the thread's counters.
#[derive(Debug)]
pub(super) struct ThreadNetwork {
    pub(super) network: Arc<Network>,
    /// Configuration as of `generation`.
    pub(super) policy: Arc<Policy>,
    pub(super) generation: u64,
    pub(super) tap: Writer,
    /// The TAP's own hardware address; zero for a guest, whose address is not known here.
    pub(super) own: MacAddr,
    /// From the TAP to the wire.
    pub(super) out: Arc<Tally>,
    /// From the wire to the TAP.
    pub(super) back: Arc<Tally>,
}

impl ThreadNetwork {
    /// Loads the new policy after a reload, which changes the generation.
    pub(super) fn refresh(&mut self) {
        let generation = self.network.generation();
        if generation != self.generation {
            self.generation = generation;
            self.policy = self.network.policy();
        }
    }
}
