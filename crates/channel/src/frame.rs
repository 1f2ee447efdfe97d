//! Frames: an encrypted header with the length of the payload, then the payload in encrypted parts
//! of at most 65,519 bytes. Header and parts are transport messages of the Noise session
//! ([`crate::handshake`]): each is numbered per direction, so that none can be changed, repeated,
//! left out or reordered. The receiver checks the length before it allocates memory.

use snow::TransportState;

/// Length of a message's tag, bytes.
const TAG_BYTES: usize = 16;
/// Size of a frame's header, bytes.
pub const HEAD_BYTES: usize = 4 + TAG_BYTES;
/// Maximum payload of a part, bytes: a Noise message has at most 65535.
const PART_BYTES: usize = 65_535 - TAG_BYTES;

/// Maximum payload of a request, bytes. Loads are small.
pub const REQUEST_LIMIT: usize = 64 << 10;
/// Maximum payload of a reply, bytes: reports of 1024 flows and the features of a device.
pub const REPLY_LIMIT: usize = 1 << 20;

/// Keys and numbers of both directions of a session.
pub struct Cipher {
    state: Box<TransportState>,
    /// Maximum payload of the frames that this end sends, bytes,
    outgoing: usize,
    /// and of those that it receives.
    incoming: usize,
    /// Number of the next frame that is received.
    number: u64,
}

/// Reason why a frame is refused. The session ends with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The payload exceeds the receiver's limit.
    #[error("frame of {length} bytes exceeds the limit of {limit}")]
    Length {
        /// Length in its header, bytes.
        length: usize,
        /// Maximum payload of this direction, bytes.
        limit: usize,
    },
    /// The frame is not from the authenticated peer, or out of order.
    #[error("frame {number} has a wrong tag: modified in transit, or from another session")]
    Tag {
        /// Number of the frame in the session, from 0.
        number: u64,
    },
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cipher(next {})", self.number)
    }
}

impl Cipher {
    /// The client sends requests and receives replies.
    pub(crate) fn of_client(state: TransportState) -> Cipher {
        Cipher::new(state, REQUEST_LIMIT, REPLY_LIMIT)
    }

    /// The server receives requests and sends replies.
    pub(crate) fn of_server(state: TransportState) -> Cipher {
        Cipher::new(state, REPLY_LIMIT, REQUEST_LIMIT)
    }

    fn new(state: TransportState, outgoing: usize, incoming: usize) -> Cipher {
        Cipher { state: Box::new(state), outgoing, incoming, number: 0 }
    }

    /// Returns the next frame, with this payload.
    ///
    /// # Errors
    /// [`FrameError::Length`].
    pub fn seal(&mut self, payload: &[u8]) -> Result<Vec<u8>, FrameError> {
        check_length(payload.len(), self.outgoing)?;
        let mut frame = vec![0; HEAD_BYTES + sealed_length(payload.len())];
        let (head, mut rest) = frame.split_at_mut(HEAD_BYTES);
        self.encrypt(&(payload.len() as u32).to_be_bytes(), head);
        for part in payload.chunks(PART_BYTES) {
            let (sealed, behind) = rest.split_at_mut(part.len() + TAG_BYTES);
            self.encrypt(part, sealed);
            rest = behind;
        }
        Ok(frame)
    }

