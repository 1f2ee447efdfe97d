//! Runs the fuzz targets `doctor_saved`, `doctor_text` and `doctor_answer` (`fuzz/`) for a bounded
//! number of cases: their seeds with a few random changes. `FUZZ_CASES` sets the number,
//! `FUZZ_SEED` the sequence.

mod answers;
#[path = "../../../../fuzz/src/doctor.rs"]
mod entries;

use answers::{datapath, rule, table};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Corpus of a target: seeds, and inputs that libFuzzer kept.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/");
    let entries = std::fs::read_dir(format!("{directory}{name}")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Calls `target` with the corpus, then with damaged versions of it. A panic names the case.
fn run(name: &str, target: fn(&[u8]), cases: u64) {
    let kept = corpus(name);
    assert!(!kept.is_empty(), "{name}: nothing to begin with");
    kept.iter().for_each(|data| target(data));
    let (cases, seed) = (number("FUZZ_CASES", cases), number("FUZZ_SEED", 1));
    for case in 0..cases {
        let mut random = Pcg64Mcg::seed_from_u64(seed ^ case << 20);
        let mut data = kept[random.random_range(0..kept.len())].clone();
        for _ in 0..random.random_range(1..8) {
            damage(&mut data, &mut random);
        }
        let outcome = std::panic::catch_unwind(|| target(&data));
        let shown = data[..data.len().min(2000)].escape_ascii();
        assert!(outcome.is_ok(), "{name}: FUZZ_SEED={seed}, case {case}: {shown}");
    }
}

fn damage(data: &mut Vec<u8>, random: &mut Pcg64Mcg) {
    if data.is_empty() {
        return;
    }
    let at = random.random_range(0..data.len());
    let digits = |byte: &u8| byte.is_ascii_digit();
    match random.random_range(0..7) {
        0 => data[at] = random.random(),
        1 => data[at] ^= 1 << random.random_range(0..8),
        2 => data.truncate(at),
        3 => drop(data.remove(at)),
        4 => data.insert(at, b"09-.:{}[],\" \nafx"[random.random_range(0..16)]),
        // Replaces the next number by another one.
        _ => {
            let Some(start) = data[at..].iter().position(digits).map(|next| at + next) else {
                return;
            };
            let length = data[start..].iter().take_while(|byte| digits(byte)).count();
            let edges =
                ["0", "1", "65536", "4294967295", "4294967296", "18446744073709551615", "1e400"];
            let number = edges[random.random_range(0..edges.len())].bytes();
            data.splice(start..start + length, number);
        }
    }
}

#[test]
fn saved() {
    run("doctor_saved", entries::saved, 1500);
}

#[test]
fn text() {
    run("doctor_text", entries::text, 20_000);
}

#[test]
fn answer() {
    run("doctor_answer", entries::answer, 20_000);
}

/// The seeds are valid.
#[test]
fn answers_are_understood() {
    let clamp = ruleset::nft_clamp(&rule()).unwrap();
    assert_eq!((clamp.mss, clamp.chain.as_str()), (Some(1360), "forward"));
    assert!(clamp.output.unwrap().is("nic0", 9));
    assert_eq!(netstate::openvswitch::kernel_datapath(&datapath()).unwrap().lost, 1);
    let table = sys::xtables::Table { hooks: [None; 5], entries: table()[5..].to_vec() };
    let clamps = ruleset::table_clamps(false, "mangle", &table);
    assert_eq!((clamps.len(), clamps[0].mss), (1, None));
    assert!(!clamps[0].output.as_ref().unwrap().is("nic1", 9));
}
