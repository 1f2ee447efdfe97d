//! Messages of a vhost-user client, as bytes (`docs/interop/vhost-user.rst` of QEMU).

use super::memory::{REGIONS_MAX, Region};

/// Length of a message's header, bytes.
pub const HEADER: usize = 12;
/// Longest payload that is accepted: a memory table.
pub const PAYLOAD_MAX: usize = 8 + 32 * REGIONS_MAX;

/// Version 1, the only one.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub request: u32,
    /// Whether the client wants to know the result.
    pub needs_reply: bool,
    /// Length of the payload, bytes.
    pub size: usize,
}

/// Why bytes are not a valid message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Invalid flags.
    #[error("a message with flags {0:#x}, expected version 1 of vhost-user and no reply")]
    Flags(u32),
    /// The payload is longer than that of any request.
    #[error("a payload of {0} bytes, expected at most {PAYLOAD_MAX}")]
    Long(u32),
    /// The request was not offered.
    #[error("request {0}, which was not offered")]
    Unknown(u32),
    /// The length of the payload does not match the request.
    #[error("request {request} with {got} bytes, expected {wanted}")]
    Payload {
        request: u32,
        /// Expected length, bytes.
        wanted: usize,
        /// Actual length, bytes.
        got: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VhostRequest {
    /// Asks for the offered features.
    GetFeatures,
    /// Sets the features accepted by guest and client.
    SetFeatures(u64),
    /// The client claims the device for its session.
    SetOwner,
    /// The client releases the device (deprecated).
    ResetOwner,
    /// Sets the guest's memory; each region comes with a descriptor.
    SetMemTable(Vec<Region>),
    /// Sets the size of a ring.
    SetVringNum(RingValue),
    /// Sets the places of a ring, in addresses of the client.
    SetVringAddr {
        ring: u32,
        descriptors: u64,
        used: u64,
        available: u64,
    },
    /// Sets the entry at which a ring continues.
    SetVringBase(RingValue),
    /// Stops a ring, and asks for its next entry.
    GetVringBase(u32),
    /// Sets the event by which the guest announces new buffers.
    SetVringKick(RingEvent),
    /// Sets the event by which the guest is notified of used buffers.
    SetVringCall(RingEvent),
    /// Sets the event by which the client is notified of errors.
    SetVringErr(RingEvent),
    GetProtocolFeatures,
    /// Sets the features of the protocol that the client accepted.
    SetProtocolFeatures(u64),
    /// Asks for the number of queue pairs.
    GetQueueNum,
    /// Enables or disables a ring.
    SetVringEnable(RingValue),
}

/// A ring and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingValue {
    pub ring: u32,
    /// The number for the ring.
    pub value: u32,
}

/// A ring, and whether a descriptor comes with the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingEvent {
    pub ring: u32,
    /// False: the ring is to be polled without notifications.
    pub has_descriptor: bool,
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// If flags or length are invalid.
    pub fn parse(bytes: &[u8; HEADER]) -> Result<Header, MessageError> {
        let [request, flags, size] = words(bytes);
        // Replies go only to the client, and there is only one version.
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(MessageError::Flags(flags));
        }
        match usize::try_from(size) {
            Ok(bytes) if bytes <= PAYLOAD_MAX => {
                Ok(Header { request, needs_reply: flags & NEED_REPLY != 0, size: bytes })
            }
            _ => Err(MessageError::Long(size)),
        }
    }

    pub fn answer(&self, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        for word in [self.request, VERSION | REPLY, payload.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(payload);
        bytes
    }
}

