//! A bitmap of flows that have a verdict, so that the programs quickly recognise flows without one.

use std::iter;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::Programs;
use super::abi::{JUDGED_BITS, RawFlowKey};
use super::object::failed;
use crate::Result;

const BITS: usize = 1 << JUDGED_BITS;

/// The bitmap in the kernel and a copy of it.
pub(super) struct Judged {
    map: MapHandle,
    words: Vec<u64>,
    /// Number of bits set.
    set: usize,
    /// Limit of set bits, above which bits of removed flows are cleared.
    most: usize,
    /// Number of the state that the verdicts depend on.
    number: u64,
}

impl Judged {
    pub(super) fn of(programs: &Programs) -> Result<Judged> {
        let map = programs.map("judged", size_of::<u64>())?;
        Ok(Judged::with(map))
    }

    fn with(map: MapHandle) -> Judged {
        Judged { map, words: vec![0; BITS / 64], set: 0, most: BITS / 2, number: 0 }
    }

    /// Sets the bit of a flow, before its verdict is written. `live` returns all flows with a
    /// verdict of this number; it is called rarely.
    pub(super) fn set(
        &mut self,
        key: &RawFlowKey,
        number: u64,
        live: impl FnOnce() -> Result<Vec<RawFlowKey>>,
    ) -> Result<()> {
        if number != self.number {
            // Verdicts with another number are void.
            self.replace(iter::empty())?;
            self.number = number;
        } else if self.set > self.most {
            // With half of the bits set, the bitmap no longer filters well. Flows with a verdict
            // keep their bits, so creating many other flows cannot evict them.
            self.replace(live()?.iter())?;
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

    /// Clears all bits except those of these flows, which stay set throughout.
    fn replace<'a>(&mut self, keys: impl Iterator<Item = &'a RawFlowKey>) -> Result<()> {
        let mut kept = vec![0_u64; BITS / 64];
        for key in keys {
            let bit = bit(key);
            kept[bit / 64] |= 1 << (bit % 64);
        }
        self.set = kept.iter().map(|word| word.count_ones() as usize).sum();
        // Allow the same number of new flows before the next cleanup.
        self.most = (BITS / 2).max(2 * self.set);
        for (at, word) in kept.into_iter().enumerate() {
            if std::mem::replace(&mut self.words[at], word) != word {
                self.write(at)?;
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

/// Computes the bit number, as `judged_bit` in `bpf/flow.h`.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use libbpf_rs::{MapType, libbpf_sys};
    use test_support::{need, require};

    use super::*;

    fn flow(number: u32) -> RawFlowKey {
        let mut source = [0; 16];
        source[..4].copy_from_slice(&number.to_ne_bytes());
        RawFlowKey {
            netns: 0,
            device: 7,
            source,
            dest: [9; 16],
            source_port: [0, 80],
            dest_port: [1, 2],
            protocol: 6,
            ipv6: 0,
            place: 0,
        }
    }

    impl Judged {
        fn has(&self, key: &RawFlowKey) -> bool {
            let bit = bit(key);
            let word = self.map.lookup(&((bit / 64) as u32).to_ne_bytes(), MapFlags::ANY);
            let word = u64::from_ne_bytes(word.unwrap().unwrap().try_into().unwrap());
            word >> (bit % 64) & 1 == 1
        }
    }

    #[test]
    fn many_new_flows_take_no_bit_from_those_that_have_a_verdict() {
        require!(need::root());
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let map =
            MapHandle::create(MapType::Array, Some("judged"), 4, 8, (BITS / 64) as u32, &options);
        let mut judged = Judged::with(map.unwrap());
        let established_part = [flow(1), flow(2)];
        let asked = Cell::new(0);
        let live = || {
            asked.set(asked.get() + 1);
            Ok(established_part.to_vec())
        };
        for key in established_part.iter().cloned().chain((3..1_000_000).map(flow)) {
            judged.set(&key, 1, live).unwrap();
        }
        assert_eq!(asked.get(), 1);
        assert!(established_part.iter().all(|key| judged.has(key)));
        assert!(judged.set <= BITS / 2 + 1, "{}", judged.set);
        // Void because the number changed.
        judged.set(&flow(3), 2, || panic!("not asked for")).unwrap();
        assert!(!established_part.iter().any(|key| judged.has(key)));
        assert_eq!(judged.set, 1);
    }
}
