//! sockperf (<https://github.com/Mellanox/sockperf>): ping-pong for `tcp_rr` and `udp_rr`,
//! throughput for `udp_stream`. One flow, one port.
//!
//! - ping-pong discards its first 0.4 s and its last 0.05 s, so it runs that much longer;
//!   [`moved`](super::ToolReport::moved) is its total. It needs the time-stamp counter
//!   (`--no-rdtsc` finds "no valid observations" in 3.7), which it first calibrates for 2 s.
//! - Its throughput client reports only sent messages. The server counts received messages, and
//!   reports when it is interrupted.

use super::figures::{Counted, Figures, number, outcome, same_time};
use super::{
    Commands, Driver, Job, Moved, Printed, Programs, Ready, ToolOutcome, Unexpected, Wanted,
    no_more_than_one, sizes, workloads,
};
use crate::{LatencyNs, Load, Workload};

pub(super) struct Sockperf;

const WORKLOADS: [Workload; 3] = [Workload::TcpRr, Workload::UdpStream, Workload::UdpRr];
/// Minimum message: its header.
const LEAST: u32 = 14;
/// Its `MAX_PAYLOAD_SIZE`.
const MOST: u32 = 65506;
/// Time that ping-pong discards at both ends, seconds.
const DISCARDED_S: f64 = 0.45;

/// Percentiles printed by ping-pong, from which [`LatencyNs`] is made.
const PERCENTILES: [&str; 5] = ["50.000", "90.000", "99.000", "99.900", "99.990"];

impl Driver for Sockperf {
    fn programs(&self) -> Programs {
        Programs { client: "sockperf", server: "sockperf", install: "apt install sockperf" }
    }

    fn can(&self, wanted: &Wanted) -> Result<(), String> {
        workloads("sockperf", wanted, &WORKLOADS)?;
        no_more_than_one("sockperf", wanted)?;
        if wanted.ipv6 {
            return Err("sockperf is driven over IPv4 only".to_owned());
        }
        sizes("sockperf", wanted, LEAST, MOST)
    }

    fn version(&self) -> (&'static str, &'static str) {
        ("--version", "sockperf, version ")
    }

    fn server_reports(&self, load: &Load) -> bool {
        load.workload == Workload::UdpStream
    }

    fn commands(&self, job: &Job<'_>) -> Commands {
        let stream = job.load.workload == Workload::UdpStream;
        let mut client: Vec<String> = Vec::new();
        let mut server: Vec<String> = Vec::new();
        let add = |to: &mut Vec<String>, words: &[&str]| {
            to.extend(words.iter().map(|&word| word.to_owned()));
        };
        add(&mut server, &["server", "--uc-reuseaddr", "-i", &job.listen.ip().to_string()]);
        add(&mut server, &["-p", &job.listen.port().to_string()]);
        let (mode, seconds) = if stream {
            ("throughput", job.seconds)
        } else {
            let whole = job.load.duration.as_secs_f64() + DISCARDED_S;
            ("ping-pong", whole.ceil() as u64)
        };
        add(&mut client, &[mode, "-i", &job.target.ip().to_string()]);
        add(&mut client, &["-p", &job.target.port().to_string(), "-t", &seconds.to_string()]);
        add(&mut client, &["-m", &job.size()]);
        add(&mut client, &[if stream { "--no-rdtsc" } else { "--full-rtt" }]);
        for words in [&mut client, &mut server] {
            if job.load.workload.is_tcp() {
                add(words, &["--tcp"]);
            }
            if let Some(bytes) = job.buffers() {
                add(words, &["--buffer-size", &bytes]);
            }
        }
        let port = job.listen.port();
        let ready = if job.load.workload.is_tcp() { Ready::Tcp(port) } else { Ready::Udp(port) };
        Commands { server, client, ready }
    }

    fn read(&self, job: &Job<'_>, printed: &Printed<'_>) -> Result<ToolOutcome, Unexpected> {
        let client = plain(printed.client);
        if job.load.workload == Workload::UdpStream {
            throughput(job, &client, &plain(printed.server))
        } else {
            ping_pong(job, &client)
        }
    }
}

