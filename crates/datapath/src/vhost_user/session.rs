//! One client's requests, from its connection to its end.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sys::descriptors::PeerEvent;

use super::SIZE_MAX;
use super::device::Device;
use super::features;
use super::memory::{Memory, MemoryError};
use super::message::{Event, Header, MessageError, Request, State};
use super::ring::Place;

/// Why a client is sent away.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Bytes that are no message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A table that cannot be.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Features that were not offered.
    #[error("{what} {got:#x}: expected some of {offered:#x}")]
    Features {
        /// Of what.
        what: &'static str,
        /// What it took.
        got: u64,
        /// What there are.
        offered: u64,
    },
    /// A ring that there is not.
    #[error("ring {ring}: expected 0 to {last}")]
    Ring {
        /// The number that came.
        ring: u32,
        /// The last that there is.
        last: usize,
    },
    /// A number that cannot be.
    #[error("ring {ring}: {what} {got}, expected {wanted}")]
    Number {
        /// Number of the ring.
        ring: u32,
        /// What it is of.
        what: &'static str,
        /// The number that came.
        got: u32,
        /// What it can be.
        wanted: &'static str,
    },
    /// A descriptor that is missing, too much, or no eventfd.
    #[error("{request}: expected {wanted}, got {got}")]
    Descriptor {
        /// The request.
        request: &'static str,
        /// What was to come with it.
        wanted: &'static str,
        /// What came.
        got: String,
    },
    /// A ring was started without memory.
    #[error("ring {0} is started before the guest's memory is known")]
    NoMemory(u32),
}

/// What the client has said of a ring.
#[derive(Debug, Clone, Copy, Default)]
struct Setup {
    size: u16,
    base: u16,
    /// Descriptors, available, used: in the client's addresses.
    addresses: Option<[u64; 3]>,
}

/// A client's session. The device forgets all of it when this is dropped.
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

    /// Does what a message asks for; the answer's bytes, if there is one.
    ///
    /// # Errors
    /// [`SessionError`]: the client is to be sent away.
    pub(super) fn message(
        &mut self,
        header: &Header,
        payload: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Vec<u8>>, SessionError> {
        let request = Request::parse(header, payload)?;
        let answer = self.request(request, descriptors)?;
        let acknowledged = header.needs_reply && self.protocol & features::REPLY_ACK != 0;
        let answer = answer.or(acknowledged.then(|| 0u64.to_ne_bytes()));
        Ok(answer.map(|payload| header.answer(&payload)))
    }

    fn request(
        &mut self,
        request: Request,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Option<[u8; 8]>, SessionError> {
        let number = |number: u64| Ok(Some(number.to_ne_bytes()));
        match request {
            Request::GetFeatures => return number(self.device.offered()),
            Request::GetProtocolFeatures => return number(features::PROTOCOL),
            Request::GetQueueNum => return number(self.device.queues() as u64),
            Request::SetFeatures(got) => {
                let offered = self.device.offered();
                among("features", got, offered)?;
                self.device.set_features(got);
            }
            Request::SetProtocolFeatures(got) => {
                among("protocol features", got, features::PROTOCOL)?;
                self.protocol = got;
            }
            // There is but one client, and it is whoever is connected.
            Request::SetOwner | Request::ResetOwner => {}
            Request::SetMemTable(table) => {
                let memory = Memory::map(&table, std::mem::take(&mut descriptors))?;
                self.set_memory(Arc::new(memory));
            }
            Request::SetVringNum(State { ring, value }) => {
                let (index, got) = (self.ring(ring)?, value);
                let size = u16::try_from(got).ok().filter(|size| (1..=SIZE_MAX).contains(size));
                let wanted = "1 to 32768";
                let wrong = SessionError::Number { ring, what: "entries", got, wanted };
                self.rings[index].size = size.ok_or(wrong)?;
            }
            Request::SetVringBase(State { ring, value }) => {
                let (index, got) = (self.ring(ring)?, value);
                let wanted = "0 to 65535";
                let wrong = SessionError::Number { ring, what: "next entry", got, wanted };
                self.rings[index].base = u16::try_from(got).map_err(|_| wrong)?;
            }
            Request::SetVringAddr { ring, descriptors, used, available } => {
                let index = self.ring(ring)?;
                self.rings[index].addresses = Some([descriptors, available, used]);
                if let Some(memory) = &self.memory {
                    // For a ring in use it is most often what it was.
                    self.device.replace(index, memory, self.place(index, memory));
                }
            }
            Request::GetVringBase(ring) => {
                let index = self.ring(ring)?;
                if let Some(base) = self.device.stop(index) {
                    self.rings[index].base = base;
                }
                let state = u64::from(ring) | u64::from(self.rings[index].base) << 32;
                // Two words of 32 bits: the first is the lower half where bytes are so.
                return number(if cfg!(target_endian = "little") {
                    state
                } else {
                    state.rotate_left(32)
                });
            }
            Request::SetVringKick(event) => {
                let index = self.ring(event.ring)?;
                let kick = one("SET_VRING_KICK", event, &mut descriptors)?;
                let wanted = "an eventfd: there is no polling";
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
            Request::SetVringCall(event) => {
                let index = self.ring(event.ring)?;
                let call = one("SET_VRING_CALL", event, &mut descriptors)?;
                self.device.set_call(index, call);
            }
            Request::SetVringErr(event) => {
                self.ring(event.ring)?;
                // What is wrong is told to whoever runs the program.
                one("SET_VRING_ERR", event, &mut descriptors)?;
            }
            Request::SetVringEnable(State { ring, value }) => {
                let (index, got) = (self.ring(ring)?, value);
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
                request: "a message",
                wanted: "no descriptors",
                got: more.to_string(),
            }),
        }
    }

    fn ring(&self, ring: u32) -> Result<usize, SessionError> {
        let index = usize::try_from(ring).ok().filter(|index| *index < self.rings.len());
        index.ok_or(SessionError::Ring { ring, last: self.rings.len() - 1 })
    }

    /// Where a ring is for us; `None` while it is unknown, or outside of memory.
    fn place(&self, ring: usize, memory: &Memory) -> Option<Place> {
        let Setup { size, addresses, .. } = self.rings[ring];
        let [descriptors, available, used] = addresses?;
        Some(Place {
            size,
            descriptors: memory.guest_address(descriptors)?,
            available: memory.guest_address(available)?,
            used: memory.guest_address(used)?,
        })
    }

    /// Takes memory that is mapped anew: rings in use go on in it.
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
    match got & !offered {
        0 => Ok(()),
        _ => Err(SessionError::Features { what, got, offered }),
    }
}

/// The event that comes with a message, if one is to.
fn one(
    request: &'static str,
    event: Event,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Option<PeerEvent>, SessionError> {
    let wrong = |got: String| SessionError::Descriptor {
        request,
        wanted: if event.has_descriptor { "one eventfd" } else { "no descriptor" },
        got,
    };
    let count = descriptors.len();
    if count != usize::from(event.has_descriptor) {
        return Err(wrong(count.to_string()));
    }
    let descriptor = descriptors.pop().map(PeerEvent::new).transpose();
    descriptor.map_err(|_| wrong("something else".to_owned()))
}
