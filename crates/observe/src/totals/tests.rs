//! Tests of the metrics, with hand-made journeys, and of their documentation.

use std::collections::BTreeSet;

use super::*;
use crate::event::{Checksum, Event, Flow, Kind};
use crate::journeys::Journeys;
use crate::snapshot::{CpuSeen, FORMAT};

/// Names derived from the numbers.
struct Numbers;

impl Names for Numbers {
    fn namespace(&self, netns: Option<u32>) -> String {
        netns.map_or("?".to_owned(), |inode| format!("ns{inode}"))
    }

    fn reason(&self, reason: u32) -> String {
        format!("REASON_{reason}")
    }

    fn function(&self, _location: u64) -> Option<String> {
        None
    }
}

fn event(time: u64, netns: u32, device: &str, kind: Kind) -> Event {
    let address = "10.1.0.11".parse().unwrap();
    let flow = Flow {
        source: address,
        destination: address,
        protocol: 17,
        ports: (1, 2),
        tcp_flags: 0,
        sequence: 0,
        window: 0,
        id: 7,
        fragment: None,
        length: 100,
    };
    Event {
        time,
        skb: 0xa,
        location: 0,
        netns: Some(netns),
        device: Some((2, device.to_owned())),
        bytes: 114,
        reason: 0,
        gso: None,
        kind,
        checksum: Checksum::Partial,
        conntrack: None,
        mark: 0,
        cpu: 0,
        process: None,
        macs: None,
        flow: Some(flow),
        tunnel: None,
        headers: None,
    }
}

/// A packet that leaves `eth0` and is received by `nic0` of another namespace.
fn add_packet(totals: &mut Totals, netns: u32) {
    let mut gso = event(1000, netns, "eth0", Kind::Queued);
    (gso.gso, gso.bytes) = (Some((1400, 10)), 14_054);
    let mut journeys = Journeys::default();
    let mut ended = journeys.take([
        gso,
        event(3000, netns, "eth0", Kind::Sent),
        event(10_000, netns + 1, "nic0", Kind::Backlog),
    ]);
    ended.extend(journeys.finish());
    let mut paths = Paths::default();
    ended.iter().for_each(|journey| paths.add(journey, &Numbers));
    totals.add_paths(&paths, &Numbers);
}

fn dropped(device: &str, reason: &str, packets: u64) -> Dropped {
    let (device, reason) = (device.to_owned(), reason.to_owned());
    Dropped { netns: 1, device, reason, function: None, packets }
}

fn snapshot() -> Snapshot {
    Snapshot {
        format: FORMAT,
        time_s: 0.0,
        seconds: 2.0,
        sample: 4,
        looked: 0.5,
        followed: 3,
        events: 20,
        events_lost: 1,
        own_cpu: 1.5,
        kernel_cpu: 0.5,
        budget: 2.0,
        paths: Vec::new(),
        other_paths: 0,
        drops: Vec::new(),
        flow_drops: None,
        cpus: [(1, 50.0, 7), (0, 25.0, 3)]
            .map(|(cpu, softirq, backlog)| CpuSeen {
                cpu,
                softirq,
                backlog: Some(backlog),
                dropped: 1,
                squeezed: 2,
            })
            .to_vec(),
        peer: None,
        not_seen: Vec::new(),
    }
}

fn counted(packets: u64) -> Counters {
    Counters { rx_packets: packets, tx_bytes: 10 * packets, ..Counters::default() }
}

/// Returns totals with values for every metric.
fn totals() -> Totals {
    let mut totals = Totals::default();
    for _ in 0..2 {
        add_packet(&mut totals, 1);
        totals.add_device("ns1", "eth0", &counted(5));
        let drops = [dropped("eth0", "NO_SOCKET", 2), dropped("", "NO_SOCKET", 3)];
        totals.add_drops(&drops, &Numbers);
        totals.add_interval(&snapshot(), 2);
    }
    totals
}

