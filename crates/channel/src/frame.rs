//! Frames: length (4 bytes, big-endian), tag (32 bytes), payload.
//!
//! The tag is the HMAC-SHA256, under the session's key, of the direction, the frame's number
//! (from 0, per direction), the length and the payload. The receiver checks the length before
//! it allocates memory, and the tag before it parses the payload.

use hmac::Mac;

use crate::handshake::{MAC_BYTES, keyed};

/// Size of a frame's header, bytes.
pub const HEAD_BYTES: usize = 4 + MAC_BYTES;

/// Maximum payload of a request, bytes. Loads are small.
pub const REQUEST_LIMIT: usize = 64 << 10;
/// Maximum payload of a reply, bytes: reports of 1024 flows and the features of a device.
pub const REPLY_LIMIT: usize = 1 << 20;

/// Direction of a frame, part of its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// From client to server: a request.
    ToServer = 0,
    /// From server to client: a reply.
    ToClient = 1,
}

/// Frames of one direction of a session.
#[derive(Clone)]
pub struct Sequence {
    key: [u8; MAC_BYTES],
    direction: Direction,
    next: u64,
    limit: usize,
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

impl std::fmt::Debug for Sequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sequence({:?}, next {})", self.direction, self.next)
    }
}

impl Sequence {
    /// Creates the sequence at a session's first frame, with payloads of at most `limit` bytes.
    pub fn new(key: [u8; MAC_BYTES], direction: Direction, limit: usize) -> Sequence {
        Sequence { key, direction, next: 0, limit }
    }

    /// Returns the next frame, with this payload.
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

    /// Returns the payload length in a header.
    ///
    /// # Errors
    /// [`FrameError::Length`].
    pub fn length(&self, head: &[u8; HEAD_BYTES]) -> Result<usize, FrameError> {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        self.check_length(length)?;
        Ok(length)
    }

    /// Verifies that this is the next frame.
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
        // Both ends have the same limit, so a sender notices first.
        if length > self.limit {
            return Err(FrameError::Length { length, limit: self.limit });
        }
        Ok(())
    }

    fn mac(&self, payload: &[u8]) -> hmac::Hmac<sha2::Sha256> {
        let mut mac = keyed(&self.key);
        mac.update(&[self.direction as u8]);
        // The number makes repeated or reordered frames invalid.
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
            // Flip bits after the length field: changing the length would make another frame.
            let bit = 32 + bit.index((frame.len() - 4) * 8);
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(open(&mut receiver.clone(), &changed).is_err());
            prop_assert_eq!(open(&mut receiver, &frame), Ok(payload));
        }
    }
}
