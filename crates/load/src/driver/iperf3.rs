//! iperf3 (<https://software.es.net/iperf/>): `tcp_stream`, `tcp_maerts` and `udp_stream`, several
//! flows in one process. Control and traffic share one port, so it also crosses a published port.
//! Parsed from `-J`. The field `sum` is ambiguous for UDP (it mixes the two ends), so only
//! `sum_sent` and `sum_received` are read.

use results::Direction;
use serde::Deserialize;

use super::figures::{Counted, Figures, datagrams, outcome};
use super::{
    Commands, Driver, Job, Printed, Programs, Ready, ToolOutcome, Unexpected, Wanted, sizes,
    workloads,
};
use crate::{Load, MAX_MESSAGE_BYTES, Workload};

pub(super) struct Iperf3;

/// Its `MAX_STREAMS`.
const MOST_FLOWS: u32 = 128;
/// Minimum datagram: sequence number and time stamp (its `MIN_UDP_BLOCKSIZE`).
const LEAST_DATAGRAM: u32 = 16;

/// Printed instead of results, with exit code 0.
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

#[derive(Deserialize)]
struct Report {
    start: Start,
    end: EndReport,
}

#[derive(Deserialize)]
struct Start {
    test_start: Test,
}

#[derive(Deserialize)]
struct Test {
    protocol: String,
    /// 1 if the server sends.
    #[serde(default)]
    reverse: u8,
    num_streams: u32,
    blksize: u32,
}

#[derive(Deserialize)]
struct EndReport {
    sum_sent: Sum,
    sum_received: Sum,
    cpu_utilization_percent: Cpu,
}

#[derive(Deserialize)]
struct Sum {
    seconds: f64,
    bytes: u64,
    bits_per_second: f64,
    retransmits: Option<u64>,
    jitter_ms: Option<f64>,
    lost_packets: Option<i64>,
    packets: Option<u64>,
}

#[derive(Deserialize)]
struct Cpu {
    host_total: f64,
    host_user: f64,
    host_system: f64,
    remote_total: f64,
    remote_user: f64,
    remote_system: f64,
}

impl Driver for Iperf3 {
    fn programs(&self) -> Programs {
        Programs { client: "iperf3", server: "iperf3", install: "apt install iperf3" }
    }

    fn can(&self, wanted: &Wanted) -> Result<(), String> {
        workloads(
            "iperf3",
            wanted,
            &[Workload::TcpStream, Workload::TcpMaerts, Workload::UdpStream],
        )?;
        if wanted.flows > MOST_FLOWS {
            return Err(format!(
                "iperf3 runs at most {MOST_FLOWS} flows, requested: {}",
                wanted.flows
            ));
        }
        let least = if wanted.workload == Workload::UdpStream { LEAST_DATAGRAM } else { 1 };
        sizes("iperf3", wanted, least, MAX_MESSAGE_BYTES)
    }

    fn version(&self) -> (&'static str, &'static str) {
        ("--version", "iperf 3.")
    }

    fn commands(&self, job: &Job<'_>) -> Commands {
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (target, listen) = (job.target, job.listen);
        // -i 0: one interval, so that no periodic report costs CPU time.
        let mut client = words(format!(
            "-c {} -p {} -t {} -l {} -P {} -i 0 -J",
            target.ip(),
            target.port(),
            job.seconds,
            job.size(),
            job.load.flows
        ));
        if job.load.workload == Workload::UdpStream {
            client.extend(words("-u -b 0".to_owned()));
        }
        if job.load.workload.direction() == Direction::Reverse {
            client.push("-R".to_owned());
        }
        if let Some(bytes) = job.buffers() {
            // It sends this to the server, and fails if either kernel grants less.
            client.extend(["-w".to_owned(), bytes]);
        }
        Commands {
            server: words(format!("-s -1 -B {} -p {}", listen.ip(), listen.port())),
            client,
            ready: Ready::Tcp(listen.port()),
        }
    }

    fn read(&self, job: &Job<'_>, printed: &Printed<'_>) -> Result<ToolOutcome, Unexpected> {
        if let Ok(Refusal { error }) = serde_json::from_str(printed.client) {
            return Err(Unexpected::new(format!("results, not the error {error:?}")));
        }
        let report: Report = serde_json::from_str(printed.client)
            .map_err(|e| Unexpected::new(format!("the JSON of iperf3 -J ({e})")))?;
        let load: &Load = job.load;
        let udp = load.workload == Workload::UdpStream;
        let test = &report.start.test_start;
        let ran = (test.protocol.as_str(), test.num_streams, test.blksize);
        let asked = (if udp { "UDP" } else { "TCP" }, load.flows, load.message_bytes);
        let reverse = u8::from(load.workload.direction() == Direction::Reverse);
        // Another direction than requested would be compared with the wrong workload.
        if test.reverse != reverse {
            let got = test.reverse;
            return Err(Unexpected::new(format!("test_start.reverse of {reverse}, not {got}")));
        }
        // It ran another load than the requested one.
        if ran != asked {
            return Err(Unexpected::new(format!("test_start of {asked:?}, not {ran:?}")));
        }
        let (sent, received) = (&report.end.sum_sent, &report.end.sum_received);
        let mut figures = Figures::default();
        for (name, sum) in [("sum_sent", sent), ("sum_received", received)] {
            figures.0.insert(format!("{name}.seconds"), sum.seconds);
            figures.0.insert(format!("{name}.bits_per_second"), sum.bits_per_second);
        }
        let cpu = &report.end.cpu_utilization_percent;
        for (name, value) in [
            ("host_total", cpu.host_total),
            ("host_user", cpu.host_user),
            ("host_system", cpu.host_system),
            ("remote_total", cpu.remote_total),
            ("remote_user", cpu.remote_user),
            ("remote_system", cpu.remote_system),
        ] {
            figures.0.insert(format!("cpu_utilization_percent.{name}"), value);
        }
        let seconds = figures.positive("sum_received.seconds")?;
        // It can take longer than requested, since it waits for stragglers.
        if seconds < 0.5 * job.seconds as f64 {
            let asked = job.seconds;
            return Err(Unexpected::new(format!("an interval of {asked} s, not of {seconds} s")));
        }
        let (units, sent_units) = if udp {
            let needed = |name: &str, value: Option<f64>| {
                value.ok_or_else(|| Unexpected::new(format!("{name} of UDP")))
            };
            let lost = received.lost_packets.map(|lost| lost as f64);
            for (name, value) in [
                ("sum_received.lost_packets", lost),
                ("sum_received.jitter_ms", received.jitter_ms),
            ] {
                figures.0.insert(name.to_owned(), needed(name, value)?);
            }
            let name = "sum_sent.packets";
            figures.0.insert(name.to_owned(), needed(name, sent.packets.map(|n| n as f64))?);
            (datagrams("sum_received.bytes", received.bytes, job)?, figures.count(name)?)
        } else {
            let size = u64::from(load.message_bytes);
            (received.bytes / size, sent.bytes / size)
        };
        if let Some(again) = sent.retransmits {
            figures.0.insert("sum_sent.retransmits".to_owned(), again as f64);
        }
        // Inconsistent figures are worse than none.
        if udp && units > sent_units {
            return Err(Unexpected::new(format!(
                "no more datagrams received than sent, not {units} of {sent_units}"
            )));
        }
        let counted = Counted {
            seconds,
            payload_bytes: received.bytes,
            units,
            sent_units,
            latency: None,
            tcp_retransmits: sent.retransmits,
        };
        Ok(outcome(job, counted, figures))
    }
}
