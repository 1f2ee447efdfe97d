//! The fuzz target `control` (`fuzz/`) for a bounded number of cases: messages
//! with a few bytes changed. `FUZZ_CASES` changes the number, `FUZZ_SEED` the
//! sequence.

#[path = "../../../../fuzz/src/control.rs"]
mod entry;

use channel::Service;
use channel::handshake::Hello;
use channel::message::emit;
use load::{FlowCount, Load, Phase, Workload};
use measure::remote::message::{CountedAt, LoadAsked, Reply, Request};
use rand::{RngExt, SeedableRng};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn messages() -> Vec<Vec<u8>> {
    let start = |workload| Request::Start(LoadAsked::of(&Load::new(workload)));
    let flow = FlowCount { units: 1, bytes: 2, sent: 3, emptied: 4 };
    let most = FlowCount { units: u64::MAX, ..FlowCount::default() };
    let counted = CountedAt { at_ns: u64::MAX, flows: vec![flow, most] };
    let mut messages = vec![
        Hello::fresh(Service::Measure, true).emit().to_vec(),
        emit(&Request::Describe),
        emit(&Request::Idle { millis: 500 }),
        emit(&Request::TurnTo(Phase::Measure)),
        emit(&Reply::Counted(counted)),
        emit(&Reply::Started { port: 5211, token: u64::MAX }),
        emit(&Reply::Idle(0.25)),
        emit(&Reply::Refused("no".to_owned())),
    ];
    messages.extend(Workload::ALL.map(|workload| emit(&start(workload))));
    messages
}

#[test]
fn damaged_messages() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/control");
    for kept in std::fs::read_dir(corpus).into_iter().flatten() {
        entry::control(&std::fs::read(kept.unwrap().path()).unwrap());
    }
    let (cases, seed) = (number("FUZZ_CASES", 3000), number("FUZZ_SEED", 1));
    let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
    let messages = messages();
    for case in 0..cases {
        let mut data = messages[random.random_range(0..messages.len())].clone();
        for _ in 0..random.random_range(0..5) {
            let at = random.random_range(0..data.len().max(1));
            match random.random_range(0..4) {
                0 if at < data.len() => data[at] = random.random(),
                // Characters of JSON.
                1 if at < data.len() => data[at] = b"09-eE.\"{}[],:nul"[random.random_range(0..16)],
                2 => data.truncate(at),
                _ => data.insert(at, b"0123456789"[random.random_range(0..10)]),
            }
        }
        let outcome = std::panic::catch_unwind(|| entry::control(&data));
        assert!(outcome.is_ok(), "FUZZ_SEED={seed}, case {case}: {}", data.escape_ascii());
    }
}
