//! Compares the built-in load engine with other generators, interleaved, on a veth pair between two
//! fresh namespaces: client pinned to one CPU, server to another. A generator that costs more than
//! the path measures itself.
//!
//! `cargo run --release -p overlane-measure --example
//! generator_against_generator -- [ROUNDS [SECONDS [CONTEST]]]`, as root; CONTEST
//! is `udp`, `tcp_rr` or `tcp_stream`, all three if left out.
//!
//! 64-byte UDP is counted in the same way for every program: `InDatagrams` of the server's
//! namespace (datagrams read by a receiver), over a window within the run. CPU time is that of the
//! whole machine (`/proc/stat`) over the same window. With GSO, the kernel counts a GSO packet
//! once, so the engine's own count is used there. TCP figures are each program's own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use load::ask::Tool;
use load::driver;
use load::{Ends, Load, Watch, Workload, run};
use results::stats;
use sys::netns::NetNs;
use testbed::{Host, NIC, Offload, Wire};

const CLIENT_CPU: usize = 0;
const SERVER_CPU: usize = 1;
const PORT: u16 = 9000;
/// Part of each run before its window: connection and warm-up.
const LEAD: Duration = Duration::from_millis(400);
/// `USER_HZ`, the unit of `/proc/stat` (`proc_stat(5)`; 100 on every Linux).
const TICKS_PER_S: f64 = 100.0;

/// A contest between the programs.
#[derive(Clone, Copy, PartialEq)]
enum Contest {
    Udp64,
    TcpRr,
    TcpStream,
}

/// Contest, its name as an argument, title, unit, and the number that the unit stands for.
const CONTESTS: [(Contest, &str, &str, &str, f64); 3] = [
    (Contest::Udp64, "udp", "64-byte UDP, received", "k datagrams/s", 1e3),
    (
        Contest::TcpRr,
        "tcp_rr",
        "tcp_rr, 1 byte (sockperf: 14, its smallest)",
        "k transactions/s",
        1e3,
    ),
    (Contest::TcpStream, "tcp_stream", "tcp_stream (CPU per 65507 bytes)", "Gb/s", 1e9),
];

/// A program in a contest.
struct Entry {
    name: &'static str,
    contest: Contest,
    generator: Generator,
}

#[derive(Clone, Copy)]
enum Generator {
    BuiltIn {
        gso: bool,
        /// The client's device segments GSO packets, so that every datagram crosses the wire as its
        /// own packet.
        cut: bool,
    },
    Driven(Tool),
}

/// One run: rate, and CPU seconds of the whole machine per unit.
#[derive(Clone, Copy)]
struct Outcome {
    rate: f64,
    cpu_per_unit: f64,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds: u32 = arguments.next().map_or(7, |a| a.parse().expect("ROUNDS: a number"));
    let seconds: f64 = arguments.next().map_or(1.0, |a| a.parse().expect("SECONDS: a number"));
    let contests = match arguments.next().as_deref() {
        None => CONTESTS.to_vec(),
        Some(name) => vec![
            CONTESTS
                .into_iter()
                .find(|(_, key, ..)| *key == name)
                .expect("CONTEST: udp, tcp_rr or tcp_stream"),
        ],
    };
    let [client, server] =
        Wire { mtu: 1500, offload: Offload::Full }.hosts().expect("two hosts and a wire");
    let mut entries = entries();
    entries.retain(|e| contests.iter().any(|(contest, ..)| *contest == e.contest));
    println!(
        "client on CPU {CLIENT_CPU}, server on CPU {SERVER_CPU}, {rounds} rounds of {seconds} s, \
         in random order; medians, and ratios within a round with their smallest and largest"
    );
    let mut outcomes: BTreeMap<usize, BTreeMap<u32, Outcome>> = BTreeMap::new();
    let mut failures: BTreeMap<usize, String> = BTreeMap::new();
    for round in 0..rounds {
        for index in stats::block_order(u64::from(PORT), round, entries.len()) {
            let entry = &entries[index];
            match measure(&client, &server, entry, Duration::from_secs_f64(seconds)) {
                Ok(outcome) => {
                    outcomes.entry(index).or_default().insert(round, outcome);
                }
                Err(reason) => {
                    failures.insert(index, reason);
                }
            }
        }
    }
    for (contest, _, title, unit, scale) in contests {
        println!("\n{title}");
        println!("{:<14} {unit:>16} {:>12}  built-in ÷ this", "", "CPU us/unit");
        let reference = entries
            .iter()
            .position(|e| {
                e.contest == contest && matches!(e.generator, Generator::BuiltIn { gso: false, .. })
            })
            .expect("the built-in engine is in every contest");
        for (index, entry) in entries.iter().enumerate().filter(|(_, e)| e.contest == contest) {
            let Some(runs) = outcomes.get(&index) else {
                println!("{:<14} {}", entry.name, failures[&index]);
                continue;
            };
            let median = |of: fn(&Outcome) -> f64| {
                stats::median(&runs.values().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN)
            };
            let ratios: Vec<f64> = runs
                .iter()
                .filter_map(|(round, run)| {
                    Some(outcomes.get(&reference)?.get(round)?.rate / run.rate)
                })
                .collect();
            println!(
                "{:<14} {:>16.2} {:>12.3}  {:.2} ({:.2}–{:.2})",
                entry.name,
                median(|o| o.rate) / scale,
                median(|o| o.cpu_per_unit) * 1e6,
                stats::median(&ratios).unwrap_or(f64::NAN),
                ratios.iter().copied().fold(f64::INFINITY, f64::min),
                ratios.iter().copied().fold(0.0, f64::max),
            );
            if let Some(reason) = failures.get(&index) {
                println!("{:<14} {} of {rounds} rounds; {reason}", "", runs.len());
            }
        }
    }
}