#[test]
fn the_page_has_all_counts() {
    let text = totals().exposition("1");
    let path = "way=\"ns1 eth0 tx > ns2 nic0 rx\"";
    let nic = "device=\"nic0\",namespace=\"ns2\",side=\"rx\"";
    let eth = "device=\"eth0\",namespace=\"ns1\",side=\"tx\"";
    for line in [
        "overlane_watch_build_info{version=\"1\"} 1".to_owned(),
        "overlane_watch_intervals_total 2".to_owned(),
        "overlane_watch_seconds_total 4".to_owned(),
        "overlane_watch_followed_packets_total 6".to_owned(),
        "overlane_watch_lost_events_total 2".to_owned(),
        "overlane_watch_followed_ratio 0.25".to_owned(),
        "overlane_watch_looked_ratio 0.5".to_owned(),
        "overlane_watch_softirq_cpu_ratio 0.375".to_owned(),
        "overlane_watch_busiest_softirq_cpu_ratio 0.5".to_owned(),
        "overlane_watch_backlog_packets 10".to_owned(),
        "overlane_watch_backlog_dropped_packets_total 4".to_owned(),
        "overlane_watch_squeezed_total 8".to_owned(),
        "overlane_watch_own_cpu_ratio 0.015".to_owned(),
        "overlane_watch_budget_cpu_ratio 0.02".to_owned(),
        "overlane_watch_device_packets_total{device=\"eth0\",namespace=\"ns1\",side=\"rx\"} 10"
            .to_owned(),
        format!("overlane_watch_device_bytes_total{{{eth}}} 100"),
        format!("overlane_watch_hop_followed_packets_total{{{eth}}} 2"),
        format!("overlane_watch_hop_followed_segments_total{{{eth}}} 20"),
        format!("overlane_watch_hop_followed_bytes_total{{{eth}}} 28108"),
        format!("overlane_watch_hop_wait_seconds_count{{{eth}}} 2"),
        "overlane_watch_hop_latency_seconds_bucket{device=\"nic0\",namespace=\"ns2\",\
         side=\"rx\",le=\"0.000005\"} 0"
            .to_owned(),
        "overlane_watch_hop_latency_seconds_bucket{device=\"nic0\",namespace=\"ns2\",\
         side=\"rx\",le=\"0.00001\"} 2"
            .to_owned(),
        format!("overlane_watch_hop_latency_seconds_count{{{nic}}} 2"),
        format!("overlane_watch_way_followed_packets_total{{{path}}} 2"),
        format!("overlane_watch_way_latency_seconds_count{{{path}}} 2"),
        "overlane_watch_dropped_packets_total{reason=\"NO_SOCKET\"} 10".to_owned(),
        "overlane_watch_place_dropped_packets_total{device=\"eth0\",namespace=\"ns1\",\
         reason=\"NO_SOCKET\"} 4"
            .to_owned(),
        "overlane_watch_place_dropped_packets_total{device=\"\",namespace=\"ns1\",\
         reason=\"NO_SOCKET\"} 6"
            .to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    // The first hop has no time since a previous one.
    assert!(!text.contains(&format!("overlane_watch_hop_latency_seconds_count{{{eth}}}")));
    // Labels contain nothing that remote hosts choose.
    assert!(!text.contains("10.1.0.11"), "{text}");
}

#[test]
fn labels_are_bounded_and_sums_stay_right() {
    let mut totals = Totals::default();
    let long = "n".repeat(5000);
    for number in 0..5000 {
        totals.add_device(&format!("{number}{long}"), &long, &counted(3));
        add_packet(&mut totals, 10 * number);
        let reason = format!("reason {number}");
        totals.add_drops(&[dropped(&long, &reason, 2)], &Numbers);
    }
    let text = totals.exposition("1");
    let sum = |metric: &str| -> (usize, f64) {
        let of =
            |line: &str| line.starts_with(metric).then(|| line.rsplit(' ').next()?.parse().ok());
        let values: Vec<f64> = text.lines().filter_map(|line| of(line)?).collect();
        (values.len(), values.iter().sum())
    };
    for (metric, series, total) in [
        ("overlane_watch_device_packets_total{", 2 * (MOST_DEVICES + 1), 15_000.0),
        ("overlane_watch_hop_followed_packets_total{", MOST_HOPS + 1, 10_000.0),
        ("overlane_watch_way_followed_packets_total{", MOST_PATHS + 1, 5000.0),
        ("overlane_watch_dropped_packets_total{", MOST_REASONS + 1, 10_000.0),
        ("overlane_watch_place_dropped_packets_total{", MOST_DROPS + 1, 10_000.0),
    ] {
        assert_eq!(sum(metric), (series, total), "{metric}");
    }
    assert!(text.len() < 4 << 20, "{} bytes", text.len());
}

/// Returns the metrics that a text names; those of a histogram by its own name.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let beginnings = text.match_indices("overlane_watch_").map(|(at, _)| &text[at..]);
    let names = beginnings.map(|rest| rest.split(|c| !is_part(c)).next().unwrap_or_default());
    let of_histogram = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
        parts.unwrap_or(name).to_owned()
    };
    names.map(of_histogram).collect()
}

#[test]
fn book_and_dashboard_name_what_there_is() {
    let there = named(&totals().exposition("1"));
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| std::fs::read_to_string(top.join(name)).unwrap();
    let page = read("docs/src/reference/metrics.md");
    assert_eq!(named(&page), there, "metrics.md and the program");
    for most in [MOST_DEVICES, MOST_HOPS, MOST_PATHS, MOST_REASONS, MOST_DROPS] {
        assert!(page.contains(&format!("| {most} |")), "{most} is not in metrics.md");
    }
    let dashboard = named(&read("examples/grafana/overlane-watch.json"));
    let unknown: Vec<&String> = dashboard.difference(&there).collect();
    assert!(unknown.is_empty() && dashboard.len() > 10, "{unknown:?} of {dashboard:?}");
}
