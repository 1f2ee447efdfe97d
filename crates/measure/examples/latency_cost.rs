//! Measures the cost of timing: recording a latency, a histogram for the results, and a schedule.
//! The schedule's cost is given as rates of `tcp_rr` and `udp_rr` over a private veth pair, in
//! random order within each round. A schedule far above the path's capacity keeps as many requests
//! in flight as a closed loop may have, so the two differ only in the schedule (and, with one in
//! flight, in waiting by `ppoll` instead of in `recv`). "closed loop again" is the noise floor.
//!
//! `cargo run --release -p overlane-measure --example latency_cost [ROUNDS [SECONDS]]`,
//! as root.

use std::error::Error;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use load::{Ends, Load, Workload, bins, run};
use results::stats::{block_order, ratio_interval};
use testbed::{Offload, Wire};

const PORT: u16 = 5302;
const CONFIDENCE: f64 = 0.95;
/// Operations of a micro-benchmark.
const TIMES: u32 = 2_000_000;
/// More than any path can carry, requests/s.
const TOO_MANY: f64 = 1e7;

const LOOPS: [&str; 3] = ["closed loop", "closed loop again", "schedule"];

fn ns_each(mut f: impl FnMut(u32)) -> f64 {
    let begun = Instant::now();
    for i in 0..TIMES {
        f(i);
    }
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let rounds: u32 = arguments.next().map_or(Ok(12), |word| word.parse())?;
    let seconds: f64 = arguments.next().map_or(Ok(0.5), |word| word.parse())?;

    // Like the engine's: 1 ns to 60 s, three digits. Latencies of 10 us to 20 ms, most of them
    // short.
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    let latency = |i: u32| {
        let mixed = u64::from(i.wrapping_mul(2_654_435_761) >> 12);
        10_000 + (mixed % 9_000) + if i.is_multiple_of(500) { mixed * 19 } else { 0 }
    };
    println!(
        "reading the clock:   {:6.1} ns",
        ns_each(|_| {
            black_box(Instant::now());
        })
    );
    let record = ns_each(|i| histogram.saturating_record(black_box(latency(i))));
    let without = ns_each(|i| {
        black_box(latency(i));
    });
    println!("recording a latency: {:6.1} ns", record - without);
    let begun = Instant::now();
    let kept = bins(&histogram);
    println!(
        "a sample's {} latencies in {} bins for the results: {:.0} us",
        histogram.len(),
        kept.len(),
        begun.elapsed().as_secs_f64() * 1e6
    );

    let [client, server] = Wire { mtu: 1500, offload: Offload::Full }.hosts()?;
    let address = SocketAddr::from((Wire::B, PORT));
    let ends =
        Ends { client: client.netns(), server: server.netns(), target: address, listen: address };
    let stop = AtomicBool::new(false);
    let cpus = sys::affinity::of_this_thread()?;
    for (workload, outstanding) in
        [(Workload::TcpRr, 1), (Workload::TcpRr, 16), (Workload::UdpRr, 1), (Workload::UdpRr, 16)]
    {
        let closed = Load {
            message_bytes: 64,
            outstanding,
            // No warm-up: its overdue requests would be sent first.
            warmup: Duration::ZERO,
            duration: Duration::from_secs_f64(seconds),
            client_cpus: cpus.first().copied().into_iter().collect(),
            server_cpus: cpus.get(1).or(cpus.first()).copied().into_iter().collect(),
            ..Load::new(workload)
        };
        let mut ratios = vec![Vec::new(); LOOPS.len()];
        let mut per_s = Vec::new();
        let mut starved = 0;
        for round in 0..rounds {
            let mut rates = [0.0; LOOPS.len()];
            for which in block_order(1, round, LOOPS.len()) {
                let transactions_per_s = (which == 2).then_some(TOO_MANY);
                let load = Load { transactions_per_s, ..closed.clone() };
                match run(&load, &ends, &mut (), &stop) {
                    Ok(measured) => rates[which] = measured.rate(),
                    Err(e) => eprintln!("round {round}, {}: {e}", LOOPS[which]),
                }
            }
            // On an overloaded machine, a sample may carry nothing, or fail.
            if rates.contains(&0.0) {
                starved += 1;
                continue;
            }
            per_s.push(rates[0]);
            for (ratios, rate) in ratios.iter_mut().zip(rates) {
                ratios.push(rate / rates[0]);
            }
        }
        let median = results::stats::median(&per_s).unwrap_or(0.0);
        println!(
            "{workload}, 64 B, {outstanding} under way, {rounds} rounds of {seconds} s, {starved} \
             without work left out; closed loop {median:.0}/s:"
        );
        for (name, ratios) in LOOPS.iter().zip(&ratios).skip(1) {
            let ratio = ratio_interval(ratios, CONFIDENCE)?;
            println!(
                "  {name:<18} {:.3} of the closed loop's rate ({:.3} to {:.3}): {:+.0} ns each",
                ratio.median,
                ratio.low,
                ratio.high,
                (1.0 / ratio.median - 1.0) * 1e9 / median
            );
        }
    }
    Ok(())
}
