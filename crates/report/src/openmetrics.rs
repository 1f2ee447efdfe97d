//! OpenMetrics text, for the textfile collector of Prometheus' node exporter.

use std::fmt::Write as _;

use results::{Cell, Results, Role};

use crate::ecn::congestion;
use crate::retransmits::retransmits;
use crate::style::plain;
use crate::unit::reordered;

/// Per second. Metrics have base units.
const MICROSECONDS: f64 = 1e6;

/// A metric: name, unit in its help text, and value of a cell.
struct Metric {
    name: &'static str,
    help: &'static str,
    value: fn(&Cell) -> Option<f64>,
}

const METRICS: [Metric; 16] = [
    Metric { name: "median", help: "Median of the valid samples, in `unit`", value: |c| c.median },
    Metric {
        name: "ratio",
        help: "Ratio to the baseline of the same block, median",
        value: |c| Some(c.ratio?.median),
    },
    Metric {
        name: "ratio_low",
        help: "Lower end of the interval of the ratio",
        value: |c| Some(c.ratio?.low),
    },
    Metric {
        name: "ratio_high",
        help: "Upper end of the interval of the ratio",
        value: |c| Some(c.ratio?.high),
    },
    Metric {
        name: "cpu_seconds",
        help: "CPU time of the load per unit of work, which is named in `per`",
        value: |c| Some(c.service_demand.as_ref()?.value / MICROSECONDS),
    },
    Metric {
        name: "latency_p50_seconds",
        help: "Median latency",
        value: |c| Some(c.latency_us?.p50 / MICROSECONDS),
    },
    Metric {
        name: "latency_p99_seconds",
        help: "99th percentile of latency",
        value: |c| Some(c.latency_us?.p99 / MICROSECONDS),
    },
    Metric {
        name: "loss_ratio",
        help: "Lost datagrams, as a share of the sent ones",
        value: |c| Some(c.loss.as_ref()?.fraction),
    },
    Metric {
        name: "beside_forward_bits_per_second",
        help: "Bulk traffic beside the requests, from the client, payload",
        value: |c| c.beside_rates?.forward_bits_per_s,
    },
    Metric {
        name: "beside_reverse_bits_per_second",
        help: "Bulk traffic beside the requests, from the server, payload",
        value: |c| c.beside_rates?.reverse_bits_per_s,
    },
    Metric {
        name: "jitter_seconds",
        help: "Interarrival jitter of datagrams (RFC 3550)",
        value: |c| Some(c.arrivals?.jitter_us / MICROSECONDS),
    },
    Metric {
        name: "reordered_ratio",
        help: "Datagrams that arrived after one that was sent later, as a share",
        value: |c| c.arrivals.as_ref().map(reordered),
    },
    Metric {
        name: "tcp_retransmits",
        help: "Retransmitted TCP segments per sample, median",
        value: retransmits,
    },
    Metric {
        name: "ecn_ce_ratio",
        help: "Packets that arrived with a congestion mark (ECN), as a share",
        value: congestion,
    },
    Metric {
        name: "flow_least",
        help: "Rate of the slowest flow, in the workload's rate unit",
        value: |c| Some(c.flow_shares?.least),
    },
    Metric {
        name: "flow_jain_ratio",
        help: "Jain's fairness index of the flows",
        value: |c| Some(c.flow_shares?.jain),
    },
];

/// Renders each cell's figures as gauges (OpenMetrics 1.0). A figure that a cell lacks has no line.
pub fn openmetrics(results: &Results) -> String {
    let mut out = String::new();
    for metric in &METRICS {
        let lines: Vec<String> = results
            .cells
            .iter()
            // Without a finite value there is nothing to alert on.
            .filter_map(|cell| Some((cell, (metric.value)(cell).filter(|v| v.is_finite())?)))
            .map(|(cell, value)| {
                format!("overlane_result_{}{{{}}} {value}\n", metric.name, labels(cell))
            })
            .collect();
        if lines.is_empty() {
            continue;
        }
        let name = metric.name;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# TYPE overlane_result_{name} gauge");
        let _ = writeln!(out, "# HELP overlane_result_{name} {}", metric.help);
        out.extend(lines);
    }
    out.push_str("# EOF\n");
    out
}

fn labels(cell: &Cell) -> String {
    let role = match cell.role {
        Role::Baseline => "baseline",
        Role::Aa => "aa",
        Role::Measured => "measured",
    };
    let percent = cell.offered.and_then(|offered| offered.percent);
    let cpu_unit = cell.service_demand.as_ref().map(|demand| demand.unit.to_string());
    let per = cpu_unit.map(|unit| unit.trim_start_matches("us/").to_owned());
    let pairs = [
        ("mode", cell.mode.clone()),
        ("role", role.to_owned()),
        ("offload", cell.offload.to_string()),
        ("mtu", cell.mtu.to_string()),
        ("workload", cell.workload.to_string()),
        ("message_bytes", cell.message_bytes.to_string()),
        ("flows", cell.flows.to_string()),
        ("outstanding", cell.outstanding.to_string()),
        (
            "rate_per_s",
            cell.offered
                .filter(|o| o.percent.is_none())
                .map(|o| o.per_s.to_string())
                .unwrap_or_default(),
        ),
        ("beside", cell.beside.map(|beside| beside.to_string()).unwrap_or_default()),
        ("load_percent", percent.map(|percent| percent.to_string()).unwrap_or_default()),
        (
            "socket_buffer_bytes",
            cell.socket_buffer_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
        ),
        ("setting", cell.setting.clone().unwrap_or_default()),
        ("gso", if cell.gso { "true".to_owned() } else { String::new() }),
        ("engine", cell.engine.to_string()),
        ("unit", cell.unit.to_string()),
        ("per", per.unwrap_or_default()),
    ];
    // An empty label is the same as none.
    let pairs = pairs.iter().filter(|(_, value)| !value.is_empty());
    pairs
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect::<Vec<_>>()
        .join(",")
}

/// Escapes a label's value. Control characters of an untrusted file are shown as escapes.
fn escaped(value: &str) -> String {
    plain(value).replace('\\', "\\\\").replace('"', "\\\"")
}
