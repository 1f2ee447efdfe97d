//! The built-in load engine against other generators, interleaved, on a veth
//! pair between two fresh namespaces: client pinned to one CPU, server to
//! another. A generator that costs more than the path measures itself.
//!
//! `cargo run --release -p overlane-measure --example
//! generator_against_generator -- [ROUNDS [SECONDS [CONTEST]]]`, as root; CONTEST
//! is `udp`, `tcp_rr` or `tcp_stream`, all three if left out.
//!
//! 64-byte UDP is counted for every program alike: `InDatagrams` of the
//! server's namespace (datagrams read by a receiver), over a window within the
//! run; CPU is that of the whole machine (`/proc/stat`) over the same window.
//! With GSO the kernel counts a super-packet once, so there the engine's own
//! count is taken. TCP figures are each program's own.

#[path = "../tests/engine/wire.rs"]
#[allow(dead_code)]
mod wire;

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use measure::engine::{Ends, Load, Watch, Workload, run};
use measure::stats;
use wire::{DEVICE, SERVER, Wire};

const CLIENT_CPU: usize = 0;
const SERVER_CPU: usize = 1;
const PORT: u16 = 9000;
/// Part of each run before its window: connecting and warming up.
const LEAD: Duration = Duration::from_millis(400);
/// `USER_HZ`, the unit of `/proc/stat` (`proc_stat(5)`; 100 on every Linux).
const TICKS_PER_S: f64 = 100.0;

/// What a program is measured by.
#[derive(Clone, Copy, PartialEq)]
enum Contest {
    Udp64,
    TcpRr,
    TcpStream,
}

/// Contest, its name as an argument, title, unit, and what the unit stands for.
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

/// One program in one contest.
struct Entry {
    name: &'static str,
    contest: Contest,
    generator: Generator,
}

#[derive(Clone, Copy)]
enum Generator {
    BuiltIn {
        gso: bool,
        /// The client's device cuts super-packets, so that every datagram
        /// crosses the wire as a packet of its own.
        cut: bool,
    },
    Iperf3,
    Netperf,
    Sockperf,
    Nuttcp,
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
    let wire = Wire::new();
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
            match measure(&wire, entry, Duration::from_secs_f64(seconds)) {
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
        entry("iperf3", Udp64, Iperf3),
        entry("netperf", Udp64, Netperf),
        entry("sockperf", Udp64, Sockperf),
        entry("nuttcp", Udp64, Nuttcp),
        entry("built-in", TcpRr, BuiltIn { gso: false, cut: false }),
        entry("netperf", TcpRr, Netperf),
        entry("sockperf", TcpRr, Sockperf),
        entry("built-in", TcpStream, BuiltIn { gso: false, cut: false }),
        entry("iperf3", TcpStream, Iperf3),
    ]
}

fn measure(wire: &Wire, entry: &Entry, window: Duration) -> Result<Outcome, String> {
    match entry.generator {
        Generator::BuiltIn { gso, cut } => {
            set_segmentation(wire, !cut)?;
            let outcome = built_in(wire, entry.contest, gso, window);
            set_segmentation(wire, true)?;
            outcome
        }
        other => driven(wire, entry.contest, other, window),
    }
}

/// Whether the client's device takes UDP super-packets uncut, as veth does.
fn set_segmentation(wire: &Wire, on: bool) -> Result<(), String> {
    let value = if on { "on" } else { "off" };
    let arguments = ["-K", DEVICE, "tx-udp-segmentation", value];
    let output = wire::run_in(&wire.client, "ethtool", &arguments);
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ethtool {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)))
}

/// CPU seconds of the machine, counters of the server's namespace, and when.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    busy_s: f64,
    datagrams: f64,
}

fn read(wire: &Wire) -> Reading {
    let datagrams = wire.server.run(in_datagrams).expect("the server's namespace");
    Reading { at: Instant::now(), busy_s: busy_seconds(), datagrams }
}

/// Everything of `/proc/stat`'s first line but idle and waiting for I/O.
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
    wire: &'a Wire,
    taken: Vec<Reading>,
}

impl Watch for Readings<'_> {
    fn begin(&mut self) {
        self.taken.push(read(self.wire));
    }

    fn end(&mut self) {
        self.taken.push(read(self.wire));
    }
}

