//! One queue of a port: of a TAP, or a queue pair of a guest.

use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use sys::tap::{Offload, Tap};

use crate::vhost_user::GuestQueue;

/// A source and destination of frames.
#[derive(Debug, Clone)]
pub(super) enum Queue {
    Tap(Arc<Tap>, Offload),
    Guest(GuestQueue),
}

impl Queue {
    pub(super) fn name(&self) -> &str {
        match self {
            Queue::Tap(tap, _) => tap.name(),
            Queue::Guest(guest) => guest.name(),
        }
    }

    /// Returns the offloads that it accepts. A guest may change them when it restarts.
    pub(super) fn takes(&self) -> Offload {
        match self {
            Queue::Tap(_, offload) => *offload,
            Queue::Guest(guest) => guest.takes(),
        }
    }

    pub(super) fn guest(&self) -> Option<&GuestQueue> {
        match self {
            Queue::Tap(..) => None,
            Queue::Guest(guest) => Some(guest),
        }
    }

    pub(super) fn tap(&self) -> Option<&Tap> {
        match self {
            Queue::Tap(tap, _) => Some(tap),
            Queue::Guest(_) => None,
        }
    }

    /// Reads one frame with its header.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Queue::Tap(tap, _) => tap.read(buffer),
            Queue::Guest(guest) => Ok(guest.read(buffer)?),
        }
    }

    /// Writes one frame with its header.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Queue::Tap(tap, _) => tap.write(bytes),
            Queue::Guest(guest) => Ok(guest.write(bytes).map(|()| bytes.len())?),
        }
    }

    /// Returns the hardware address of a TAP; that of a guest is unknown.
    pub(super) fn hardware_address(&self) -> sys::Result<[u8; 6]> {
        match self {
            Queue::Tap(tap, _) => tap.hardware_address(),
            Queue::Guest(guest) => {
                Err(sys::Error::new("hardware address", guest.name(), Errno::ENOTSUP))
            }
        }
    }
}
