//! Published figures of other authors for the work of a named plan.

use results::Results;

use super::bars::{Bars, Mark, Row, draw as draw_bars};
use super::lines::{Axis, Lines, Point, Series, draw as draw_lines};
use super::scale::{Kind, short};
use super::{Chart, clients, cpu, drop_point, ratio, sizes};

/// Published figures, and this run's figures for comparison.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Published {
    /// Authors, machine and date.
    pub(crate) source: &'static str,
    pub(crate) theirs: Vec<Chart>,
    /// Charts of the same figures from this run.
    pub(crate) ours: Vec<Chart>,
}

const QPERF: &str = include_str!("../../published/qperf_host_vs_vxlan.csv");
const IPERF3: &str = include_str!("../../published/iperf3_host_vs_vxlan.csv");
const NETPERF: &str = include_str!("../../published/netperf_vxlan_offload.csv");
const CNI_LATENCY: &str = include_str!("../../published/cni_latency.csv");
const CNI_THROUGHPUT: &str = include_str!("../../published/cni_throughput.csv");
const DOCKER: &str = include_str!("../../published/docker_modes_tps_rt.csv");
const UDP: &str = include_str!("../../published/udp_pps_tuning.csv");
const OVERLAYS: &str = include_str!("../../published/overlay_over_host.csv");
const TAP: &str = include_str!("../../published/tap_bridge.csv");

const VXLAN_2018: &str = "“VXLAN network performance test”, 2018: two hosts, Xeon E5-2430, Linux \
                          3.10, a link of about 400 Mbit/s";

/// Finds published figures by the plan's name, or the file name of a plan read from a file.
pub(super) fn of(results: &Results) -> Option<Published> {
    let name = results.plan.name.as_deref()?;
    let name = name.rsplit('/').next().unwrap_or(name);
    let name = name.strip_suffix(".toml").unwrap_or(name);
    let (source, theirs, ours) = match name {
        "qperf-sweep" => (
            VXLAN_2018,
            vec![
                curves(
                    "qperf tcp_bw, published 2018",
                    QPERF,
                    "message size, bytes",
                    "MB/s",
                    &[1, 2],
                ),
                curves(
                    "qperf tcp_lat, published 2018",
                    QPERF,
                    "message size, bytes",
                    "µs",
                    &[3, 4],
                ),
                points(
                    "iperf3 TCP, three runs each, published 2018",
                    IPERF3,
                    "Mbit/s received",
                    &[3],
                ),
            ],
            sizes::charts(results),
        ),
        "netperf-offload" => (
            "“VXLAN offload” lab report, about 2015: Emulex OneConnect NIC, Open vSwitch VXLAN \
             port, RHEL 7.1, 10 Gb/s; 99% confidence of ±2.5% was requested and not reached",
            vec![
                netperf("netperf TCP_STREAM, published about 2015", "Mbit/s", 2),
                netperf("netperf service demand, sender, published about 2015", "µs/KB", 5),
                netperf("netperf service demand, receiver, published about 2015", "µs/KB", 6),
            ],
            [sizes::charts(results), cpu::charts(results)].concat(),
        ),
        "cni-sweep" => (
            VXLAN_2018,
            vec![
                curves(
                    "latency, published 2018",
                    CNI_LATENCY,
                    "message size, bytes",
                    "ms",
                    &[1, 2, 3, 4, 5],
                ),
                curves(
                    "throughput, published 2018",
                    CNI_THROUGHPUT,
                    "message size, bytes",
                    "Mbit/s",
                    &[1, 2, 3, 4, 5],
                ),
            ],
            sizes::charts(results),
        ),
        "docker-modes" => (
            "“VXLAN network performance test”, 2018, two OS releases (“6U” and “7U”)",
            vec![
                points(
                    "transactions per second, published 2018",
                    DOCKER,
                    "transactions per second",
                    &[1, 2],
                ),
                points("response time, published 2018", DOCKER, "ms", &[3, 4]),
            ],
            [clients::charts(results), ratio::charts(results)].concat(),
        ),
        "udp-tuning" => (
            "“Tun container datapath performance” (OpenStack), about 2017: Cisco UCS C220M3, enic \
             driver, RHEL 7.3, iperf3 UDP of 64 bytes",
            vec![ranges("without drops, and where drops start, published about 2017")],
            drop_point::charts(results),
        ),
        "accel" => (
            "ONCache (NSDI 2025) and Antrea by ONCache's authors; an independent rewrite of \
             ONCache; a comparison of CNI plug-ins on a link of 40 Gb/s, 2024",
            vec![points("overlays against the host, published", OVERLAYS, "% of host", &[1, 2])],
            ratio::charts(results),
        ),
        "tap-bridge" => (
            "“tap device poor performance”, freebsd-net, 2009",
            vec![points("TCP through two TAP devices, published 2009", TAP, "MB/s", &[2])],
            ratio::charts(results),
        ),
        // No figures were published for this plan.
        _ => return None,
    };
    Some(Published { source, theirs: theirs.into_iter().flatten().collect(), ours })
}

fn rows(csv: &'static str) -> (Vec<&'static str>, Vec<Vec<&'static str>>) {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    (lines.next().unwrap_or_default(), lines.collect())
}

