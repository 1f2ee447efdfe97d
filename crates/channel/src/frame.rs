//! Frames: length (4 bytes, big-endian), tag (32 bytes), payload.
//!
//! The tag is the HMAC-SHA256, under the session's key, of the direction, the
//! frame's number (from 0, each direction its own), the length and the payload.
//! The length is checked before anything is allocated, the tag before anything
//! is parsed.

use hmac::Mac;

use crate::handshake::{MAC_BYTES, keyed};

/// Bytes before the payload.
pub const HEAD_BYTES: usize = 4 + MAC_BYTES;

/// Largest payload that a server takes: loads are small.
pub const REQUEST_LIMIT: usize = 64 << 10;
/// Largest payload that a client takes: reports of 1024 flows and the features
/// of a device.
pub const REPLY_LIMIT: usize = 1 << 20;

/// End that sends a frame; part of what its tag proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// From client to server: a request.
    ToServer = 0,
    /// From server to client: a reply.
    ToClient = 1,
}

/// One direction of a session's frames.
#[derive(Clone)]
pub struct Sequence {
    key: [u8; MAC_BYTES],
    direction: Direction,
    next: u64,
    limit: usize,
}

/// A frame that is not taken; nothing after it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The payload is longer than the receiver takes.
    #[error("frame of {length} bytes; allowed are {limit}")]
    Length {
        /// What its head says.
        length: usize,
        /// Longest payload of this direction, bytes.
        limit: usize,
    },
    /// Not from the one who proved to know the token, or not in order.
    #[error("frame {number} has a wrong tag: changed on the way, or not of this session")]
    Tag {
        /// Place in the session, from 0.
        number: u64,
    },
}

impl std::fmt::Debug for Sequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sequence({:?}, next {})", self.direction, self.next)
    }
}

impl Sequence {
    /// From the session's first frame of a direction; payloads of at most
    /// `limit` bytes.
    pub fn new(key: [u8; MAC_BYTES], direction: Direction, limit: usize) -> Sequence {
        Sequence { key, direction, next: 0, limit }
    }

    /// The next frame, with this payload.
    ///
    /// # Errors
    /// [`FrameError::Length`].
    pub fn seal(&mut self, payload: &[u8]) -> Result<Vec<u8>, FrameError> {
        self.check_length(payload.len())?;
        let tag = self.mac(payload).finalize().into_bytes();
        self.next += 1;
        let mut frame = Vec::with_capacity(HEAD_BYTES + payload.len());
        frame.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        frame.extend_from_slice(&tag);
        frame.extend_from_slice(payload);
        Ok(frame)
    }

    /// How long the payload is that follows this head.
    ///
    /// # Errors
    /// [`FrameError::Length`].
    pub fn length(&self, head: &[u8; HEAD_BYTES]) -> Result<usize, FrameError> {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        self.check_length(length)?;
        Ok(length)
    }

    /// Checks that this is the next frame.
    ///
    /// # Errors
    /// [`FrameError::Tag`].
    pub fn open(&mut self, head: &[u8; HEAD_BYTES], payload: &[u8]) -> Result<(), FrameError> {
        let number = self.next;
        self.mac(payload).verify_slice(&head[4..]).map_err(|_| FrameError::Tag { number })?;
        self.next += 1;
        Ok(())
    }

    fn check_length(&self, length: usize) -> Result<(), FrameError> {
        if length > self.limit {
            return Err(FrameError::Length { length, limit: self.limit });
        }
        Ok(())
    }

    fn mac(&self, payload: &[u8]) -> hmac::Hmac<sha2::Sha256> {
        let mut mac = keyed(&self.key);
        mac.update(&[self.direction as u8]);
        mac.update(&self.next.to_be_bytes());
        mac.update(&(payload.len() as u64).to_be_bytes());
        mac.update(payload);
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair() -> (Sequence, Sequence) {
        let new = || Sequence::new([7; 32], Direction::ToServer, 1000);
        (new(), new())
    }

    fn open(sequence: &mut Sequence, frame: &[u8]) -> Result<Vec<u8>, FrameError> {
        let (head, payload) = frame.split_first_chunk::<HEAD_BYTES>().unwrap();
        assert_eq!(sequence.length(head)?, payload.len());
        sequence.open(head, payload)?;
        Ok(payload.to_vec())
    }

    #[test]
    fn a_frame_is_taken_once_in_order_and_in_its_direction() {
        let (mut sender, mut receiver) = pair();
        let frames = [b"a", b"b"].map(|payload| sender.seal(payload).unwrap());
        assert_eq!(open(&mut receiver.clone(), &frames[1]), Err(FrameError::Tag { number: 0 }));
        assert_eq!(open(&mut receiver, &frames[0]), Ok(b"a".to_vec()));
        assert_eq!(open(&mut receiver, &frames[0]), Err(FrameError::Tag { number: 1 }));
        assert_eq!(open(&mut receiver, &frames[1]), Ok(b"b".to_vec()));
        let mut reflected = Sequence::new([7; 32], Direction::ToClient, 1000);
        assert!(open(&mut reflected, &frames[0]).is_err());
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_reading_on() {
        let (mut sender, receiver) = pair();
        assert!(sender.seal(&[0; 1001]).is_err());
        let head = [0xff; HEAD_BYTES];
        let length = u32::MAX as usize;
        assert_eq!(receiver.length(&head), Err(FrameError::Length { length, limit: 1000 }));
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_opened_and_any_changed_bit_is_seen(
            payload in prop::collection::vec(any::<u8>(), 0..200),
            bit: prop::sample::Index,
        ) {
            let (mut sender, mut receiver) = pair();
            let frame = sender.seal(&payload).unwrap();
            let mut changed = frame.clone();
            // Behind the length, whose change makes another frame altogether.
            let bit = 32 + bit.index((frame.len() - 4) * 8);
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(open(&mut receiver.clone(), &changed).is_err());
            prop_assert_eq!(open(&mut receiver, &frame), Ok(payload));
        }
    }
}
