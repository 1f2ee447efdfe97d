//! Prints a table of faults of a simulated network card, and how often a probe finds verdict,
//! direction and setting. Needs root: `mangler_table [TRIES [FAULT...]]`; FAULT is the name of a row.

#[path = "../tests/root/bed.rs"]
#[allow(dead_code)]
mod bed;
#[path = "../tests/root/cases.rs"]
#[allow(dead_code)]
mod cases;
#[path = "../tests/root/translated.rs"]
mod translated;

use std::process::ExitCode;

use bed::Bed;
use cases::{CASES, Case, Wanted};
use probe::report::Direction;
use translated::Translated;

/// Name of the row of a real fault, of this kernel.
const TRANSLATED: &str = "this kernel: NAT of VXLAN with outer checksums";

fn main() -> ExitCode {
    let tries = match std::env::args().nth(1).map(|text| text.parse::<u32>()) {
        None => 1,
        Some(Ok(tries)) => tries,
        Some(Err(error)) => {
            eprintln!("TRIES: {error}");
            return ExitCode::from(2);
        }
    };
    println!("| fault | direction | verdict | setting | right |");
    println!("| --- | --- | --- | --- | ---: |");
    let mut all = true;
    let names: Vec<String> = std::env::args().skip(2).collect();
    let chosen = |case: &&Case| names.is_empty() || names.iter().any(|name| name == case.name);
    let journal = match tempfile::tempdir() {
        Ok(journal) => journal,
        Err(error) => {
            eprintln!("journal: {error}");
            return ExitCode::FAILURE;
        }
    };
    for case in CASES.iter().filter(chosen) {
        let mut right = 0;
        for _ in 0..tries {
            let bed = Bed::new(false);
            bed.mangle(case.mangled());
            let searched = (case.fault != bed::Fault::Rare).then_some(journal.path());
            match case.check(&bed.probe(&case.options(), searched)) {
                Ok(()) => right += 1,
                Err(wrong) => eprintln!("{wrong}"),
            }
        }
        let (verdict, setting) = match case.wanted {
            Wanted::Clean => ("intact", "none"),
            Wanted::Bad(verdict, setting) => (verdict, setting),
            Wanted::Path(verdict) => (verdict, "none: the path"),
            Wanted::BlackHole => ("black hole", "none: the path"),
        };
        let way = if case.way == Direction::Out { "out" } else { "back" };
        println!("| {} | {way} | {verdict} | {setting} | {right}/{tries} |", case.name);
        all &= right == tries;
    }
    if names.is_empty() || names.iter().any(|name| name == TRANSLATED) {
        let mut right = 0;
        for _ in 0..tries {
            let checked = Translated::new()
                .map_err(|error| error.to_string())
                .and_then(|bed| translated::check(&bed.probe(journal.path())));
            match checked {
                Ok(()) => right += 1,
                Err(wrong) => eprintln!("{TRANSLATED}: {wrong}"),
            }
        }
        println!("| {TRANSLATED} | out | corrupted | tx-checksum-ip-generic | {right}/{tries} |");
        all &= right == tries;
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
