//! How long after a change of the kernel's state the last packet leaves as
//! before: the time from the call that changes to the last such frame on the
//! wire, for each kind of change. It includes the call itself, and for the
//! nftables rule what `nft` takes to read it.
//!
//! `cargo run --release -p overlane-accel --example stale_window [ROUNDS]`, as
//! root. Ends with 1 where a median is above 10 ms, the bound.

use std::process::ExitCode;
use std::time::Duration;

#[path = "../tests/fastpath/change.rs"]
mod change;
#[path = "../tests/fastpath/pair.rs"]
#[allow(dead_code)]
mod pair;

const BOUND: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    if !pair::privileged() {
        return ExitCode::FAILURE;
    }
    let rounds: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10);
    println!("last packet by the old way, ms after the change; {rounds} rounds");
    println!("{:<28} {:>8} {:>8} {:>8}", "change", "smallest", "median", "largest");
    let mut kept = true;
    for change in change::CHANGES {
        let mut windows: Vec<Duration> = (0..rounds).map(|_| change.window()).collect();
        windows.sort();
        let [smallest, median, largest] =
            [0, rounds / 2, rounds - 1].map(|at| windows[at].as_secs_f64() * 1e3);
        println!("{:<28} {smallest:>8.2} {median:>8.2} {largest:>8.2}", change.name);
        kept &= windows[rounds / 2] <= BOUND;
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