fn entries() -> Vec<Entry> {
    let entry = |name, contest, generator| Entry { name, contest, generator };
    use Contest::*;
    use Generator::*;
    vec![
        entry("built-in", Udp64, BuiltIn { gso: false, cut: false }),
        entry("built-in gso", Udp64, BuiltIn { gso: true, cut: false }),
        entry("  cut at wire", Udp64, BuiltIn { gso: true, cut: true }),
        entry("iperf3", Udp64, Driven(Tool::Iperf3)),
        entry("netperf", Udp64, Driven(Tool::Netperf)),
        entry("sockperf", Udp64, Driven(Tool::Sockperf)),
        entry("nuttcp", Udp64, Driven(Tool::Nuttcp)),
        entry("built-in", TcpRr, BuiltIn { gso: false, cut: false }),
        entry("netperf", TcpRr, Driven(Tool::Netperf)),
        entry("sockperf", TcpRr, Driven(Tool::Sockperf)),
        entry("built-in", TcpStream, BuiltIn { gso: false, cut: false }),
        entry("iperf3", TcpStream, Driven(Tool::Iperf3)),
    ]
}

fn measure(
    client: &Host,
    server: &Host,
    entry: &Entry,
    window: Duration,
) -> Result<Outcome, String> {
    let at = SocketAddr::from((Wire::B, PORT));
    let ends = Ends { client: client.netns(), server: server.netns(), target: at, listen: at };
    let workload = match entry.contest {
        Contest::Udp64 => Workload::UdpStream,
        Contest::TcpRr => Workload::TcpRr,
        Contest::TcpStream => Workload::TcpStream,
    };
    let load = Load {
        warmup: LEAD,
        duration: window,
        client_cpus: vec![CLIENT_CPU],
        server_cpus: vec![SERVER_CPU],
        ..Load::new(workload)
    };
    match entry.generator {
        Generator::BuiltIn { gso, cut } => {
            // Whether the client's device accepts UDP GSO packets, as veth does.
            let uncut = |on| client.set_features(NIC, &[("tx-udp-segmentation", on)]);
            uncut(!cut).map_err(|e| e.to_string())?;
            let outcome = built_in(&ends, &Load { gso, ..load }, server.netns());
            uncut(true).map_err(|e| e.to_string())?;
            outcome
        }
        Generator::Driven(tool) => driven(&ends, tool, load, window, server.netns()),
    }
}

/// CPU seconds of the machine, counters of the server's namespace, and the time.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    busy_s: f64,
    datagrams: f64,
}

fn read(server: &NetNs) -> Reading {
    let datagrams = server.run(in_datagrams).expect("the server's namespace");
    Reading { at: Instant::now(), busy_s: busy_seconds(), datagrams }
}

/// All fields of the first line of `/proc/stat` except idle and iowait.
fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let ticks = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8);
    let busy = ticks.enumerate().filter(|(i, _)| !matches!(i, 3 | 4));
    busy.filter_map(|(_, t)| t.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_S
}

