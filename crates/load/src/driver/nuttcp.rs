//! nuttcp (<https://www.nuttcp.net>): `tcp_stream` and `udp_stream`, several flows on consecutive
//! ports. Parsed from `-fparse`.
//!
//! Its server binds every address of its namespace, on a port for control (`-P`) and one per flow
//! for traffic (`-p`). Socket buffers are in whole KiB.

use super::figures::{Counted, Figures, outcome, same_time};
use super::{
    Commands, Driver, Job, Printed, Programs, Ready, ToolOutcome, Unexpected, Wanted, sizes,
    two_ports, workloads,
};
use crate::{MAX_MESSAGE_BYTES, Workload};

pub(super) struct Nuttcp;

/// Its `MAXSTREAM`.
const MOST_FLOWS: u32 = 128;
/// Minimum datagram, which holds a sequence number. nuttcp would enlarge shorter ones.
const LEAST_DATAGRAM: u32 = 5;
const KIB: u32 = 1024;
/// A megabyte in nuttcp, bytes.
const MEGABYTE: f64 = (1 << 20) as f64;

impl Driver for Nuttcp {
    fn programs(&self) -> Programs {
        Programs { client: "nuttcp", server: "nuttcp", install: "apt install nuttcp" }
    }

    fn can(&self, wanted: &Wanted) -> Result<(), String> {
        workloads("nuttcp", wanted, &[Workload::TcpStream, Workload::UdpStream])?;
        two_ports("nuttcp", wanted)?;
        if wanted.flows > MOST_FLOWS {
            let flows = wanted.flows;
            return Err(format!("nuttcp runs at most {MOST_FLOWS} flows, requested: {flows}"));
        }
        // A rounded buffer would be another test than the requested one.
        if let Some(bytes) = wanted.buffer_bytes.filter(|bytes| !bytes.is_multiple_of(KIB)) {
            return Err(format!("nuttcp accepts socket buffers in whole KiB, not {bytes} bytes"));
        }
        let least = if wanted.workload == Workload::UdpStream { LEAST_DATAGRAM } else { 1 };
        sizes("nuttcp", wanted, least, MAX_MESSAGE_BYTES)
    }

    fn version(&self) -> (&'static str, &'static str) {
        ("-V", "nuttcp-")
    }

    fn commands(&self, job: &Job<'_>) -> Commands {
        let family = if job.target.is_ipv6() { "-6" } else { "-4" };
        let mut client = vec![family.to_owned(), format!("-l{}", job.size())];
        if job.load.workload == Workload::UdpStream {
            // No rate limit: the default is 1 Mbit/s.
            client.extend(["-u".to_owned(), "-Ru".to_owned()]);
        }
        // nuttcp accepts fractions of seconds.
        client.push(format!("-T{}", job.load.duration.as_secs_f64()));
        if job.load.flows > 1 {
            client.push(format!("-N{}", job.load.flows));
        }
        if let Some(bytes) = job.load.socket_buffer_bytes {
            client.extend([format!("-w{}", bytes / KIB), format!("-ws{}", bytes / KIB)]);
        }
        client.extend(["-fparse".to_owned(), "-P".to_owned(), job.target.port().to_string()]);
        client.extend(["-p".to_owned(), job.data_port.to_string(), job.target.ip().to_string()]);
        let server = ["-S", family, "--nofork", "-P"].map(str::to_owned);
        Commands {
            server: server.into_iter().chain([job.listen.port().to_string()]).collect(),
            client,
            ready: Ready::Tcp(job.listen.port()),
        }
    }

    fn read(&self, job: &Job<'_>, printed: &Printed<'_>) -> Result<ToolOutcome, Unexpected> {
        let figures = values(printed.client)?;
        let coarse = figures.positive("real_seconds")?;
        let size = u64::from(job.load.message_bytes);
        let (payload_bytes, units, sent_units) = if job.load.workload == Workload::UdpStream {
            let (sent, lost) = (figures.count("pkt")?, figures.count("drop")?);
            let received = sent.checked_sub(lost).ok_or_else(|| {
                Unexpected::new(format!("drop of at most pkt, not {lost} of {sent}"))
            })?;
            (received * size, received, sent)
        } else {
            let bytes = (figures.get("megabytes")? * MEGABYTE).round() as u64;
            (bytes, bytes / size, bytes / size)
        };
        // Without payload the rate is 0, and no time can be computed from it.
        let seconds = if payload_bytes > 0 {
            payload_bytes as f64 * 8.0 / (figures.positive("rate_Mbps")? * 1e6)
        } else {
            coarse
        };
        same_time("real_seconds", seconds, coarse)?;
        let counted = Counted {
            seconds,
            payload_bytes,
            units,
            sent_units,
            latency: None,
            tcp_retransmits: figures.0.get("retrans").map(|again| *again as u64),
        };
        Ok(outcome(job, counted, figures))
    }
}

/// Parses `name=value` words on one line.
fn values(printed: &str) -> Result<Figures, Unexpected> {
    let lines: Vec<&str> = printed.lines().filter(|line| !line.trim().is_empty()).collect();
    // Another version may print another format: no figure is guessed.
    let [line] = lines[..] else {
        return Err(Unexpected::new("one line of NAME=VALUE words"));
    };
    let mut figures = Figures::default();
    for word in line.split_whitespace() {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| Unexpected::new(format!("NAME=VALUE, not {word:?}")))?;
        figures.add(name, value)?;
    }
    Ok(figures)
}