fn built_in(wire: &Wire, contest: Contest, gso: bool, window: Duration) -> Result<Outcome, String> {
    let workload = match contest {
        Contest::Udp64 => Workload::UdpStream,
        Contest::TcpRr => Workload::TcpRr,
        Contest::TcpStream => Workload::TcpStream,
    };
    let load = Load {
        gso,
        warmup: LEAD,
        duration: window,
        client_cpus: vec![CLIENT_CPU],
        server_cpus: vec![SERVER_CPU],
        ..Load::new(workload)
    };
    let at = Wire::server_at(PORT);
    let ends = Ends { client: &wire.client, server: &wire.server, target: at, listen: at };
    let mut readings = Readings { wire, taken: Vec::new() };
    let measured =
        run(&load, &ends, &mut readings, &AtomicBool::new(false)).map_err(|e| e.to_string())?;
    let busy_s = readings.taken[1].busy_s - readings.taken[0].busy_s;
    if contest == Contest::Udp64 && !gso {
        // The engine must not count what the kernel did not deliver.
        let kernel = readings.taken[1].datagrams - readings.taken[0].datagrams;
        let own = measured.datagrams.map_or(0.0, |d| d.received as f64);
        if (kernel - own).abs() > 1.0 {
            return Err(format!("counted {own} datagrams, the kernel {kernel}"));
        }
    }
    Ok(Outcome { rate: measured.rate(), cpu_per_unit: busy_s / measured.units as f64 })
}

/// A program's server, ended with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ports of its own for each run: not every server sets `SO_REUSEADDR`, and a
/// connection of the run before may be in `TIME_WAIT`.
fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(PORT + 1);
    // nuttcp takes two: control and data.
    NEXT.fetch_add(2, Ordering::Relaxed)
}

/// Server and client command lines.
fn commands(
    generator: Generator,
    contest: Contest,
    window: Duration,
    port: u16,
) -> [Vec<String>; 2] {
    // Whole seconds: netperf and nuttcp take nothing else.
    let seconds = (LEAD * 2 + window).as_secs_f64().ceil();
    let udp = contest == Contest::Udp64;
    let (server, client) = match generator {
        Generator::BuiltIn { .. } => (String::new(), String::new()),
        Generator::Iperf3 => (
            format!("iperf3 -s -1 -p {port}"),
            format!("iperf3 -c {SERVER} -p {port} -t {seconds} -J")
                + if udp { " -u -b 0 -l 64" } else { "" },
        ),
        Generator::Netperf => (
            format!("netserver -D -4 -L {SERVER} -p {port}"),
            format!("netperf -P 0 -H {SERVER} -p {port} -l {seconds} -T {CLIENT_CPU},{SERVER_CPU}")
                + if udp { " -t UDP_STREAM -- -m 64 -R 1" } else { " -t TCP_RR -- -r 1,1" },
        ),
        Generator::Sockperf if udp => (
            format!("sockperf server -i {SERVER} -p {port}"),
            format!("sockperf throughput -i {SERVER} -p {port} -m 64 -t {seconds}"),
        ),
        Generator::Sockperf => (
            format!("sockperf server --tcp -i {SERVER} -p {port}"),
            format!("sockperf ping-pong --tcp -i {SERVER} -p {port} -m 14 -t {seconds}"),
        ),
        Generator::Nuttcp => (
            format!("nuttcp -1 -P {port} -p {}", port + 1),
            format!("nuttcp -u -l64 -Ru -T{seconds} -P {port} -p {} {SERVER}", port + 1),
        ),
    };
    [server, client].map(|line| line.split_whitespace().map(str::to_owned).collect())
}

fn package(generator: Generator) -> &'static str {
    match generator {
        Generator::BuiltIn { .. } => "",
        Generator::Iperf3 => "apt install iperf3",
        Generator::Netperf => {
            "apt install netperf (Debian's component non-free: see sources.list(5))"
        }
        Generator::Sockperf => "apt install sockperf",
        Generator::Nuttcp => "apt install nuttcp",
    }
}