impl VhostRequest {
    /// Parses the payload of a message.
    ///
    /// # Errors
    /// If the request is unknown, or the payload does not match it.
    pub fn parse(header: &Header, payload: &[u8]) -> Result<VhostRequest, MessageError> {
        let request = header.request;
        let of = |wanted: usize| match payload.len() {
            got if got == wanted => Ok(()),
            got => Err(MessageError::Payload { request, wanted, got }),
        };
        let number = || of(8).map(|()| word64(payload, 0));
        let state =
            || of(8).map(|()| RingValue { ring: word32(payload, 0), value: word32(payload, 4) });
        let event = || {
            let value = number()?;
            Ok(RingEvent { ring: value as u8 as u32, has_descriptor: value & 0x100 == 0 })
        };
        let none = |request| of(0).map(|()| request);
        match request {
            1 => none(VhostRequest::GetFeatures),
            2 => number().map(VhostRequest::SetFeatures),
            3 => none(VhostRequest::SetOwner),
            4 => none(VhostRequest::ResetOwner),
            5 => {
                let regions = if payload.len() < 8 { 0 } else { word32(payload, 0) as usize };
                let wanted = 8 + 32 * regions.min(REGIONS_MAX);
                // Some clients always send the space of all regions.
                if payload.len() < wanted || regions > REGIONS_MAX {
                    let (wanted, got) = (8 + 32 * regions, payload.len());
                    return Err(MessageError::Payload { request, wanted, got });
                }
                let table = payload[8..wanted].chunks_exact(32).map(|region| Region {
                    guest: word64(region, 0),
                    size: word64(region, 8),
                    user: word64(region, 16),
                    offset: word64(region, 24),
                });
                Ok(VhostRequest::SetMemTable(table.collect()))
            }
            8 => state().map(VhostRequest::SetVringNum),
            9 => {
                of(40)?;
                Ok(VhostRequest::SetVringAddr {
                    ring: word32(payload, 0),
                    descriptors: word64(payload, 8),
                    used: word64(payload, 16),
                    available: word64(payload, 24),
                })
            }
            10 => state().map(VhostRequest::SetVringBase),
            11 => state().map(|state| VhostRequest::GetVringBase(state.ring)),
            12 => event().map(VhostRequest::SetVringKick),
            13 => event().map(VhostRequest::SetVringCall),
            14 => event().map(VhostRequest::SetVringErr),
            15 => none(VhostRequest::GetProtocolFeatures),
            16 => number().map(VhostRequest::SetProtocolFeatures),
            17 => none(VhostRequest::GetQueueNum),
            18 => state().map(VhostRequest::SetVringEnable),
            other => Err(MessageError::Unknown(other)),
        }
    }
}

fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|at| word32(bytes, 4 * at))
}

/// Reads a word in the machine's byte order, because both ends are on one machine. Returns 0 beyond
/// the end, which the callers' length checks exclude.
fn word32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b))
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(words: [u32; 3]) -> Result<Header, MessageError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Header::parse(bytes.first_chunk().unwrap())
    }

    #[test]
    fn headers_of_clients_only() {
        let wanted = Header { request: 5, needs_reply: true, size: 40 };
        assert_eq!(header([5, 0x9, 40]), Ok(wanted));
        assert_eq!(header([5, 0x5, 40]), Err(MessageError::Flags(5)));
        assert_eq!(header([5, 0x2, 40]), Err(MessageError::Flags(2)));
        assert_eq!(header([5, 0x1, 1 << 30]), Err(MessageError::Long(1 << 30)));
        assert_eq!(wanted.answer(&[7; 8]).len(), HEADER + 8);
    }

    #[test]
    fn a_ring_s_address_is_read_as_qemu_writes_it() {
        let mut payload = vec![3, 0, 0, 0, 0, 0, 0, 0];
        for word in [0x1000u64, 0x2000, 0x3000, 0] {
            payload.extend(word.to_ne_bytes());
        }
        let header = header([9, 1, 40]).unwrap();
        let wanted = VhostRequest::SetVringAddr {
            ring: 3,
            descriptors: 0x1000,
            used: 0x2000,
            available: 0x3000,
        };
        assert_eq!(VhostRequest::parse(&header, &payload), Ok(wanted));
        let short = VhostRequest::parse(&header, &payload[..39]).unwrap_err();
        assert_eq!(short.to_string(), "request 9 with 39 bytes, expected 40");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_refused(
            request in 0u32..64,
            payload in prop::collection::vec(any::<u8>(), 0..=PAYLOAD_MAX),
        ) {
            let header = Header { request, needs_reply: false, size: payload.len() };
            let _ = VhostRequest::parse(&header, &payload);
        }

        #[test]
        fn a_table_has_as_many_regions_as_it_says(
            regions in 0u32..=10,
            rest in prop::collection::vec(any::<u8>(), 0..PAYLOAD_MAX - 8),
        ) {
            let mut payload = regions.to_ne_bytes().to_vec();
            payload.extend([0; 4]);
            payload.extend(rest);
            let header = Header { request: 5, needs_reply: false, size: payload.len() };
            if let Ok(VhostRequest::SetMemTable(table)) = VhostRequest::parse(&header, &payload) {
                prop_assert_eq!(table.len(), regions as usize);
            }
        }
    }
}