fn throughput(job: &Job<'_>, client: &str, server: &str) -> Result<ToolOutcome, Unexpected> {
    let mut figures = Figures::default();
    let line = after(client, "Total of ")?;
    let (sent, rest) = parted(line, " messages sent in ")?;
    figures.add("messages sent", sent)?;
    figures.add("RunTime", parted(rest, " sec")?.0)?;
    let rate = parted(after(client, "Summary: Message Rate is ")?, " [msg/sec]")?.0;
    figures.add("Message Rate", rate)?;
    if server.contains("No messages were received on the server") {
        figures.add("messages received", "0")?;
    } else {
        let received = parted(after(server, "Total ")?, " messages received and handled")?.0;
        figures.add("messages received", received)?;
    }
    let (sent_units, units) =
        (figures.count("messages sent")?, figures.count("messages received")?);
    // Inconsistent figures are worse than none.
    if units > sent_units {
        return Err(Unexpected::new(format!(
            "no more messages received than sent, not {units} of {sent_units}"
        )));
    }
    // RunTime has three decimals, the rate is a whole number: both are good to
    // a thousandth and better.
    let seconds = sent_units as f64 / figures.positive("Message Rate")?;
    same_time("RunTime", seconds, figures.get("RunTime")?)?;
    let counted = Counted {
        seconds,
        payload_bytes: units * u64::from(job.load.message_bytes),
        units,
        sent_units,
        latency: None,
        tcp_retransmits: None,
    };
    Ok(outcome(job, counted, figures))
}

fn ping_pong(job: &Job<'_>, client: &str) -> Result<ToolOutcome, Unexpected> {
    let mut figures = Figures::default();
    for (stage, lead) in [("Total Run", "[Total Run] "), ("Valid Duration", "[Valid Duration] ")] {
        let line = after(client, lead)?;
        for item in line.split("; ") {
            let (name, value) = parted(item, "=")?;
            // This one comes in milliseconds, and is no figure of the run.
            if name != "Warm up time" {
                let value = value.trim_end_matches(" sec");
                figures.add(&format!("{stage} {name}"), value)?;
            }
        }
    }
    let line = after(client, "# dropped messages = ")?;
    figures.add("dropped messages", parted(line, ";")?.0)?;
    figures.add("Round trip", parted(after(client, "Summary: Round trip is ")?, " usec")?.0)?;
    let mut micros = |name: String, lead: &str| {
        let value = number(&name, after(client, lead)?)?;
        figures.0.insert(name, value);
        Ok((value * 1e3).round() as u64)
    };
    let max = micros("<MAX>".to_owned(), "---> <MAX> observation =")?;
    let min = micros("<MIN>".to_owned(), "---> <MIN> observation =")?;
    let mut percentiles = [0; PERCENTILES.len()];
    for (name, place) in PERCENTILES.iter().zip(&mut percentiles) {
        *place = micros(format!("percentile {name}"), &format!("---> percentile {name} ="))?;
    }
    let [p50, p90, p99, p99_9, p99_99] = percentiles;
    let units = figures.count("Valid Duration ReceivedMessages")?;
    let latency = LatencyNs {
        count: units,
        mean: figures.positive("Round trip")? * 1e3,
        min,
        p50,
        p90,
        p99,
        p99_9,
        p99_99,
        max,
    };
    let size = u64::from(job.load.message_bytes);
    let counted = Counted {
        seconds: figures.positive("Valid Duration RunTime")?,
        payload_bytes: units * size,
        units,
        sent_units: figures.count("Valid Duration SentMessages")?,
        latency: Some(latency),
        tcp_retransmits: None,
    };
    let total = figures.count("Total Run ReceivedMessages")?;
    // The total includes the valid part.
    if total < units {
        let problem = format!("a total of at least {units} messages, not {total}");
        return Err(Unexpected::new(problem));
    }
    let mut outcome = outcome(job, counted, figures);
    outcome.moved = Moved { units: total, payload_bytes: total * size };
    Ok(outcome)
}

/// The rest of the first line that has `lead` in it.
fn after<'a>(text: &'a str, lead: &str) -> Result<&'a str, Unexpected> {
    text.lines()
        .find_map(|line| line.split_once(lead))
        .map(|(_, rest)| rest)
        .ok_or_else(|| Unexpected::new(format!("a line with {lead:?}")))
}

fn parted<'a>(text: &'a str, mark: &str) -> Result<(&'a str, &'a str), Unexpected> {
    text.split_once(mark).ok_or_else(|| Unexpected::new(format!("{mark:?} in {text:?}")))
}

/// Without colours (`ESC [ … m`).
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut parts = text.split('\x1b');
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        plain.push_str(part.split_once('m').map_or(part, |(_, rest)| rest));
    }
    plain
}
