//! Requests of one client, from its connection to its end.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sys::descriptors::PeerEvent;

use super::SIZE_MAX;
use super::device::Device;
use super::features;
use super::memory::{Memory, MemoryError};
use super::message::{Header, MessageError, RingEvent, RingValue, VhostRequest};
use super::ring::RingLocation;

/// Why a client is disconnected.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A message is invalid.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A memory table is invalid.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Features were accepted that were not offered.
    #[error("{what} {got:#x}, expected a subset of {offered:#x}")]
    Features {
        /// Kind of the features.
        what: &'static str,
        /// Features that the client accepted.
        got: u64,
        offered: u64,
    },
    /// The ring does not exist.
    #[error("ring {ring}, expected 0 to {last}")]
    Ring {
        /// The requested number.
        ring: u32,
        /// The highest number.
        last: usize,
    },
    /// A number is out of range.
    #[error("ring {ring}: {what} {got}, expected {wanted}")]
    Number {
        ring: u32,
        /// Meaning of the number.
        what: &'static str,
        /// The number received.
        got: u32,
        /// The valid range.
        wanted: &'static str,
    },
    /// A descriptor is missing, unexpected, or not an eventfd.
    #[error("{request}: expected {wanted}, got {got}")]
    Descriptor {
        request: &'static str,
        /// The expected descriptors.
        wanted: &'static str,
        /// The received descriptors.
        got: String,
    },
    /// A ring was started before memory was set.
    #[error("ring {0} was started before the guest's memory was set")]
    NoMemory(u32),
}

/// Settings of a ring from the client.
#[derive(Debug, Clone, Copy, Default)]
struct Setup {
    size: u16,
    base: u16,
    /// Addresses of descriptors, available and used ring, in the client's address space.
    addresses: Option<[u64; 3]>,
}

/// A client's session. Dropping it discards all its state in the device.
#[derive(Debug)]
pub(super) struct Session {
    device: Arc<Device>,
    protocol: u64,
    memory: Option<Arc<Memory>>,
    rings: Vec<Setup>,
}

impl Session {
    pub(super) fn new(device: Arc<Device>) -> Session {
        device.connect();
        let rings = vec![Setup::default(); 2 * device.queues()];
        Session { device, protocol: 0, memory: None, rings }
    }

