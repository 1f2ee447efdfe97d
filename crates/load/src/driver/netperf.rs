//! netperf (<https://hewlettpackard.github.io/netperf/>): all six workloads, by its omni tests
//! with `-k`. One flow; several requests in flight need `-b` (a build with bursts, as Debian's).
//!
//! - CPU utilisation and service demand (`-c -C`) cover the whole machine (`/proc/stat`). They are
//!   kept under its own names beside the engine's.
//! - Its confidence fields are -1 for a single iteration, which is what runs here (blocks take the
//!   place of iterations), and are left out then.
//! - `-f k`: with `-f b` it prints bytes/s but labels them `10^0bits/s`.
//! - `-D` for transactions disables Nagle's algorithm, as in the built-in engine.

use super::figures::{Counted, Figures, datagrams, outcome, same_time};
use super::{
    Commands, Driver, Job, Printed, Programs, Ready, ToolOutcome, Unexpected, Wanted, sizes,
    two_ports,
};
use crate::{MAX_MESSAGE_BYTES, Workload};

pub(super) struct Netperf;

/// Output selectors (`-k`) of every test.
const SELECTORS: [&str; 25] = [
    "ELAPSED_TIME",
    "THROUGHPUT",
    "THROUGHPUT_UNITS",
    "TRANSACTION_RATE",
    "LOCAL_BYTES_SENT",
    "LOCAL_BYTES_RECVD",
    "REMOTE_BYTES_RECVD",
    "LOCAL_SEND_CALLS",
    "REMOTE_RECV_CALLS",
    "LSS_SIZE_END",
    "LSR_SIZE_END",
    "RSS_SIZE_END",
    "RSR_SIZE_END",
    "LOCAL_CPU_UTIL",
    "LOCAL_SD",
    "REMOTE_CPU_UTIL",
    "REMOTE_SD",
    "SD_UNITS",
    "CONFIDENCE_LEVEL",
    "CONFIDENCE_INTERVAL",
    "CONFIDENCE_ITERATION",
    "THROUGHPUT_CONFID",
    "LOCAL_CPU_CONFID",
    "REMOTE_CPU_CONFID",
    "LOCAL_TRANSPORT_RETRANS",
];

/// Output selectors of tests that time transactions, µs.
const LATENCIES: [&str; 8] = [
    "RT_LATENCY",
    "MIN_LATENCY",
    "P50_LATENCY",
    "P90_LATENCY",
    "P99_LATENCY",
    "MAX_LATENCY",
    "MEAN_LATENCY",
    "STDDEV_LATENCY",
];

/// Selectors with text values, and the expected values. Service demand is per KiB for
/// transactions, too.
const WORDS: [(&str, &str); 2] = [("THROUGHPUT_UNITS", "10^3bits/s"), ("SD_UNITS", "usec/KB")];

fn selectors(workload: Workload) -> Vec<&'static str> {
    let latencies = if workload.has_latency() { &LATENCIES[..] } else { &[] };
    SELECTORS.iter().chain(latencies).copied().collect()
}

impl Driver for Netperf {
    fn programs(&self) -> Programs {
        Programs {
            client: "netperf",
            server: "netserver",
            install: "apt install netperf (Debian's component non-free: see sources.list(5))",
        }
    }

    fn can(&self, wanted: &Wanted) -> Result<(), String> {
        // netperf has no flows: several processes would start at different times.
        if wanted.flows != 1 {
            return Err(format!("netperf runs one flow, requested: {}", wanted.flows));
        }
        two_ports("netperf", wanted)?;
        sizes("netperf", wanted, 1, MAX_MESSAGE_BYTES)
    }

    fn version(&self) -> (&'static str, &'static str) {
        ("-V", "Netperf version ")
    }

    fn commands(&self, job: &Job<'_>) -> Commands {
        let workload = job.load.workload;
        let (family, digit) = if job.target.is_ipv6() { ("-6", "6") } else { ("-4", "4") };
        let test = match workload {
            Workload::TcpStream => "TCP_STREAM",
            Workload::TcpMaerts => "TCP_MAERTS",
            Workload::TcpRr => "TCP_RR",
            Workload::TcpCrr => "TCP_CRR",
            Workload::UdpStream => "UDP_STREAM",
            Workload::UdpRr => "UDP_RR",
        };
        let port = job.target.port().to_string();
        let mut client: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| client.extend(words.iter().map(|&word| word.to_owned()));
        add(&[family, "-P", "0", "-H", &format!("{},{digit}", job.target.ip()), "-p", &port]);
        add(&["-l", &job.seconds.to_string(), "-f", "k", "-c", "-C", "-t", test]);
        if workload.has_latency() {
            // Percentiles, at the cost of reading the clock per transaction.
            add(&["-j"]);
        }
        add(&["--", "-P", &format!(",{}", job.data_port)]);
        let size = job.size();
        match workload {
            // -R 1 allows routing: by default it refuses to flood past the first hop.
            Workload::UdpStream => add(&["-m", &size, "-M", &size, "-R", "1"]),
            Workload::TcpStream | Workload::TcpMaerts => add(&["-m", &size, "-M", &size]),
            _ => add(&["-r", &format!("{size},{size}")]),
        }
        if workload.is_tcp() && workload.has_latency() {
            add(&["-D", "L,R"]);
        }
        if job.load.outstanding > 1 {
            add(&["-b", &(job.load.outstanding - 1).to_string()]);
        }
        if let Some(bytes) = job.buffers() {
            add(&["-s", &bytes, "-S", &bytes]);
        }
        add(&["-k", &selectors(workload).join(",")]);
        let listen = job.listen;
        let server = format!("-D {family} -L {} -p {}", listen.ip(), listen.port());
        Commands {
            server: server.split_whitespace().map(str::to_owned).collect(),
            client,
            ready: Ready::Tcp(listen.port()),
        }
    }

