//! Runs the fuzz targets (`fuzz/`) for a bounded number of cases: random bytes, and well-formed
//! packets with a few errors. `FUZZ_CASES` sets the number, `FUZZ_SEED` the sequence.

use crate::build;
#[path = "../../../../fuzz/src/lib.rs"]
mod entries;

use crate::seeds;

use build::Random;
use seeds::{noise, small, train, vnet_and_frame};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Calls `target` with the output of `make`, then with damaged versions of it. A panic names the
/// case.
fn run(name: &str, target: fn(&[u8]), make: fn(&mut Random) -> Vec<u8>) {
    let (cases, seed) = (number("FUZZ_CASES", 3000), number("FUZZ_SEED", 1));
    for path in corpus(name) {
        target(&std::fs::read(path).unwrap());
    }
    for case in 0..cases {
        let mut random = Random(seed ^ case << 20);
        let mut data = make(&mut random);
        let result = std::panic::catch_unwind(|| target(&data));
        assert!(result.is_ok(), "{name}: FUZZ_SEED={seed}, case {case}, undamaged");
        for round in 0..4 {
            damage(&mut data, &mut random);
            let result = std::panic::catch_unwind(|| target(&data));
            assert!(result.is_ok(), "{name}: FUZZ_SEED={seed}, case {case}, round {round}");
        }
    }
}

/// Inputs that libFuzzer kept.
fn corpus(name: &str) -> Vec<std::path::PathBuf> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/");
    let entries = std::fs::read_dir(format!("{directory}{name}")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn damage(data: &mut Vec<u8>, random: &mut Random) {
    if data.is_empty() {
        return;
    }
    for _ in 0..1 + random.below(4) {
        // Most damage is in the first bytes, where the headers are.
        let reach = if random.once_in(2) { data.len().min(160) } else { data.len() };
        let at = random.below(reach);
        match random.below(7) {
            0 => data[at] ^= 1 << random.below(8),
            1 => data[at] = random.next() as u8,
            2 => data[at] = [0, 0xff, 0x7f, 0x80, 1][random.below(5)],
            3 => data.truncate(at.max(1)),
            4 => data.insert(at, random.next() as u8),
            5 if at + 2 <= data.len() => {
                let edge = [0u16, 1, 7, 8, 19, 20, 0xffff, 0x8000, 0x7fff][random.below(9)];
                data[at..at + 2].copy_from_slice(&edge.to_be_bytes());
            }
            _ => {
                data.remove(at);
            }
        }
        if data.is_empty() {
            return;
        }
    }
}

fn frame(random: &mut Random) -> Vec<u8> {
    if random.once_in(5) { noise(random) } else { small(random).1 }
}

#[test]
fn views() {
    run("views", entries::views, frame);
    // Each format alone, as the first one that a view parses.
    run("views", entries::views, |random| {
        let frame = small(random).1;
        frame[[14, 18, 34, 42, 54][random.below(5)].min(frame.len())..].to_vec()
    });
}

#[test]
fn segment() {
    run("segment", entries::segment, vnet_and_frame);
}

#[test]
fn coalesce() {
    run("coalesce", entries::coalesce, train);
}

#[test]
fn tunnel() {
    run("tunnel", entries::tunnel, vnet_and_frame);
}
