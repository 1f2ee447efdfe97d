//! Measures how long the fast path uses outdated state: the time from the start of the call that
//! changes the kernel's state to the last frame on the wire that left as before, for each kind of
//! change. The call itself may be long (a device that goes down waits for its users, a rule for
//! `nft`), so its median and the largest time after its end are printed, too.
//!
//! `cargo run -p overlane-accel --example stale_window [ROUNDS]`, as root. Ends with 1 if a median
//! from the start is above 10 ms, the bound.

use std::process::ExitCode;
use std::time::Duration;

#[path = "../tests/root/fastpath/change.rs"]
mod change;
#[path = "../tests/root/fastpath/pair.rs"]
#[allow(dead_code)]
mod pair;
#[path = "../tests/root/fastpath/sandbox.rs"]
#[allow(dead_code)]
mod sandbox;
#[path = "../tests/root/fastpath/underlay.rs"]
#[allow(dead_code)]
mod underlay;

const BOUND: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    if let Err(missing) = test_support::need::root() {
        eprintln!("{missing}");
        return ExitCode::FAILURE;
    }
    let rounds: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10);
    println!("last packet by the old way, ms after the change began; {rounds} rounds");
    let heads = ["smallest", "median", "largest", "call", "after it"];
    println!("{:<28}{}", "change", heads.map(|head| format!(" {head:>8}")).concat());
    let mut kept = true;
    for change in change::CHANGES {
        let windows: Vec<change::Window> = (0..rounds).map(|_| change.window()).collect();
        let sorted = |of: fn(&change::Window) -> Duration| {
            let mut times: Vec<Duration> = windows.iter().map(of).collect();
            times.sort();
            times
        };
        let (last, call) = (sorted(|window| window.last), sorted(|window| window.call));
        let left = sorted(|window| window.last.saturating_sub(window.call));
        let shown =
            [last[0], last[rounds / 2], last[rounds - 1], call[rounds / 2], left[rounds - 1]];
        let shown = shown.map(|time| format!(" {:>8.2}", time.as_secs_f64() * 1e3));
        println!("{:<28}{}", change.name, shown.concat());
        kept &= last[rounds / 2] <= BOUND;
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