    fn read(&self, job: &Job<'_>, printed: &Printed<'_>) -> Result<ToolOutcome, Unexpected> {
        let workload = job.load.workload;
        let mut figures = values(printed.client, workload)?;
        let elapsed = figures.positive("ELAPSED_TIME")?;
        let sent_bytes = figures.count("LOCAL_BYTES_SENT")?;
        // With several iterations, rates are means, but counts belong to the last one.
        let check = |seconds| {
            let single = figures.get("CONFIDENCE_ITERATION")? <= 1.0;
            if single { same_time("ELAPSED_TIME", seconds, elapsed) } else { Ok(()) }
        };
        let retransmits = figures.get("LOCAL_TRANSPORT_RETRANS")?;
        let size = u64::from(job.load.message_bytes);
        let mut counted = Counted {
            seconds: elapsed,
            payload_bytes: figures.count("REMOTE_BYTES_RECVD")?,
            units: 0,
            sent_units: sent_bytes / size,
            latency: None,
            tcp_retransmits: (workload.is_tcp() && retransmits >= 0.0)
                .then_some(retransmits as u64),
        };
        match workload {
            Workload::TcpStream | Workload::TcpMaerts | Workload::UdpStream => {
                if workload == Workload::TcpMaerts {
                    // The client receives. netperf has no selector for the bytes that the server
                    // sent.
                    counted.payload_bytes = figures.count("LOCAL_BYTES_RECVD")?;
                    counted.sent_units = counted.payload_bytes / size;
                }
                counted.units = counted.payload_bytes / size;
                if workload == Workload::UdpStream {
                    counted.units = datagrams("REMOTE_BYTES_RECVD", counted.payload_bytes, job)?;
                    counted.sent_units = datagrams("LOCAL_BYTES_SENT", sent_bytes, job)?;
                    if counted.units > counted.sent_units {
                        // More received than sent: the fields were misread.
                        return Err(Unexpected::new(format!(
                            "no more datagrams received than sent, not {} of {}",
                            counted.units, counted.sent_units
                        )));
                    }
                }
                // Without payload the rate is 0, and no time can be computed from it.
                if counted.payload_bytes > 0 {
                    // ELAPSED_TIME has only two decimals.
                    let bits_per_s = figures.positive("THROUGHPUT")? * 1e3;
                    counted.seconds = counted.payload_bytes as f64 * 8.0 / bits_per_s;
                    check(counted.seconds)?;
                }
            }
            Workload::TcpRr | Workload::TcpCrr | Workload::UdpRr => {
                counted.units = figures.count("LOCAL_BYTES_RECVD")? / size;
                counted.payload_bytes = counted.units * size;
                // The same for transactions.
                if counted.units > 0 {
                    counted.seconds =
                        counted.units as f64 / figures.positive("TRANSACTION_RATE")?;
                    check(counted.seconds)?;
                }
            }
        }
        // Figures that were not counted or computed are -1.
        figures.0.retain(|_, value| *value >= 0.0);
        Ok(outcome(job, counted, figures))
    }
}

/// Parses the value of every selector. Each must be requested and occur once.
fn values(printed: &str, workload: Workload) -> Result<Figures, Unexpected> {
    let mut figures = Figures::default();
    let mut seen = Vec::new();
    for line in printed.lines().filter(|line| !line.trim().is_empty()) {
        // Another version may print another format: no figure is guessed.
        let Some((name, value)) = line.split_once('=') else {
            return Err(Unexpected::new(format!("NAME=VALUE on each line, not {line:?}")));
        };
        if !selectors(workload).contains(&name) {
            return Err(Unexpected::new(format!("the requested selectors, not {name}")));
        }
        match WORDS.iter().find(|(word, _)| *word == name) {
            Some((_, wanted)) if *wanted == value => {}
            Some((_, wanted)) => {
                return Err(Unexpected::new(format!("{name}={wanted}, not {value}")));
            }
            None => figures.add(name, value)?,
        }
        seen.push(name);
    }
    match selectors(workload).into_iter().find(|name| !seen.contains(name)) {
        None => Ok(figures),
        Some(name) => Err(Unexpected::new(format!("a value for {name}"))),
    }
}