    /// Decrypts the header of the next frame. Returns the length of its payload, bytes; the frame
    /// goes on with [`sealed_length`] of it.
    ///
    /// # Errors
    /// [`FrameError`]: a header of another session or order; a length beyond the limit.
    pub fn length(&mut self, head: &[u8; HEAD_BYTES]) -> Result<usize, FrameError> {
        let mut length = [0; 4];
        self.decrypt(head, &mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        check_length(length, self.incoming)?;
        Ok(length)
    }

    /// Decrypts the rest of a frame whose payload has `length` bytes.
    ///
    /// # Errors
    /// [`FrameError::Tag`].
    ///
    /// # Panics
    /// If `sealed` does not have [`sealed_length`] bytes.
    pub fn open(&mut self, length: usize, sealed: &[u8]) -> Result<Vec<u8>, FrameError> {
        assert_eq!(sealed.len(), sealed_length(length), "a whole frame");
        let mut payload = vec![0; length];
        let parts = payload.chunks_mut(PART_BYTES).zip(sealed.chunks(PART_BYTES + TAG_BYTES));
        for (part, sealed) in parts {
            self.decrypt(sealed, part)?;
        }
        self.number += 1;
        Ok(payload)
    }

    fn encrypt(&mut self, plain: &[u8], sealed: &mut [u8]) {
        let length = self.state.write_message(plain, sealed);
        // Fails only for messages that are too long, and after 2^64 messages.
        assert_eq!(length, Ok(plain.len() + TAG_BYTES), "a part of a frame");
    }

    fn decrypt(&mut self, sealed: &[u8], plain: &mut [u8]) -> Result<(), FrameError> {
        let number = self.number;
        match self.state.read_message(sealed, plain) {
            Ok(length) if length == plain.len() => Ok(()),
            // Changed, repeated or reordered: nothing after this can be trusted.
            _ => Err(FrameError::Tag { number }),
        }
    }
}

/// Returns the length of a frame behind its header, for a payload of this length, bytes.
pub const fn sealed_length(payload: usize) -> usize {
    payload + payload.div_ceil(PART_BYTES) * TAG_BYTES
}

fn check_length(length: usize, limit: usize) -> Result<(), FrameError> {
    // Both ends have the same limit, so a sender notices first.
    if length > limit { Err(FrameError::Length { length, limit }) } else { Ok(()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::handshake::{Hello, Said};
    use crate::service::Service;
    use proptest::prelude::*;

    /// The ciphers of a client and a server.
    pub(crate) fn pair() -> (Cipher, Cipher) {
        let hello = || Hello::fresh(Service::Watch, false);
        let said = Said { server: hello(), client: hello() };
        let (initiator, first) = said.initiate(None);
        let (second, server) = said.respond(None, &first).unwrap();
        (initiator.finish(&second).unwrap(), server)
    }

    pub(crate) fn open(cipher: &mut Cipher, frame: &[u8]) -> Result<Vec<u8>, FrameError> {
        let (head, sealed) = frame.split_first_chunk::<HEAD_BYTES>().unwrap();
        let length = cipher.length(head)?;
        assert_eq!(sealed.len(), sealed_length(length));
        cipher.open(length, sealed)
    }

    #[test]
    fn a_frame_is_taken_once_in_order_and_in_its_direction() {
        let (mut client, mut server) = pair();
        let frames = [b"a", b"b"].map(|payload| client.seal(payload).unwrap());
        assert_eq!(open(&mut server, &frames[1]), Err(FrameError::Tag { number: 0 }));
        assert_eq!(open(&mut server, &frames[0]), Ok(b"a".to_vec()));
        assert_eq!(open(&mut server, &frames[0]), Err(FrameError::Tag { number: 1 }));
        assert_eq!(open(&mut server, &frames[1]), Ok(b"b".to_vec()));
        // Reflected.
        let frame = client.seal(b"c").unwrap();
        assert!(open(&mut client, &frame).is_err());
    }

    #[test]
    fn nothing_of_a_payload_is_readable() {
        let (mut client, mut server) = pair();
        let payload = b"the same words twice, the same words twice".repeat(3000);
        let frame = server.seal(&payload).unwrap();
        assert!(!frame.windows(8).any(|bytes| bytes == b"the same"));
        assert_ne!(frame, server.seal(&payload).unwrap());
        assert_eq!(open(&mut client, &frame).unwrap(), payload);
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_reading_on() {
        let (mut client, mut server) = pair();
        let refused = FrameError::Length { length: REQUEST_LIMIT + 1, limit: REQUEST_LIMIT };
        assert_eq!(client.seal(&vec![0; REQUEST_LIMIT + 1]), Err(refused.clone()));
        client.outgoing += 1;
        let frame = client.seal(&vec![0; REQUEST_LIMIT + 1]).unwrap();
        assert_eq!(server.length(frame.first_chunk().unwrap()), Err(refused));
        let (_, mut server) = pair();
        assert_eq!(server.length(&[0xff; HEAD_BYTES]), Err(FrameError::Tag { number: 0 }));
    }

    #[test]
    fn payloads_of_several_parts_arrive_whole() {
        let (mut client, mut server) = pair();
        for length in
            [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, REPLY_LIMIT]
        {
            let payload: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let frame = server.seal(&payload).unwrap();
            assert!(open(&mut client, &frame).unwrap() == payload, "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_opened_and_any_changed_bit_is_seen(
            payload in prop::collection::vec(any::<u8>(), 0..200),
            bit: prop::sample::Index,
        ) {
            let (mut client, mut server) = pair();
            let frame = client.seal(&payload).unwrap();
            let mut changed = frame.clone();
            let bit = bit.index(frame.len() * 8);
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(open(&mut server, &changed).is_err());
        }
    }
}
