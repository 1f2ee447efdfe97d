//! Totals since the start, as Prometheus metrics.
//!
//! The number of label values is bounded: namespaces, devices, hops and paths have a fixed number
//! of series, and everything beyond is summed up as `other`. Namespaces share the series fairly, so
//! a namespace with thousands of devices does not displace those of others. Labels contain nothing
//! that a remote host chooses, such as addresses, ports or flows. Long names are truncated.

use std::time::Duration;

use foreign::metrics::{Bounded, Histogram, Page};
use netstate::Counters;

use crate::drops::Dropped;
use crate::paths::Paths;
use crate::record::Names;
use crate::snapshot::{Side, Snapshot};

/// Maximum number of devices with their own series.
pub const MOST_DEVICES: usize = 256;
/// Maximum number of hops with their own series.
pub const MOST_HOPS: usize = 128;
/// Maximum number of paths with their own series.
pub const MOST_PATHS: usize = 32;
/// Maximum number of drop reasons with their own series.
pub const MOST_REASONS: usize = 128;
/// Maximum number of pairs of device and drop reason with their own series.
pub const MOST_DROPS: usize = 256;

/// Longest name of a namespace or device, characters.
const NAME: usize = 64;
/// Longest name of a path, characters.
const WAY: usize = 512;
/// Label value for everything without its own series.
const OTHER: &str = "other";
const PREFIX: &str = "overlane_watch";

type DeviceLabels = [String; 2];
type HopLabels = [String; 3];

/// Counts since the start.
#[derive(Debug)]
pub struct Totals {
    /// Time watched.
    seen: Duration,
    intervals: u64,
    followed: u64,
    events: u64,
    events_lost: u64,
    /// Values of the last interval: share of packets followed, share of time, own CPU, its limit,
    /// number of things not observed.
    share: f64,
    looked: f64,
    own_cpu: f64,
    budget: f64,
    not_seen: usize,
    namespaces: usize,
    /// Values of the last interval: time in softirqs of all CPUs and of the busiest one; packets in
    /// backlogs.
    softirq: f64,
    busiest_softirq: f64,
    backlog: u64,
    /// Packets dropped from backlogs, and number of softirqs that stopped early.
    backlog_dropped: u64,
    squeezed: u64,
    devices: Bounded<DeviceLabels, Device>,
    hops: Bounded<HopLabels, Hop>,
    paths: Bounded<String, PathTotals>,
    reasons: Bounded<String, u64>,
    drops: Bounded<HopLabels, u64>,
}

/// Counters of a device, by side.
#[derive(Debug, Clone, Copy, Default)]
struct Device {
    rx: Counted,
    tx: Counted,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    packets: u64,
    bytes: u64,
    dropped: u64,
}

/// Statistics of followed packets at a hop.
#[derive(Debug, Clone, Copy, Default)]
struct Hop {
    packets: u64,
    bytes: u64,
    segments: u64,
    cut: u64,
    merged: u64,
    checksummed: u64,
    since_before: Histogram,
    waited: Histogram,
}

#[derive(Debug, Clone, Copy, Default)]
struct PathTotals {
    packets: u64,
    took: Histogram,
}

impl Default for Totals {
    fn default() -> Totals {
        Totals {
            seen: Duration::ZERO,
            intervals: 0,
            followed: 0,
            events: 0,
            events_lost: 0,
            share: 0.0,
            looked: 0.0,
            own_cpu: 0.0,
            budget: 0.0,
            not_seen: 0,
            namespaces: 0,
            softirq: 0.0,
            busiest_softirq: 0.0,
            backlog: 0,
            backlog_dropped: 0,
            squeezed: 0,
            devices: Bounded::shared(MOST_DEVICES, |labels| &labels[0]),
            hops: Bounded::shared(MOST_HOPS, |labels| &labels[0]),
            paths: Bounded::new(MOST_PATHS),
            reasons: Bounded::new(MOST_REASONS),
            drops: Bounded::shared(MOST_DROPS, |labels| &labels[0]),
        }
    }
}

impl Totals {
    /// Adds what a device counted since it was last read.
    pub(crate) fn add_device(&mut self, namespace: &str, device: &str, counted: &Counters) {
        let side = |packets, bytes, dropped| Counted { packets, bytes, dropped };
        let rx = side(counted.rx_packets, counted.rx_bytes, counted.rx_dropped);
        let tx = side(counted.tx_packets, counted.tx_bytes, counted.tx_dropped);
        // An idle device needs no series.
        if rx.is_nothing() && tx.is_nothing() {
            return;
        }
        let device = self.devices.of([cut_off(namespace), cut_off(device)], self.seen);
        device.rx.add(&rx);
        device.tx.add(&tx);
    }

