//! Measures the cost of mirroring by the number of forwarding entries: the time until N new entries
//! are mirrored, the time until one that moves among them is mirrored, the number of moves during
//! which all other addresses stayed in force, CPU time at rest, and memory.
//!
//! `cargo run --release -p overlane-accel --example daemon_cost [ENTRIES]`, as root.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use accel::{Accel, Wanted};
use nix::time::{ClockId, clock_gettime};
use testbed::Offload;

#[path = "../tests/root/fastpath/pair.rs"]
#[allow(dead_code)]
mod pair;
#[path = "../tests/root/fastpath/sandbox.rs"]
#[allow(dead_code)]
mod sandbox;
#[path = "../tests/root/fastpath/underlay.rs"]
#[allow(dead_code)]
mod underlay;

use pair::{DEVICE, Pair, address, bridge, entry};

const MOVES: usize = 20;
const REST: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    if let Err(missing) = test_support::need::root() {
        eprintln!("{missing}");
        return ExitCode::FAILURE;
    }
    let most: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10_000);
    println!(
        "{:>7} {:>10} {:>11} {:>9} {:>8} {:>6} {:>8} {:>8}",
        "entries",
        "commands s",
        "followed ms",
        "a move ms",
        "alone",
        "CPU %",
        "RSS KiB",
        "maps KiB"
    );
    for entries in [0, most / 10, most] {
        let pair = Pair::new(Offload::Full, true);
        let accel = Accel::start(pair.a.netns(), Wanted::All).unwrap();
        settled(&accel);
        // Each address has one entry at the VXLAN device and one at the bridge.
        let begin = Instant::now();
        let known = |at| {
            let at_bridge = format!("fdb add {} dev {DEVICE} master static\n", address(at));
            entry("add", at, "10.0.0.2") + &at_bridge
        };
        bridge(&pair.a, &(0..entries).map(known).collect::<String>());
        let commands = begin.elapsed();
        let begin = Instant::now();
        wait(&accel, |status| status.entries >= entries && status.generation & 1 == 0);
        let followed = begin.elapsed();
        let (mut moves, mut alone) = (Vec::<Duration>::new(), 0);
        for round in 0..if entries > 0 { MOVES } else { 0 } {
            settled(&accel);
            let before = accel.status();
            let remote = if round % 2 == 0 { "10.0.0.3" } else { "10.0.0.2" };
            let change = entry("replace", 0, remote);
            let begin = Instant::now();
            bridge(&pair.a, &change);
            wait(&accel, |status| {
                let anew = status.generation > before.generation;
                status.generation & 1 == 0 && (anew || status.followed > before.followed)
            });
            moves.push(begin.elapsed());
            alone += usize::from(accel.status().generation == before.generation);
        }
        moves.sort();
        let moved = moves.get(moves.len() / 2).copied().unwrap_or_default();
        settled(&accel);
        let before = cpu();
        std::thread::sleep(REST);
        let rest = (cpu() - before).as_secs_f64() / REST.as_secs_f64();
        println!(
            "{entries:>7} {:>10.2} {:>11.1} {:>9.1} {:>8} {:>6.2} {:>8} {:>8}",
            commands.as_secs_f64(),
            followed.as_secs_f64() * 1e3,
            moved.as_secs_f64() * 1e3,
            format!("{alone}/{}", moves.len()),
            rest * 1e2,
            kib("/proc/self/status", "VmRSS:"),
            maps() / 1024,
        );
    }
    ExitCode::SUCCESS
}

fn wait(accel: &Accel, is: impl Fn(&accel::Status) -> bool) {
    let begin = Instant::now();
    while !is(&accel.status()) {
        assert!(begin.elapsed() < pair::LIMIT * 3, "{:#?}", accel.status());
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The generation once nothing has changed for a while.
fn settled(accel: &Accel) -> u64 {
    loop {
        let before = accel.status();
        std::thread::sleep(Duration::from_millis(200));
        let now = accel.status();
        if now.generation == before.generation && now.generation & 1 == 0 {
            return now.generation;
        }
    }
}

/// CPU time of this process.
fn cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

fn kib(path: &str, key: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(key));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Memory of this process's BPF maps, bytes, as the kernel counts it. A map has
/// several descriptors.
fn maps() -> u64 {
    let mut seen = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fdinfo").into_iter().flatten().flatten() {
        let path = entry.path();
        let path = path.to_string_lossy();
        let id = kib(&path, "map_id:");
        if id > 0 {
            seen.insert(id, kib(&path, "memlock:"));
        }
    }
    seen.values().sum()
}
