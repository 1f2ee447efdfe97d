//! Measures the cost of the samplers for the observed traffic: `tcp_rr` and 64-byte `udp_stream`
//! over a private veth pair, with all samplers and with none, in random order within each round.
//! Prints the median ratio to "none" within a round, with its interval; "none again" is the noise
//! floor.
//!
//! `cargo run --release -p overlane-measure --example sampler_overhead [ROUNDS [SECONDS]]`,
//! as root.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use load::{Ends, Load, Watch, Workload};
use measure::sampler::{
    Machine, MachineSnapshot, Namespace, NamespaceSnapshot, Result as SamplerResult,
};
use results::stats::{block_order, ratio_interval};
use sys::netns::NetNs;
use testbed::{Offload, Wire};

const PORT: u16 = 5201;
const CONFIDENCE: f64 = 0.95;
const READINGS: usize = 51;

const SAMPLINGS: [&str; 4] = ["none", "none again", "tick clock", "exact clock"];

/// All samplers of a sample, as the runner uses them.
struct Samplers {
    machine: Machine,
    namespaces: Vec<Namespace>,
    before: Option<SamplerResult<(Vec<NamespaceSnapshot>, MachineSnapshot)>>,
    after: Option<SamplerResult<(MachineSnapshot, Vec<NamespaceSnapshot>)>>,
}

impl Samplers {
    fn open(exact: bool, hosts: &[&NetNs]) -> SamplerResult<Samplers> {
        let open = |netns: &&NetNs| Namespace::open_in(netns, "host");
        Ok(Samplers {
            machine: Machine::open(exact)?,
            namespaces: hosts.iter().map(open).collect::<SamplerResult<_>>()?,
            before: None,
            after: None,
        })
    }

    fn snapshots(&self) -> SamplerResult<Vec<NamespaceSnapshot>> {
        self.namespaces.iter().map(Namespace::snapshot).collect()
    }

    /// Both readings must have succeeded, otherwise there was no cost.
    fn check(self) -> SamplerResult<()> {
        if let (Some(before), Some(after)) = (self.before, self.after) {
            let _ = self.machine.difference(&before?.1, &after?.0);
        }
        Ok(())
    }
}

impl Watch for Samplers {
    fn begin(&mut self) {
        self.before = Some(self.snapshots().and_then(|s| Ok((s, self.machine.begin()?))));
    }

    fn end(&mut self) {
        self.after = Some(self.machine.end().and_then(|m| Ok((m, self.snapshots()?))));
    }
}

fn timed<T>(f: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = f();
    (start.elapsed(), result)
}

fn median(reading: impl Fn() -> SamplerResult<()>) -> SamplerResult<Duration> {
    let mut times = Vec::with_capacity(READINGS);
    for _ in 0..READINGS {
        let (time, result) = timed(&reading);
        result?;
        times.push(time);
    }
    times.sort_unstable();
    Ok(times[READINGS / 2])
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let rounds: u32 = arguments.next().map_or(Ok(12), |word| word.parse())?;
    let seconds: f64 = arguments.next().map_or(Ok(0.5), |word| word.parse())?;

    let [client, server] = Wire { mtu: 1500, offload: Offload::Full }.hosts()?;
    let (client, server) = (client.netns(), server.netns());
    let address = SocketAddr::from((Wire::B, PORT));
    let ends = Ends { client, server, target: address, listen: address };
    let stop = AtomicBool::new(false);

    // Dropped at the block's end: loaded programs add to every round's cost, even if unread.
    {
        let (opening, machine) = timed(|| Machine::open(true));
        let machine = machine?;
        if let Some(reason) = machine.clock_reason() {
            return Err(format!("there is no exact clock to compare with: {reason}").into());
        }
        let namespace = Namespace::open_in(client, "a")?;
        println!("opening the machine sampler: {opening:?}; median of {READINGS} readings:");
        println!("  machine, begin: {:?}", median(|| machine.begin().map(drop))?);
        println!("  machine, end:   {:?}", median(|| machine.end().map(drop))?);
        println!("  namespace:      {:?}", median(|| namespace.snapshot().map(drop))?);
    }

    let cpus = sys::affinity::of_this_thread()?;
    for workload in [Workload::TcpRr, Workload::UdpStream] {
        let load = Load {
            duration: Duration::from_secs_f64(seconds),
            client_cpus: cpus.first().copied().into_iter().collect(),
            server_cpus: cpus.get(1).or(cpus.first()).copied().into_iter().collect(),
            ..Load::new(workload)
        };
        let mut ratios = vec![Vec::new(); SAMPLINGS.len()];
        let mut starved = 0;
        for round in 0..rounds {
            let mut rates = [0.0; SAMPLINGS.len()];
            for sampling in block_order(1, round, SAMPLINGS.len()) {
                let measured = if sampling < 2 {
                    load::run(&load, &ends, &mut (), &stop)
                } else {
                    let mut samplers = Samplers::open(sampling == 3, &[client, server])?;
                    let measured = load::run(&load, &ends, &mut samplers, &stop);
                    samplers.check()?;
                    measured
                };
                match measured {
                    Ok(measured) => rates[sampling] = measured.rate(),
                    Err(e) => eprintln!("round {round}, {}: {e}", SAMPLINGS[sampling]),
                }
            }
            // On an overloaded machine, a sample may carry nothing, or fail.
            if rates.contains(&0.0) {
                starved += 1;
                continue;
            }
            for (ratios, rate) in ratios.iter_mut().zip(rates) {
                ratios.push(rate / rates[0]);
            }
        }
        println!(
            "{workload}, {} B, {rounds} rounds of {seconds} s, {starved} without work left out:",
            load.message_bytes
        );
        for (name, ratios) in SAMPLINGS.iter().zip(&ratios).skip(1) {
            let ratio = ratio_interval(ratios, CONFIDENCE)?;
            println!(
                "  {name:<12} {:.3} of none ({:.3} to {:.3})",
                ratio.median, ratio.low, ratio.high
            );
        }
    }
    Ok(())
}