    /// Adds the paths of followed packets.
    pub(crate) fn add_paths(&mut self, paths: &Paths, names: &dyn Names) {
        for path in paths.iter() {
            let mut stations = Vec::new();
            for (place, seen) in path.hops() {
                let namespace = cut_off(&names.namespace(place.netns));
                let device = place.device.as_ref().map(|(_, name)| cut_off(name));
                // A socket is at no device.
                let device = device.unwrap_or_default();
                let side = place.side.name();
                let shown = if device.is_empty() { "-" } else { &device };
                stations.push(format!("{namespace} {shown} {side}"));
                let hop = self.hops.of([namespace, device, side.to_owned()], self.seen);
                hop.packets += seen.packets;
                hop.bytes += seen.bytes;
                hop.segments += seen.gso_packets;
                hop.cut += seen.cut;
                hop.merged += seen.merged;
                hop.checksummed += seen.checksummed;
                seen.since_before.iter().for_each(|ns| hop.since_before.add_ns(*ns));
                seen.waited.iter().for_each(|ns| hop.waited.add_ns(*ns));
            }
            // Label values are limited in length.
            let name: String = stations.join(" > ").chars().take(WAY).collect();
            let totals = self.paths.of(name, self.seen);
            totals.packets += path.packets;
            path.took.iter().for_each(|ns| totals.took.add_ns(*ns));
        }
    }

    pub(crate) fn add_drops(&mut self, drops: &[Dropped], names: &dyn Names) {
        for dropped in drops {
            let namespace = names.namespace(u32::try_from(dropped.netns).ok());
            let reason = cut_off(&dropped.reason);
            *self.reasons.of(reason.clone(), self.seen) += dropped.packets;
            let labels = [cut_off(&namespace), cut_off(&dropped.device), reason];
            *self.drops.of(labels, self.seen) += dropped.packets;
        }
    }

    /// Adds the values of an interval that ended.
    pub(crate) fn add_interval(&mut self, snapshot: &Snapshot, namespaces: usize) {
        self.seen += Duration::try_from_secs_f64(snapshot.seconds).unwrap_or_default();
        self.intervals += 1;
        self.followed += snapshot.followed;
        self.events += snapshot.events;
        self.events_lost += snapshot.events_lost;
        self.share = 1.0 / f64::from(snapshot.sample.max(1));
        self.looked = snapshot.looked;
        self.own_cpu = snapshot.own_cpu / 100.0;
        self.budget = snapshot.budget / 100.0;
        self.not_seen = snapshot.not_seen.len();
        self.namespaces = namespaces;
        let cpus = &snapshot.cpus;
        self.softirq =
            cpus.iter().map(|cpu| cpu.softirq).sum::<f64>() / 100.0 / cpus.len().max(1) as f64;
        self.busiest_softirq = cpus.first().map_or(0.0, |cpu| cpu.softirq / 100.0);
        self.backlog = cpus.iter().map(|cpu| u64::from(cpu.backlog.unwrap_or(0))).sum();
        self.backlog_dropped += cpus.iter().map(|cpu| cpu.dropped).sum::<u64>();
        self.squeezed += cpus.iter().map(|cpu| cpu.squeezed).sum::<u64>();
    }

    /// Returns the number of intervals that have ended.
    pub fn intervals(&self) -> u64 {
        self.intervals
    }

    /// Renders the metrics for Prometheus (text format 0.0.4).
    pub fn exposition(&self, version: &str) -> String {
        let mut page = Page::new(PREFIX, version);
        self.cost(&mut page);
        self.device_metrics(&mut page);
        self.hop_metrics(&mut page);
        self.path_metrics(&mut page);
        self.drop_metrics(&mut page);
        page.text()
    }

    fn cost(&self, page: &mut Page) {
        for (name, help, value) in [
            ("intervals_total", "Intervals completed.", self.intervals as f64),
            ("seconds_total", "Time watched, in seconds.", self.seen.as_secs_f64()),
            ("followed_packets_total", "Packets followed to their end.", self.followed as f64),
            ("events_total", "Events received from the BPF programs.", self.events as f64),
            (
                "lost_events_total",
                "Events lost because the ring buffer was full.",
                self.events_lost as f64,
            ),
            (
                "backlog_dropped_packets_total",
                "Packets dropped because a CPU's backlog was full or one flow exceeded its share.",
                self.backlog_dropped as f64,
            ),
            (
                "squeezed_total",
                "Times that a network softirq stopped early with work left (time_squeeze).",
                self.squeezed as f64,
            ),
        ] {
            page.counter(name, help, value);
        }
        for (name, help, value) in [
            (
                "followed_ratio",
                "Share of packets that is followed while a window is open.",
                self.share,
            ),
            (
                "looked_ratio",
                "Share of the last interval in which packets were selected to be followed.",
                self.looked,
            ),
            (
                "own_cpu_ratio",
                "CPU time of this program and its BPF programs in the last interval, as a share of \
                    one CPU.",
                self.own_cpu,
            ),
            (
                "budget_cpu_ratio",
                "Limit for own_cpu_ratio; above it, packets are followed for less of the time.",
                self.budget,
            ),
            (
                "softirq_cpu_ratio",
                "Time spent in softirqs in the last interval, as a share of all CPUs.",
                self.softirq,
            ),
            (
                "busiest_softirq_cpu_ratio",
                "Time spent in softirqs by the busiest CPU in the last interval.",
                self.busiest_softirq,
            ),
            (
                "backlog_packets",
                "Packets in the CPUs' backlogs at the end of the last interval.",
                { self.backlog as f64 },
            ),
            ("namespaces", "Network namespaces whose devices are counted.", {
                self.namespaces as f64
            }),
            (
                "not_seen",
                "Number of things that the kernel or the process's privileges do not let it \
                    observe.",
                self.not_seen as f64,
            ),
        ] {
            page.gauge(name, help, value);
        }
    }

