//! A bit for each flow that has a verdict, by which the programs tell those that have none.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::Programs;
use super::abi::{JUDGED_BITS, RawFlowKey};
use super::object::failed;
use crate::Result;

const BITS: usize = 1 << JUDGED_BITS;

/// The map of them, and what is in it.
pub(super) struct Judged {
    map: MapHandle,
    words: Vec<u64>,
    /// Bits that are set.
    set: usize,
    /// Number of the state that the verdicts were given by.
    number: u64,
}

impl Judged {
    pub(super) fn of(programs: &Programs) -> Result<Judged> {
        let map = programs.map("judged", size_of::<u64>())?;
        Ok(Judged { map, words: vec![0; BITS / 64], set: 0, number: 0 })
    }

    /// Sets the bit of a flow, before its verdict is written.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn set(&mut self, key: &RawFlowKey, number: u64) -> Result<()> {
        // Verdicts by another number are void. When every other bit is set, those that have none
        // are hardly told any more; flows that lose theirs ask again.
        if number != self.number || self.set > BITS / 2 {
            self.clear()?;
            self.number = number;
        }
        let bit = bit(key);
        let (word, mask) = (bit / 64, 1 << (bit % 64));
        if self.words[word] & mask == 0 {
            self.words[word] |= mask;
            self.set += 1;
            self.write(word)?;
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<()> {
        self.set = 0;
        for word in 0..self.words.len() {
            if std::mem::take(&mut self.words[word]) != 0 {
                self.write(word)?;
            }
        }
        Ok(())
    }

    fn write(&self, word: usize) -> Result<()> {
        let (key, value) = ((word as u32).to_ne_bytes(), self.words[word].to_ne_bytes());
        self.map
            .update(&key, &value, MapFlags::ANY)
            .map_err(|error| failed("update", "map judged", error.to_string()))
    }
}

/// As `judged_bit` in `bpf/flow.h`.
fn bit(key: &RawFlowKey) -> usize {
    let word = |bytes: &[u8; 16], at: usize| {
        u64::from(u32::from_ne_bytes([0, 1, 2, 3].map(|byte| bytes[4 * at + byte])))
    };
    let pair = |at| word(&key.source, at) | word(&key.dest, at) << 32;
    let mut bits = pair(0);
    if key.ipv6 != 0 {
        bits ^= pair(2);
        bits = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ pair(3);
    }
    bits = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits ^= bits >> 32;
    bits ^= u64::from(u16::from_ne_bytes(key.source_port))
        | u64::from(u16::from_ne_bytes(key.dest_port)) << 16
        | u64::from(key.device) << 32;
    (bits.wrapping_mul(0xd6e8_feb8_6659_fd93) >> (64 - JUDGED_BITS)) as usize
}