/// Charts columns over the first one.
fn curves(title: &str, csv: &'static str, x: &str, y: &str, columns: &[usize]) -> Option<Chart> {
    let (heads, rows) = rows(csv);
    let number = |row: &[&str], column: usize| row.get(column)?.parse::<f64>().ok();
    let series: Vec<Series> = columns
        .iter()
        .enumerate()
        .map(|(style, column)| Series {
            name: heads[*column].replace('_', " "),
            style,
            points: rows
                .iter()
                .filter_map(|row| {
                    let (x, y) = (number(row, 0)?, number(row, *column)?);
                    Some(Point { x, y, ..Point::default() })
                })
                .collect(),
        })
        .collect();
    lines(title, x, y, series)
}

fn lines(title: &str, x: &str, y: &str, series: Vec<Series>) -> Option<Chart> {
    let figures = || series.iter().flat_map(|series| &series.points).map(|point| point.y);
    // Figures that span more than a factor of 20 need a log axis.
    let wide = figures().fold(0.0, f64::max) > 20.0 * figures().fold(f64::MAX, f64::min);
    let kind = if wide { Kind::Log } else { Kind::Linear };
    let lines = Lines {
        x: Axis { words: x.to_string(), kind: Kind::Log, ticks: Vec::new() },
        y: Axis { words: y.to_string(), kind, ticks: Vec::new() },
        mark: None,
        markers: true,
        series,
    };
    Chart::new("published", title.to_string(), "Measured on another machine.", draw_lines(&lines))
}

/// Charts a column over message sizes, with tunnel offload off and on.
fn netperf(title: &str, y: &str, column: usize) -> Option<Chart> {
    let (_, rows) = rows(NETPERF);
    let series = ["off", "on"].iter().enumerate().map(|(style, offload)| Series {
        name: format!("tunnel offload {offload}"),
        style,
        points: rows
            .iter()
            .filter(|row| row[0] == *offload)
            .filter_map(|row| {
                let (x, y) = (row[1].parse().ok()?, row.get(column)?.parse().ok()?);
                Some(Point { x, y, ..Point::default() })
            })
            .collect(),
    });
    lines(title, "message size, bytes", y, series.collect())
}

/// Charts rows named by the first column. Several columns, or several rows with one name, become
/// several marks.
fn points(title: &str, csv: &'static str, words: &str, columns: &[usize]) -> Option<Chart> {
    let (heads, lines) = rows(csv);
    let mut rows: Vec<Row> = Vec::new();
    for line in &lines {
        let marks = columns.iter().enumerate().filter_map(|(style, column)| {
            let at = line.get(*column)?.parse().ok()?;
            Some(Mark { style, at, ends: None })
        });
        let marks: Vec<Mark> = marks.collect();
        // This table has two rows per name, by tool.
        let tool = line.get(1).filter(|tool| csv == TAP && **tool == "wget_http");
        let name = match tool {
            Some(_) => format!("{}, HTTP", line[0].replace('_', " ")),
            None => line[0].replace('_', " "),
        };
        match rows.iter_mut().find(|row| row.name == name) {
            Some(row) => row.marks.extend(marks),
            None => {
                let figure = marks.first().map(|mark| short(mark.at)).unwrap_or_default();
                rows.push(Row { name, marks, figure, ..Row::default() });
            }
        }
    }
    let legend = match columns {
        [_] => Vec::new(),
        columns => columns.iter().map(|column| heads[*column].replace('_', " ")).collect(),
    };
    let bars = Bars { words: words.to_string(), kind: Kind::Linear, mark: None, legend, rows };
    Chart::new("published", title.to_string(), "Measured on another machine.", draw_bars(&bars))
}

/// Charts low and high ends of the two rates of each tuning step.
fn ranges(title: &str) -> Option<Chart> {
    let (_, lines) = rows(UDP);
    let range = |line: &[&str], style: usize| {
        let low: f64 = line.get(1 + 2 * style)?.parse().ok()?;
        let high: f64 = line.get(2 + 2 * style)?.parse().ok()?;
        let (low, high) = (1000.0 * low, 1000.0 * high);
        Some(Mark { style, at: 0.5 * (low + high), ends: Some((low, high)) })
    };
    let rows = lines
        .iter()
        .map(|line| {
            let marks: Vec<Mark> = (0..2).filter_map(|style| range(line, style)).collect();
            let figure = marks.first().map(|mark| short(mark.at)).unwrap_or_default();
            Row { name: line[0].replace('_', " "), marks, figure, ..Row::default() }
        })
        .collect();
    let legend = vec!["without drops".to_string(), "drops start".to_string()];
    let words = "datagrams per second".to_string();
    let bars = Bars { words, kind: Kind::Log, mark: None, legend, rows };
    Chart::new("published", title.to_string(), "Measured on another machine.", draw_bars(&bars))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_table_is_read_whole() {
        for (csv, columns, count) in [
            (QPERF, 5, 13),
            (IPERF3, 5, 12),
            (NETPERF, 8, 10),
            (CNI_LATENCY, 6, 8),
            (CNI_THROUGHPUT, 6, 8),
            (DOCKER, 5, 7),
            (UDP, 5, 5),
            (OVERLAYS, 3, 7),
            (TAP, 3, 4),
        ] {
            let (heads, rows) = rows(csv);
            assert_eq!((heads.len(), rows.len()), (columns, count), "{heads:?}");
            assert!(rows.iter().all(|row| row.len() == columns));
        }
    }
}