fn driven(
    wire: &Wire,
    contest: Contest,
    generator: Generator,
    window: Duration,
) -> Result<Outcome, String> {
    let port = next_port();
    let [server, client] = commands(generator, contest, window, port);
    let spawn = |netns: &sys::netns::NetNs, cpu: usize, words: &[String]| {
        let spawned = netns.run(|| {
            // The mask is inherited by exec: no taskset between us and the program.
            sys::affinity::pin(cpu).map_err(|e| e.to_string())?;
            Command::new(&words[0])
                .args(&words[1..])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|e| match e.kind() {
                    std::io::ErrorKind::NotFound => {
                        format!("{} is not installed: {}", words[0], package(generator))
                    }
                    _ => format!("{}: {e}", words[0]),
                })
        });
        spawned.map_err(|e| e.to_string())?
    };
    let _server = Running(spawn(&wire.server, SERVER_CPU, &server)?);
    await_port(wire, port)?;
    let mut client = spawn(&wire.client, CLIENT_CPU, &client)?;
    await_traffic(wire)?;
    std::thread::sleep(LEAD);
    let begin = read(wire);
    std::thread::sleep(window);
    let end = read(wire);
    let mut printed = String::new();
    if let Some(mut stdout) = client.stdout.take() {
        std::io::Read::read_to_string(&mut stdout, &mut printed).map_err(|e| e.to_string())?;
    }
    let status = client.wait().map_err(|e| e.to_string())?;
    if !status.success() {
        return Err(format!("client ended with {status}: {}", printed.trim()));
    }
    let seconds = (end.at - begin.at).as_secs_f64();
    let rate = match contest {
        Contest::Udp64 => (end.datagrams - begin.datagrams) / seconds,
        Contest::TcpRr | Contest::TcpStream => parse_rate(generator, &printed)
            .ok_or_else(|| format!("no rate in: {}", printed.trim()))?,
    };
    let units = match contest {
        Contest::TcpStream => rate / 8.0 / f64::from(Load::new(Workload::TcpStream).message_bytes),
        _ => rate,
    };
    Ok(Outcome { rate, cpu_per_unit: (end.busy_s - begin.busy_s) / seconds / units })
}

/// Waits until the program's server listens on its port, TCP or UDP.
fn await_port(wire: &Wire, port: u16) -> Result<(), String> {
    let hexadecimal = format!(":{port:04X} ");
    let listening = || {
        ["tcp", "tcp6", "udp", "udp6"].iter().any(|table| {
            std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).is_ok_and(|t| {
                t.lines().any(|l| {
                    l.split_once(": ").is_some_and(|(_, l)| {
                        // Local address first, then the remote one, all zeroes.
                        l.get(..48).is_some_and(|l| l.contains(&hexadecimal))
                            && l.contains(":0000 ")
                    })
                })
            })
        })
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if wire.server.run(listening).map_err(|e| e.to_string())? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(format!("nobody listens on port {port} of {DEVICE}"))
}

/// Waits until the program's traffic flows: some (sockperf) take seconds to
/// calibrate themselves first.
fn await_traffic(wire: &Wire) -> Result<(), String> {
    /// More packets than any handshake, within one look.
    const TRAFFIC: u64 = 40;
    let received = || {
        let path = "/proc/thread-self/net/dev";
        let devices = std::fs::read_to_string(path).unwrap_or_default();
        let line = devices.lines().find_map(|l| l.trim_start().strip_prefix(DEVICE)).map(str::trim);
        line.and_then(|l| l.split_whitespace().nth(2)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut last = wire.server.run(received).map_err(|e| e.to_string())?;
    while Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        let now = wire.server.run(received).map_err(|e| e.to_string())?;
        if now - last > TRAFFIC {
            return Ok(());
        }
        last = now;
    }
    Err("no traffic within 10 s".into())
}

fn parse_rate(generator: Generator, printed: &str) -> Option<f64> {
    match generator {
        Generator::Iperf3 => {
            let json: serde_json::Value = serde_json::from_str(printed).ok()?;
            json["end"]["sum_received"]["bits_per_second"].as_f64()
        }
        // Socket sizes, request, response, elapsed, rate.
        Generator::Netperf => printed.split_whitespace().nth(5)?.parse().ok(),
        // "[Valid Duration] RunTime=0.950 sec; SentMessages=…; ReceivedMessages=…"
        Generator::Sockperf => {
            let line = printed.lines().find(|l| l.contains("[Valid Duration]"))?;
            let field = |name: &str| {
                let value = line.split_once(name)?.1;
                value.split([' ', ';']).next()?.parse::<f64>().ok()
            };
            Some(field("ReceivedMessages=")? / field("RunTime=")?)
        }
        Generator::BuiltIn { .. } | Generator::Nuttcp => None,
    }
}
