//! Payload of probe packets. Every 16-byte block names its session, class, repetition and place,
//! so that a receiver knows where any piece of it belongs, wherever it was cut.

use rand::RngExt;
use rand::SeedableRng;
use rand_pcg::Pcg32;

/// Length of a block, bytes.
pub const BLOCK: usize = 16;
/// First byte of every payload. It is neither a valid VXLAN header (the I flag is missing) nor a
/// valid Geneve header (version 3), so that a tunnel endpoint drops it.
const FIRST: u8 = 0xc0;

/// Secret of a session, from which its payloads derive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session(pub u64);

/// Location of a piece of payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Number of the class in the session.
    pub class: u16,
    /// Number of the repetition of the class.
    pub repetition: u16,
    /// Offset in the payload, bytes; negative if bytes were inserted before it.
    pub offset: i64,
}

impl Session {
    fn magic(self) -> [u8; 4] {
        let bytes = self.0.to_be_bytes();
        [FIRST, bytes[0], bytes[1], bytes[2]]
    }

    /// A block: magic (4), class (2), repetition (2), number (2), and 6 bytes that depend on all of
    /// these and on the session.
    fn block(self, class: u16, repetition: u16, number: u16) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..4].copy_from_slice(&self.magic());
        block[4..6].copy_from_slice(&class.to_be_bytes());
        block[6..8].copy_from_slice(&repetition.to_be_bytes());
        block[8..10].copy_from_slice(&number.to_be_bytes());
        let seed = u64::from(class) << 32 | u64::from(repetition) << 16 | u64::from(number);
        let mixed = self.0 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let noise: [u8; 6] = Pcg32::seed_from_u64(mixed).random();
        block[10..].copy_from_slice(&noise);
        block
    }

    /// Returns the payload of a class's repetition.
    pub fn payload(self, class: u16, repetition: u16, length: usize) -> Vec<u8> {
        let mut payload = Vec::with_capacity(length + BLOCK);
        let mut number = 0_u16;
        while payload.len() < length {
            payload.extend_from_slice(&self.block(class, repetition, number));
            number = number.wrapping_add(1);
        }
        payload.truncate(length);
        payload
    }

    /// Finds the first whole block in received bytes; returns the place of the bytes' start.
    pub fn locate(self, bytes: &[u8]) -> Option<Location> {
        let magic = self.magic();
        // A packet may have been cut anywhere: the block of identification can be at any offset.
        for at in 0..bytes.len().saturating_sub(BLOCK - 1) {
            let Some(block) = bytes[at..].first_chunk::<BLOCK>() else { break };
            if block[..4] != magic {
                continue;
            }
            let word = |at: usize| u16::from_be_bytes([block[at], block[at + 1]]);
            let (class, repetition, number) = (word(4), word(6), word(8));
            // The noise distinguishes a block from bytes that only look like one.
            if self.block(class, repetition, number) == *block {
                let offset = i64::from(number) * BLOCK as i64 - at as i64;
                return Some(Location { class, repetition, offset });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_piece_with_a_whole_block_is_located(
            secret: u64, class: u16, repetition: u16, length in 40_usize..5000, cut: prop::sample::Index,
        ) {
            let session = Session(secret);
            let payload = session.payload(class, repetition, length);
            prop_assert_eq!(payload[0], FIRST);
            let at = cut.index(length - 2 * BLOCK + 1);
            let place = Location { class, repetition, offset: at as i64 };
            prop_assert_eq!(session.locate(&payload[at..]), Some(place));
            // Another session's bytes are not taken for this one's.
            prop_assert_eq!(Session(!secret).locate(&payload), None);
        }

        #[test]
        fn any_bytes_are_located_or_not(bytes: Vec<u8>) {
            let _ = Session(7).locate(&bytes);
        }
    }
}
