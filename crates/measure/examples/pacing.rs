//! Measures the cost of pacing a datagram, and its evenness: 64-byte `udp_stream` over a private
//! veth pair.
//!
//! Cost: CPU time of the whole machine per datagram, paced against unpaced, in random order within
//! each round; the median ratio within a round with its interval. "above" is paced at three times
//! the path's capacity, so that the sender never waits and the whole difference is the clock, the
//! record of lateness and the smaller batches. "below" is paced at 90% of it, where busy-waiting
//! for the next datagram adds to that.
//!
//! Evenness: at several rates, how late datagrams were handed to the kernel.
//!
//! `cargo run --release -p overlane-measure --example pacing [ROUNDS [SECONDS]]`,
//! as root.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use load::{Ends, Load, Measured, Watch, Workload, run};
use measure::sampler::{Machine, MachineSample, MachineSnapshot, Result as SamplerResult};
use results::stats::{block_order, median, ratio_interval};
use testbed::{Offload, Wire};

const PORT: u16 = 5201;
const CONFIDENCE: f64 = 0.95;
/// Rates of the evenness, datagrams/s.
const RATES: [u64; 4] = [1_000, 10_000, 100_000, 300_000];

/// The machine's CPU time over the measured interval.
struct Cpu<'a> {
    machine: &'a Machine,
    before: Option<SamplerResult<MachineSnapshot>>,
    after: Option<SamplerResult<MachineSnapshot>>,
}

impl Watch for Cpu<'_> {
    fn begin(&mut self) {
        self.before = Some(self.machine.begin());
    }

    fn end(&mut self) {
        self.after = Some(self.machine.end());
    }
}

fn measured(
    load: &Load,
    ends: Ends<'_>,
    machine: &Machine,
) -> Result<(Measured, MachineSample), Box<dyn Error>> {
    let mut cpu = Cpu { machine, before: None, after: None };
    let measured = run(load, &ends, &mut cpu, &AtomicBool::new(false))?;
    let before = cpu.before.ok_or("the engine skipped the interval")??;
    let after = cpu.after.ok_or("the engine skipped the interval")??;
    Ok((measured, machine.difference(&before, &after)))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let rounds: u32 = arguments.next().map_or(Ok(12), |word| word.parse())?;
    let seconds: f64 = arguments.next().map_or(Ok(0.5), |word| word.parse())?;

    let [client, server] = Wire { mtu: 1500, offload: Offload::Full }.hosts()?;
    let cpus = sys::affinity::of_this_thread()?;
    let (sending, receiving) = (cpus[0], cpus[cpus.len() - 1]);
    client.steer(testbed::NIC, &[sending])?;
    server.steer(testbed::NIC, &[receiving])?;
    let address = SocketAddr::from((Wire::B, PORT));
    let ends =
        Ends { client: client.netns(), server: server.netns(), target: address, listen: address };
    let machine = Machine::open(true)?;
    let load = Load {
        duration: Duration::from_secs_f64(seconds),
        client_cpus: vec![sending],
        server_cpus: vec![receiving],
        ..Load::new(Workload::UdpStream)
    };
    let (most, _) = measured(&load, ends, &machine)?;
    let most = most.sent_units as f64 / most.seconds;
    println!(
        "64-byte datagrams, client on CPU {sending}, server on CPU {receiving}, unpaced {most:.0}/s, CPU clock {}",
        machine.clock().name()
    );

    println!("\npaced/s     sent/s     late µs: p50      p99      max   received   CPUs busy");
    for rate in RATES {
        let paced = Load { datagrams_per_s: Some(rate), ..load.clone() };
        let (measured, cpu) = measured(&paced, ends, &machine)?;
        let pace = measured.pace.ok_or("no schedule")?;
        let datagrams = measured.datagrams.ok_or("no datagrams")?;
        println!(
            "{rate:>7} {:>10.0} {:>16.1} {:>8.1} {:>8.1} {:>9.3}% {:>10.0}%",
            pace.sent_per_s,
            pace.late_p50_us,
            pace.late_p99_us,
            pace.late_max_us,
            datagrams.received as f64 / datagrams.sent.max(1) as f64 * 100.0,
            cpu.busy_share() * 100.0,
        );
    }

    let variants: [(&str, Option<f64>); 4] =
        [("unpaced", None), ("unpaced again", None), ("above", Some(3.0)), ("below", Some(0.9))];
    // By variant, one entry a round: CPU µs a datagram sent, datagrams/s sent.
    let mut demand = vec![Vec::new(); variants.len()];
    let mut rate = vec![Vec::new(); variants.len()];
    for round in 0..rounds {
        for variant in block_order(u64::from(round), round, variants.len()) {
            let datagrams_per_s = variants[variant].1.map(|share| (most * share) as u64);
            let paced = Load { datagrams_per_s, ..load.clone() };
            let (measured, sample) = measured(&paced, ends, &machine)?;
            let cpu = sample.cpu;
            let busy = cpu.user + cpu.system + cpu.softirq + cpu.irq;
            demand[variant].push(busy * 1e6 / measured.sent_units.max(1) as f64);
            rate[variant].push(measured.sent_units as f64 / measured.seconds);
        }
    }
    println!("\n{rounds} rounds of {seconds} s     sent/s   CPU µs a datagram   ratio to unpaced");
    for (at, (name, _)) in variants.iter().enumerate() {
        let ratios: Vec<f64> =
            demand[at].iter().zip(&demand[0]).map(|(own, base)| own / base).collect();
        let ratio = match ratio_interval(&ratios, CONFIDENCE) {
            Ok(interval) if at > 0 => {
                format!("{:.3} ({:.3}–{:.3})", interval.median, interval.low, interval.high)
            }
            Ok(_) => "1".to_owned(),
            Err(error) => error.to_string(),
        };
        let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
        println!("{name:<18} {:>10.0} {:>19.3}   {ratio}", middle(&rate[at]), middle(&demand[at]));
    }
    Ok(())
}
