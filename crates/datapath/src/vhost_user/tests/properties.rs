//! Property tests with random rings that resemble valid ones.

use proptest::prelude::*;

use super::seeds::{self, SIZE};
use crate::vhost_user::fuzz::{MEMORY, ring};

/// A descriptor: mostly inside memory, mostly with a next descriptor nearby.
fn descriptor() -> impl Strategy<Value = Vec<u8>> {
    let address = prop_oneof![
        8 => 0u64..MEMORY as u64,
        1 => (1u64 << 20) - 64..(1 << 20) + 5000,
        1 => any::<u64>(),
    ];
    let length =
        prop_oneof![6 => 0u32..5000, 2 => (0u32..80).prop_map(|n| n * 16), 1 => any::<u32>()];
    let flags = prop_oneof![8 => 0u16..4, 2 => 4u16..8, 1 => any::<u16>()];
    let next = prop_oneof![9 => 0..SIZE, 1 => any::<u16>()];
    (address, length, flags, next)
        .prop_map(|(address, length, flags, next)| seeds::descriptor(address, length, flags, next))
}

#[test]
fn crashes_found_by_fuzzing_are_fixed() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/vhost_user_ring");
    let kept = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<_> = kept.map(|path| std::fs::read(path).unwrap()).collect();
    assert!(kept.len() >= seeds::seeds().len());
    kept.iter().for_each(|data| ring(data));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn whatever_a_ring_holds_is_judged(
        flags in 0u8..8,
        base in prop_oneof![Just(0u16), Just(65_530), any::<u16>()],
        descriptors in prop::collection::vec(descriptor(), usize::from(SIZE)),
        entries in prop::collection::vec(prop_oneof![9 => 0..SIZE, 1 => any::<u16>()], usize::from(SIZE)),
        ahead in prop_oneof![9 => 0..=SIZE, 1 => any::<u16>()],
        rest in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut data = seeds::ring(flags, base, &descriptors.concat(), &entries, ahead);
        data.extend(rest);
        ring(&data);
    }

    #[test]
    fn any_bytes_are_a_ring_or_refused(data in prop::collection::vec(any::<u8>(), 0..4000)) {
        ring(&data);
    }
}
