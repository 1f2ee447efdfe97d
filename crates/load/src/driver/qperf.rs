//! qperf (<https://github.com/linux-rdma/qperf>): `tcp_bw`, `tcp_lat`, `udp_bw` and `udp_lat`
//! for `tcp_stream`, `tcp_rr`, `udp_stream` and `udp_rr`. One flow.
//!
//! - Its latency is *one way*, half of the time from request to answer. A transaction takes
//!   `2 × latency`, and its `msg_rate` counts both directions.
//! - It reports only the mean, so there are no percentiles.
//! - Its server binds every address of its namespace, on a port for control (`-lp`) and one for
//!   traffic (`-ip`).

use super::figures::{Counted, Figures, outcome, same_time};
use super::{
    Commands, Driver, Job, Printed, Programs, Ready, ToolOutcome, Unexpected, Wanted,
    no_more_than_one, sizes, two_ports, workloads,
};
use crate::{MAX_MESSAGE_BYTES, Workload};

pub(super) struct Qperf;

const WORKLOADS: [Workload; 4] =
    [Workload::TcpStream, Workload::TcpRr, Workload::UdpStream, Workload::UdpRr];

/// Units printed with `-uu`.
const UNITS: [&str; 7] = ["bytes/sec", "/sec", "bytes", "ns", "ns/GB", "% cpus", ""];

fn test(workload: Workload) -> &'static str {
    match workload {
        Workload::TcpStream | Workload::TcpMaerts => "tcp_bw",
        Workload::TcpRr | Workload::TcpCrr => "tcp_lat",
        Workload::UdpStream => "udp_bw",
        Workload::UdpRr => "udp_lat",
    }
}

impl Driver for Qperf {
    fn programs(&self) -> Programs {
        Programs { client: "qperf", server: "qperf", install: "apt install qperf" }
    }

    fn can(&self, wanted: &Wanted) -> Result<(), String> {
        workloads("qperf", wanted, &WORKLOADS)?;
        no_more_than_one("qperf", wanted)?;
        two_ports("qperf", wanted)?;
        sizes("qperf", wanted, 1, MAX_MESSAGE_BYTES)
    }

    fn version(&self) -> (&'static str, &'static str) {
        ("--version", "qperf ")
    }

    fn commands(&self, job: &Job<'_>) -> Commands {
        let port = job.target.port().to_string();
        let mut client: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| client.extend(words.iter().map(|&word| word.to_owned()));
        add(&["-lp", &port, "-ip", &job.data_port.to_string(), "-t", &job.seconds.to_string()]);
        if let Some(bytes) = job.buffers() {
            add(&["-sb", &bytes]);
        }
        // Basic units, nine digits, and sections for used, counted and timed values.
        add(&["-uu", "-e", "9", "-vvu", "-vvs", "-vvt"]);
        add(&["-oo", &format!("msg_size:{}", job.load.message_bytes)]);
        add(&[&job.target.ip().to_string(), test(job.load.workload)]);
        Commands {
            server: vec!["-lp".to_owned(), job.listen.port().to_string()],
            client,
            ready: Ready::Tcp(job.listen.port()),
        }
    }

    fn read(&self, job: &Job<'_>, printed: &Printed<'_>) -> Result<ToolOutcome, Unexpected> {
        let workload = job.load.workload;
        let figures = values(printed.client, test(workload))?;
        let ran = figures.count("msg_size")?;
        if ran != u64::from(job.load.message_bytes) {
            let asked = job.load.message_bytes;
            return Err(Unexpected::new(format!("msg_size of {asked}, not {ran}")));
        }
        // It leaves out zero values.
        let count = |name: &str| {
            if figures.0.contains_key(name) { figures.count(name) } else { Ok(0) }
        };
        let asked = job.seconds as f64;
        let counted = match workload {
            Workload::TcpStream | Workload::TcpMaerts | Workload::UdpStream => {
                let rate = if workload == Workload::TcpStream { "bw" } else { "recv_bw" };
                let bytes = count("recv_bytes")?;
                let seconds =
                    // Without payload there is no rate to compute a time from.
                    if bytes > 0 { bytes as f64 / figures.positive(rate)? } else { asked };
                let (units, sent_units) = (count("recv_msgs")?, count("send_msgs")?);
                let size = u64::from(job.load.message_bytes);
                // Inconsistent counts: the fields were misread.
                if workload == Workload::UdpStream && (bytes != units * size || units > sent_units)
                {
                    return Err(Unexpected::new(format!(
                        "recv_bytes of recv_msgs datagrams of {size} bytes, at most send_msgs, \
                         not {bytes} bytes in {units} of {sent_units}"
                    )));
                }
                Counted {
                    seconds,
                    payload_bytes: bytes,
                    // tcp_bw's receiver counts calls, not messages.
                    units: if workload == Workload::UdpStream { units } else { bytes / size },
                    sent_units,
                    latency: None,
                    tcp_retransmits: None,
                }
            }
            Workload::TcpRr | Workload::TcpCrr | Workload::UdpRr => {
                let units = count("loc_recv_msgs")?;
                let one_way_ns = figures.positive("latency")?;
                Counted {
                    seconds: units as f64 * 2.0 * one_way_ns / 1e9,
                    payload_bytes: units * u64::from(job.load.message_bytes),
                    units,
                    sent_units: count("loc_send_msgs")?,
                    latency: None,
                    tcp_retransmits: None,
                }
            }
        };
        same_time("time", counted.seconds, asked)?;
        Ok(outcome(job, counted, figures))
    }
}

/// Parses `name = value unit` lines below the test's name.
fn values(printed: &str, test: &str) -> Result<Figures, Unexpected> {
    let mut lines = printed.lines().filter(|line| !line.trim().is_empty());
    let title = lines.next().unwrap_or_default();
    // Another version may print another format: no figure is guessed.
    if title.strip_suffix(':') != Some(test) {
        return Err(Unexpected::new(format!("{test}: on the first line, not {title:?}")));
    }
    let mut figures = Figures::default();
    for line in lines {
        let malformed = || Unexpected::new(format!("NAME = VALUE UNIT, not {line:?}"));
        let (name, value) = line.split_once('=').ok_or_else(malformed)?;
        let (name, value) = (name.trim(), value.trim());
        let (value, unit) = value.split_once(' ').unwrap_or((value, ""));
        let unit = unit.trim();
        // Ignore unknown figures in other formats.
        if value.parse::<f64>().is_err() || !UNITS.contains(&unit) {
            // An unknown unit would scale the figure wrongly.
            if expected_unit(name).is_some() {
                return Err(malformed());
            }
            continue;
        }
        if expected_unit(name).is_some_and(|expected| expected != unit) {
            return Err(malformed());
        }
        figures.add(name, value)?;
    }
    Ok(figures)
}

/// Returns the required unit of a figure used in computations.
fn expected_unit(name: &str) -> Option<&'static str> {
    Some(match name {
        "bw" | "send_bw" | "recv_bw" => "bytes/sec",
        "latency" | "time" => "ns",
        "msg_size" | "recv_bytes" | "send_bytes" => "bytes",
        "msg_rate" => "/sec",
        "recv_msgs" | "send_msgs" | "loc_recv_msgs" | "loc_send_msgs" => "",
        // Fields that are not used have no expected unit.
        _ => return None,
    })
}