    fn device_metrics(&self, page: &mut Page) {
        let other = [OTHER; 2].map(str::to_owned);
        type Number = fn(&Counted) -> u64;
        let numbers: [(&str, &str, Number); 3] = [
            (
                "device_packets_total",
                "Packets as counted by the device; most devices count a GSO packet as one.",
                |counted| counted.packets,
            ),
            (
                "device_bytes_total",
                "Bytes as counted by the device, including the Ethernet header.",
                |counted| counted.bytes,
            ),
            ("device_dropped_packets_total", "Packets dropped as counted by the device.", {
                |counted| counted.dropped
            }),
        ];
        for (name, help, number) in numbers {
            let values = self.devices.iter(&other).flat_map(|([namespace, name], device)| {
                [(Side::Rx, &device.rx), (Side::Tx, &device.tx)].map(|(side, counted)| {
                    let labels = [namespace.clone(), name.clone(), side.name().to_owned()];
                    (labels, number(counted) as f64)
                })
            });
            page.counters(name, help, ["namespace", "device", "side"], values);
        }
    }

    fn hop_metrics(&self, page: &mut Page) {
        const LABELS: [&str; 3] = ["namespace", "device", "side"];
        let other = [OTHER; 3].map(str::to_owned);
        let hops = || self.hops.iter(&other);
        type Number = fn(&Hop) -> u64;
        let numbers: [(&str, &str, Number); 6] = [
            ("hop_followed_packets_total", "Followed packets that reached this hop.", |hop| {
                hop.packets
            }),
            ("hop_followed_bytes_total", "Bytes of the followed packets at this hop.", |hop| {
                hop.bytes
            }),
            (
                "hop_followed_segments_total",
                "Packets that the followed packets stand for at this hop; a GSO packet stands for \
                    several.",
                |hop| hop.segments,
            ),
            (
                "hop_cut_packets_total",
                "Followed packets that the CPU segmented at this hop.",
                |hop| hop.cut,
            ),
            (
                "hop_merged_packets_total",
                "Followed packets that left this hop merged with others.",
                |hop| hop.merged,
            ),
            (
                "hop_checksummed_packets_total",
                "Followed packets whose checksum the CPU computed at this hop.",
                |hop| hop.checksummed,
            ),
        ];
        for (name, help, number) in numbers {
            let values = hops().map(|(labels, hop)| (labels.clone(), number(hop) as f64));
            page.counters(name, help, LABELS, values);
        }
        type Times = fn(&Hop) -> Histogram;
        let times: [(&str, &str, Times); 2] = [
            (
                "hop_latency_seconds",
                "Time of followed packets from the previous hop to this one.",
                |hop| hop.since_before,
            ),
            (
                "hop_wait_seconds",
                "Time of followed packets at this hop, in the device's queue or a CPU's backlog.",
                |hop| hop.waited,
            ),
        ];
        for (name, help, times) in times {
            // The first hop has no previous one, so no time.
            let values = hops().map(|(labels, hop)| (labels.clone(), times(hop)));
            page.histograms(name, help, LABELS, values.filter(|(_, times)| times.count() > 0));
        }
    }

    fn path_metrics(&self, page: &mut Page) {
        let other = OTHER.to_owned();
        let packets = self.paths.iter(&other).map(|(name, path)| {
            let labels = [name.clone()];
            (labels, path.packets as f64)
        });
        page.counters(
            "way_followed_packets_total",
            "Followed packets by the path that they took.",
            ["way"],
            packets,
        );
        let took = self.paths.iter(&other).map(|(name, path)| ([name.clone()], path.took));
        page.histograms(
            "way_latency_seconds",
            "Time of followed packets from the first hop to the last.",
            ["way"],
            took,
        );
    }

    fn drop_metrics(&self, page: &mut Page) {
        let other = OTHER.to_owned();
        let reasons = self.reasons.iter(&other);
        page.counters(
            "dropped_packets_total",
            "Packets dropped by the kernel, by reason; all packets, not only followed ones.",
            ["reason"],
            reasons.map(|(reason, packets)| ([reason.clone()], *packets as f64)),
        );
        let others = [OTHER; 3].map(str::to_owned);
        page.counters(
            "place_dropped_packets_total",
            "Packets dropped by the kernel, by namespace, device and reason.",
            ["namespace", "device", "reason"],
            self.drops.iter(&others).map(|(labels, packets)| (labels.clone(), *packets as f64)),
        );
    }
}

impl Counted {
    fn is_nothing(&self) -> bool {
        self.packets == 0 && self.bytes == 0 && self.dropped == 0
    }

    fn add(&mut self, other: &Counted) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.dropped += other.dropped;
    }
}

fn cut_off(name: &str) -> String {
    name.chars().take(NAME).collect()
}

#[cfg(test)]
mod tests;