    /// Executes a message; returns the bytes of the answer, if there is one.
    ///
    /// # Errors
    /// [`SessionError`]: the client has to be disconnected.
    pub(super) fn message(
        &mut self,
        header: &Header,
        payload: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Vec<u8>>, SessionError> {
        let request = VhostRequest::parse(header, payload)?;
        let answer = self.request(request, descriptors)?;
        let acknowledged = header.needs_reply && self.protocol & features::REPLY_ACK != 0;
        let answer = answer.or(acknowledged.then(|| 0u64.to_ne_bytes()));
        Ok(answer.map(|payload| header.answer(&payload)))
    }

    fn request(
        &mut self,
        request: VhostRequest,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Option<[u8; 8]>, SessionError> {
        let number = |number: u64| Ok(Some(number.to_ne_bytes()));
        match request {
            VhostRequest::GetFeatures => return number(self.device.offered()),
            VhostRequest::GetProtocolFeatures => return number(features::PROTOCOL),
            VhostRequest::GetQueueNum => return number(self.device.queues() as u64),
            VhostRequest::SetFeatures(got) => {
                let offered = self.device.offered();
                among("features", got, offered)?;
                self.device.set_features(got);
            }
            VhostRequest::SetProtocolFeatures(got) => {
                among("protocol features", got, features::PROTOCOL)?;
                self.protocol = got;
            }
            // There is only one client, so ownership needs no state.
            VhostRequest::SetOwner | VhostRequest::ResetOwner => {}
            VhostRequest::SetMemTable(table) => {
                let memory = Memory::map(&table, std::mem::take(&mut descriptors))?;
                self.set_memory(Arc::new(memory));
            }
            VhostRequest::SetVringNum(RingValue { ring, value }) => {
                let (index, got) = (self.ring(ring)?, value);
                let size = u16::try_from(got).ok().filter(|size| (1..=SIZE_MAX).contains(size));
                let wanted = "1 to 32768";
                let wrong = SessionError::Number { ring, what: "entries", got, wanted };
                self.rings[index].size = size.ok_or(wrong)?;
            }
            VhostRequest::SetVringBase(RingValue { ring, value }) => {
                let (index, got) = (self.ring(ring)?, value);
                let wanted = "0 to 65535";
                let wrong = SessionError::Number { ring, what: "next entry", got, wanted };
                // Indexes of a split ring have 16 bits.
                self.rings[index].base = u16::try_from(got).map_err(|_| wrong)?;
            }
            VhostRequest::SetVringAddr { ring, descriptors, used, available } => {
                let index = self.ring(ring)?;
                self.rings[index].addresses = Some([descriptors, available, used]);
                if let Some(memory) = &self.memory {
                    // For a ring in use, this usually sets the same place again.
                    self.device.replace(index, memory, self.place(index, memory));
                }
            }
            VhostRequest::GetVringBase(ring) => {
                let index = self.ring(ring)?;
                if let Some(base) = self.device.stop(index) {
                    self.rings[index].base = base;
                }
                let state = u64::from(ring) | u64::from(self.rings[index].base) << 32;
                // Two words of 32 bits. On little-endian machines the first one is the lower half.
                return number(if cfg!(target_endian = "little") {
                    state
                } else {
                    state.rotate_left(32)
                });
            }
            VhostRequest::SetVringKick(event) => {
                let index = self.ring(event.ring)?;
                let kick = one("SET_VRING_KICK", event, &mut descriptors)?;
                let wanted = "an eventfd, because polling is not supported";
                let none = || SessionError::Descriptor {
                    request: "SET_VRING_KICK",
                    wanted,
                    got: "none".to_owned(),
                };
                let kick = kick.ok_or_else(none)?;
                let memory = self.memory.clone().ok_or(SessionError::NoMemory(event.ring))?;
                let place = self.place(index, &memory);
                self.device.start(index, memory, place, self.rings[index].base, kick);
            }
            VhostRequest::SetVringCall(event) => {
                let index = self.ring(event.ring)?;
                let call = one("SET_VRING_CALL", event, &mut descriptors)?;
                self.device.set_call(index, call);
            }
            VhostRequest::SetVringErr(event) => {
                self.ring(event.ring)?;
                // Errors are logged, and not sent to the client.
                one("SET_VRING_ERR", event, &mut descriptors)?;
            }
            VhostRequest::SetVringEnable(RingValue { ring, value }) => {
                let (index, got) = (self.ring(ring)?, value);
                // The protocol defines 0 and 1; another value may mean something in a later
                // version.
                if got > 1 {
                    let wanted = "0 or 1";
                    return Err(SessionError::Number { ring, what: "enable", got, wanted });
                }
                self.device.enable(index, got == 1);
            }
        }
        match descriptors.len() {
            0 => Ok(None),
            more => Err(SessionError::Descriptor {
                request: "message",
                wanted: "no descriptors",
                got: more.to_string(),
            }),
        }
    }

    fn ring(&self, ring: u32) -> Result<usize, SessionError> {
        let index = usize::try_from(ring).ok().filter(|index| *index < self.rings.len());
        index.ok_or(SessionError::Ring { ring, last: self.rings.len() - 1 })
    }

    /// Returns the location of a ring in guest addresses; `None` while it is unknown, or outside
    /// memory.
    fn place(&self, ring: usize, memory: &Memory) -> Option<RingLocation> {
        let Setup { size, addresses, .. } = self.rings[ring];
        let [descriptors, available, used] = addresses?;
        Some(RingLocation {
            size,
            descriptors: memory.guest_address(descriptors)?,
            available: memory.guest_address(available)?,
            used: memory.guest_address(used)?,
        })
    }

    /// Sets newly mapped memory. Rings in use continue in it.
    pub(super) fn set_memory(&mut self, memory: Arc<Memory>) {
        for ring in 0..self.rings.len() {
            self.device.replace(ring, &memory, self.place(ring, &memory));
        }
        self.device.set_memory(Some(memory.clone()));
        self.memory = Some(memory);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.device.disconnect();
    }
}

fn among(what: &'static str, got: u64, offered: u64) -> Result<(), SessionError> {
    // Bits that were not offered would enable behaviour that is not implemented.
    match got & !offered {
        0 => Ok(()),
        _ => Err(SessionError::Features { what, got, offered }),
    }
}

/// Returns the event that comes with a message, if there should be one.
fn one(
    request: &'static str,
    event: RingEvent,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Option<PeerEvent>, SessionError> {
    let wrong = |got: String| SessionError::Descriptor {
        request,
        wanted: if event.has_descriptor { "one eventfd" } else { "no descriptor" },
        got,
    };
    let count = descriptors.len();
    // A descriptor too many would stay open, and one too few would leave the ring without an event.
    if count != usize::from(event.has_descriptor) {
        return Err(wrong(count.to_string()));
    }
    let descriptor = descriptors.pop().map(PeerEvent::new).transpose();
    descriptor.map_err(|_| wrong("something else".to_owned()))
}
