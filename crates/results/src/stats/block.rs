//! Order of cells within a block.

use rand::Rng;
use rand::SeedableRng;
use rand_pcg::Pcg64;

/// Returns a random order of `cells` cells for `block`: a permutation of `0..cells`, the same for
/// the same seed.
///
/// Each block's order depends only on the seed and its number, so that a block can be repeated
/// without its predecessors. The shuffle (Fisher-Yates) and the unbiased draw (D. Lemire, "Fast
/// random integer generation in an interval", 2019) are implemented here, so that a seed in an old
/// results file means the same order with any version of the `rand` crates.
pub fn block_order(seed: u64, block: u32, cells: usize) -> Vec<usize> {
    // Neighbouring seeds and blocks must not share generators: this constant (2⁶⁴ ÷ golden ratio,
    // odd) keeps (seed, block) pairs distinct.
    let mixed = seed.wrapping_add((u64::from(block) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut rng = Pcg64::seed_from_u64(mixed);
    let mut order: Vec<usize> = (0..cells).collect();
    for last in (1..cells).rev() {
        order.swap(last, below(&mut rng, last as u64 + 1) as usize);
    }
    order
}

/// Returns a uniform number in `0..bound`; `bound` > 0.
fn below(rng: &mut Pcg64, bound: u64) -> u64 {
    let threshold = bound.wrapping_neg() % bound;
    loop {
        let product = u128::from(rng.next_u64()) * u128::from(bound);
        // Reject a low half below the threshold: accepting it would make some numbers more likely.
        if product as u64 >= threshold {
            return (product >> 64) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_seed_means_the_same_order_in_every_version() {
        assert_eq!(block_order(1, 0, 8), [4, 5, 0, 6, 7, 3, 2, 1]);
    }

    #[test]
    fn every_cell_comes_once() {
        for cells in [0, 1, 2, 3, 40, 257] {
            let mut order = block_order(9, 3, cells);
            order.sort_unstable();
            assert_eq!(order, (0..cells).collect::<Vec<_>>());
        }
    }

    #[test]
    fn blocks_and_seeds_have_orders_of_their_own() {
        let orders: std::collections::BTreeSet<Vec<usize>> = (0..20)
            .flat_map(|seed| (0..20).map(move |block| block_order(seed, block, 30)))
            .collect();
        assert_eq!(orders.len(), 400);
    }

    #[test]
    fn every_order_is_as_likely() {
        let mut seen: BTreeMap<Vec<usize>, u32> = BTreeMap::new();
        let blocks = 24_000;
        for block in 0..blocks {
            *seen.entry(block_order(5, block, 4)).or_default() += 1;
        }
        assert_eq!(seen.len(), 24);
        let expected = f64::from(blocks) / 24.0;
        let chi_squared: f64 =
            seen.values().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
        // 23 degrees of freedom: 49.7 is exceeded by chance once in a thousand.
        assert!(chi_squared < 49.7, "chi² {chi_squared}");
    }
}