fn in_datagrams() -> f64 {
    let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("/proc/net/snmp");
    let mut udp = snmp.lines().filter(|l| l.starts_with("Udp:")).map(str::split_whitespace);
    let names = udp.next().into_iter().flatten();
    let values = udp.next().into_iter().flatten();
    let found = names.zip(values).find(|(name, _)| *name == "InDatagrams");
    found.and_then(|(_, v)| v.parse().ok()).expect("InDatagrams")
}

struct Readings<'a> {
    server: &'a NetNs,
    taken: Vec<Reading>,
}

impl Watch for Readings<'_> {
    fn begin(&mut self) {
        self.taken.push(read(self.server));
    }

    fn end(&mut self) {
        self.taken.push(read(self.server));
    }
}

fn built_in(ends: &Ends<'_>, load: &Load, server: &NetNs) -> Result<Outcome, String> {
    let mut readings = Readings { server, taken: Vec::new() };
    let measured =
        run(load, ends, &mut readings, &AtomicBool::new(false)).map_err(|e| e.to_string())?;
    let busy_s = readings.taken[1].busy_s - readings.taken[0].busy_s;
    if load.workload == Workload::UdpStream && !load.gso {
        // The engine must not count datagrams that the kernel did not deliver.
        let kernel = readings.taken[1].datagrams - readings.taken[0].datagrams;
        let own = measured.datagrams.map_or(0.0, |d| d.received as f64);
        if (kernel - own).abs() > 1.0 {
            return Err(format!("counted {own} datagrams, the kernel {kernel}"));
        }
    }
    Ok(Outcome { rate: measured.rate(), cpu_per_unit: busy_s / measured.units as f64 })
}

/// Readings at both ends of a window within a program's run.
struct Window {
    server: Arc<NetNs>,
    length: Duration,
    readings: Option<JoinHandle<Result<[Reading; 2], String>>>,
}

impl Watch for Window {
    fn begin(&mut self) {
        let (server, length) = (Arc::clone(&self.server), self.length);
        self.readings = Some(std::thread::spawn(move || {
            await_traffic(&server)?;
            std::thread::sleep(LEAD);
            let begin = read(&server);
            std::thread::sleep(length);
            Ok([begin, read(&server)])
        }));
    }

    fn end(&mut self) {}
}

fn driven(
    ends: &Ends<'_>,
    tool: Tool,
    load: Load,
    window: Duration,
    server: &Arc<NetNs>,
) -> Result<Outcome, String> {
    // The smallest message of sockperf.
    let rr = tool == Tool::Sockperf && load.workload == Workload::TcpRr;
    let message_bytes = if rr { 14 } else { load.message_bytes };
    let load = Load { message_bytes, duration: LEAD * 2 + window, ..load };
    let mut watch = Window { server: Arc::clone(server), length: window, readings: None };
    let (measured, _) = driver::run(tool, &load, ends, &mut watch, &AtomicBool::new(false))
        .map_err(|e| e.to_string())?;
    let readings = watch.readings.ok_or("it was not started")?;
    let [begin, end] = readings.join().map_err(|_| "the readings panicked")??;
    let seconds = (end.at - begin.at).as_secs_f64();
    let rate = match load.workload {
        Workload::UdpStream => (end.datagrams - begin.datagrams) / seconds,
        _ => measured.rate(),
    };
    let units = match load.workload {
        Workload::TcpStream => rate / 8.0 / f64::from(load.message_bytes),
        _ => rate,
    };
    Ok(Outcome { rate, cpu_per_unit: (end.busy_s - begin.busy_s) / seconds / units })
}

/// Waits until the program's traffic flows: some (sockperf) calibrate themselves for seconds first.
fn await_traffic(server: &NetNs) -> Result<(), String> {
    /// More packets than any handshake, within one check.
    const TRAFFIC: u64 = 40;
    let received = || {
        let path = "/proc/thread-self/net/dev";
        let devices = std::fs::read_to_string(path).unwrap_or_default();
        let line = devices.lines().find_map(|l| l.trim_start().strip_prefix(NIC)).map(str::trim);
        line.and_then(|l| l.split_whitespace().nth(2)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut last = server.run(received).map_err(|e| e.to_string())?;
    while Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        let now = server.run(received).map_err(|e| e.to_string())?;
        if now - last > TRAFFIC {
            return Ok(());
        }
        last = now;
    }
    Err("no traffic within 10 s".into())
}
