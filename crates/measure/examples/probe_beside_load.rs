//! Cost of a probe for the traffic beside it: `tcp_stream` over a private veth pair, alone and
//! beside probes that follow each other without a pause, in random order within each round. Prints
//! the median ratio to "alone" within a round, with its interval; "alone again" is the noise floor.
//!
//! `cargo run --release -p overlane-measure --example probe_beside_load [ROUNDS [SECONDS [MBIT]]]`,
//! as root. Both ends and the probe share this machine's CPUs, unlike on two machines. With MBIT a
//! shaper (tbf) limits the wire to that many Mbit/s in each direction, as a NIC does; without it the
//! CPUs are the limit, and the probe's CPU time is what the stream loses.

use std::error::Error;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use load::{Ends, Load, Workload};
use measure::path_netns::PathNetns;
use measure::path_probe::{Access, Extent, report};
use measure::path_under_test::{PathUnderTest, ServerEnd};
use results::Profile;
use results::stats::{block_order, ratio_interval};
use testbed::{Host, NIC, Offload, Wire};

const PORT: u16 = 5301;
const CONFIDENCE: f64 = 0.95;
/// Default rate of `overlane probe`, bytes/s.
const RATE: u32 = 1_000_000;
const KINDS: [&str; 3] = ["alone", "alone again", "beside a probe"];

/// Sockets as `overlane probe` and its server use them.
fn giving_way() -> Access {
    Access::open().giving_way()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let rounds: u32 = arguments.next().map_or(Ok(20), |word| word.parse())?;
    let seconds: f64 = arguments.next().map_or(Ok(3.0), |word| word.parse())?;

    let limit: Option<u32> = arguments.next().map(|word| word.parse()).transpose()?;

    let hosts = Wire { mtu: 1500, offload: Offload::Full }.hosts()?;
    for host in &hosts {
        if let Some(mbit) = limit {
            let rate = format!("{mbit}mbit");
            let shaper = ["qdisc", "add", "dev", NIC, "root", "tbf", "rate", &rate];
            // The burst holds several GSO packets, so that the shaper cuts none.
            host.run(Command::new("tc").args(shaper).args(["burst", "256k", "latency", "20ms"]))?;
        }
    }
    let address = SocketAddr::from((Wire::B, PORT));
    let [a, b] = &hosts;
    let place =
        |host: &Host| PathNetns { name: host.name().to_owned(), netns: Arc::clone(host.netns()) };
    // The probe's own datagrams need another port than the load.
    let probing = SocketAddr::from((Wire::B, PORT + 1));
    let path = PathUnderTest {
        mode: "pair".to_owned(),
        offload: Profile::Full,
        mtu: 1500,
        client: 0,
        server: ServerEnd::Here { place: 1, target: probing, listen: probing },
        hops: Vec::new(),
        places: vec![place(a), place(b)],
        datagram_warmup: Duration::ZERO,
        damage: None,
    };
    let ends = Ends { client: a.netns(), server: b.netns(), target: address, listen: address };
    let load =
        Load { duration: Duration::from_secs_f64(seconds), ..Load::new(Workload::TcpStream) };
    let never = AtomicBool::new(false);
    let (probes, bytes) = (AtomicU32::new(0), AtomicU64::new(0));
    let mut ratios = vec![Vec::new(); KINDS.len()];
    for round in 0..rounds {
        let mut rates = [0.0; KINDS.len()];
        for kind in block_order(1, round, KINDS.len()) {
            let done = AtomicBool::new(kind < 2);
            rates[kind] = std::thread::scope(|threads| {
                threads.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        match report(&path, giving_way, Extent::Quick, RATE, &done) {
                            Ok(report) if report.has_findings() => {
                                eprintln!("round {round}: false finding: {:?}", report.bad);
                            }
                            Ok(report) => {
                                probes.fetch_add(1, Ordering::Relaxed);
                                bytes.fetch_add(report.bytes, Ordering::Relaxed);
                            }
                            Err(_) if done.load(Ordering::Relaxed) => {}
                            Err(error) => eprintln!("round {round}: {error}"),
                        }
                    }
                });
                let measured = load::run(&load, &ends, &mut (), &never);
                done.store(true, Ordering::Relaxed);
                measured.map(|measured| measured.rate())
            })?;
        }
        for (ratios, rate) in ratios.iter_mut().zip(rates) {
            ratios.push(rate / rates[0]);
        }
    }
    println!(
        "tcp_stream, {}, {rounds} rounds of {seconds} s; {} whole probes, {:.2} MB each:",
        limit.map_or("wire without limit".to_owned(), |mbit| format!("wire of {mbit} Mbit/s")),
        probes.load(Ordering::Relaxed),
        bytes.load(Ordering::Relaxed) as f64
            / 1e6
            / f64::from(probes.load(Ordering::Relaxed).max(1))
    );
    for (name, ratios) in KINDS.iter().zip(&ratios).skip(1) {
        let ratio = ratio_interval(ratios, CONFIDENCE)?;
        println!(
            "  {name:<14} {:.3} of alone ({:.3} to {:.3})",
            ratio.median, ratio.low, ratio.high
        );
    }
    Ok(())
}
