//! Runs `overlane vtep` and `overlane tapbridge` under mixed traffic with malformed packets, while
//! devices, peers and configurations change: `bench/run soak`. By default for 20 seconds.
//!
//! - `OVERLANE_SOAK_SECONDS`: the duration. `OVERLANE_SOAK_SEED`: the random seed, which is
//!   printed.
//! - Checked throughout: packets arrive unchanged; received = forwarded + answered + dropped, in
//!   both directions; the kernel's counters of the TAPs agree; resident memory, descriptors and
//!   threads of the program stay constant; it stays alive.

use std::time::{Duration, Instant};

use noise::Random;
use test_support::{need, require};
use tunnel::{Era, Soaked};

mod bridge;
use crate::foreground;
mod noise;
use crate::traffic;
mod tunnel;
mod underlay;
mod watched;

/// Interval between events. The traffic uses at most half a CPU for most of it.
const STEP: Duration = Duration::from_millis(1500);

/// Interval between lines of progress.
const PROGRESS: Duration = Duration::from_secs(60);

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: wanted a number")))
}

/// The requested seed, or a random one.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    number("OVERLANE_SOAK_SEED").unwrap_or(now.as_secs())
}

/// CPU seconds of this process, which generates the traffic.
fn own_cpu() -> f64 {
    watched::cpu_seconds(std::process::id())
}

#[test]
fn the_tunnel_holds() {
    require!(need::tun());
    let duration = Duration::from_secs(number("OVERLANE_SOAK_SECONDS").unwrap_or(20));
    let seed = seed();
    let mut random = Random::new(seed);
    let start = Instant::now();
    eprintln!("vtep: {} s, OVERLANE_SOAK_SEED={seed}", duration.as_secs());
    let mut soaked = Soaked::default();
    for (index, era) in Era::ALL.into_iter().enumerate() {
        let end = start + duration * (index as u32 + 1) / Era::ALL.len() as u32;
        tunnel::live(era, index, end, &mut random, &mut soaked);
    }
    let wall = start.elapsed().as_secs_f64();
    eprintln!("vtep: {wall:.0} s, {soaked}; traffic's own CPU {:.1} s", own_cpu());
    assert!(soaked.received > 1000 && soaked.dropped.len() > 3, "{soaked}");
}

#[test]
fn the_bridge_holds() {
    require!(need::tun());
    let duration = Duration::from_secs(number("OVERLANE_SOAK_SECONDS").unwrap_or(20));
    let seed = seed();
    eprintln!("tapbridge: {} s, OVERLANE_SOAK_SEED={seed}", duration.as_secs());
    bridge::live(duration, &mut Random::new(seed));
}
