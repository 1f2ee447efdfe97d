//! A sample, and what is counted in one.
//!
//! Bytes on hops are layer-3 bytes: the device's counter less 14 bytes of
//! Ethernet header a packet, so that a mean compares with an MTU directly.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::background::Disturbance;
use crate::names::{Direction, RecordKind};

/// One measured interval of one cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("allOf" = crate::schema::sample_rules())))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::newer))]
pub struct Sample {
    /// Number of the block, from 0.
    pub block: u32,
    /// Place within the block's random order, from 0.
    pub position: u32,
    /// Value in the cell's unit; 0 where the sample failed. Of `drop_point`: what
    /// was received at the highest rate that lost at most 0.1%.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub value: f64,
    /// Whether it counts for the median, the ratio and the interval.
    pub valid: bool,
    /// Why it does not.
    pub invalid_reason: Option<String>,
    /// Whether every hop of the mode was seen to carry the traffic. True for every valid
    /// sample.
    pub path_proved: bool,
    /// value ÷ the baseline's value of the same block.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub ratio: Option<f64>,
    /// Seconds measured, without warm-up.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub seconds: f64,
    /// Payload at the receiver, bits/s.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub bits_per_s: f64,
    /// Messages, datagrams, transactions or connections at the receiver.
    pub units: u64,
    /// CPU time per unit of work, in the cell's service demand unit.
    pub service_demand: Option<f64>,
    /// Service demand ÷ the baseline's of the same block.
    pub service_demand_ratio: Option<f64>,
    /// CPU seconds of the whole machine by kind.
    pub cpu: CpuSeconds,
    /// The same of the server's machine, where it is another.
    pub peer_cpu: Option<CpuSeconds>,
    /// Latency (rr and crr).
    pub latency_us: Option<Latency>,
    /// Latencies in a histogram, lowest first; empty where nothing was timed.
    pub histogram: Vec<Bin>,
    /// The search's outcome (drop_point).
    pub drop_point: Option<DropPoint>,
    /// How the schedule was kept (open loop, paced).
    pub pace: Option<Pace>,
    /// The driven tool's own figures under its own names.
    pub tool_figures: BTreeMap<String, f64>,
    /// Loss (udp_stream, udp_rr, drop_point).
    pub loss: Option<Loss>,
    /// What crossed each hop.
    pub hops: Vec<HopRecord>,
    /// TCP segments retransmitted in the client's and server's namespaces.
    pub tcp_retransmits: u64,
    /// Packets dropped at a full softnet backlog, all CPUs.
    pub softnet_dropped: u64,
    /// Times the softirq budget ran out, all CPUs.
    pub softnet_squeezed: u64,
    /// UDP receive errors in the client's and server's namespaces, by kernel counter name.
    pub udp_errors: BTreeMap<String, u64>,
    /// Conntrack entries at the sample's end, all hosts of the testbed.
    pub conntrack_entries: u64,
    /// What disturbed it on the client's machine; null where nothing was measured, and
    /// in files of older versions.
    #[serde(default)]
    pub disturbance: Option<Disturbance>,
    /// The same on the server's machine, where it is another.
    #[serde(default)]
    pub peer_disturbance: Option<Disturbance>,
    /// CPU time as the virtual machines at the ends saw it; empty where there are none. On
    /// this machine it is QEMU's, and in `cpu`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestSample>,
}

/// CPU time of one virtual machine over one sample, by its own clock and its own accounting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GuestSample {
    /// The tenant that it is.
    pub name: String,
    /// CPU seconds by kind; `steal` is what it wanted and its host did not give.
    pub cpu: CpuSeconds,
    /// Seconds between its two readings.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub seconds: f64,
}

/// CPU seconds of the whole machine by kind, over one sample.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CpuSeconds {
    /// User mode, nice included, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub user: f64,
    /// Kernel mode outside interrupts, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub system: f64,
    /// Softirq, seconds; work of ksoftirqd included where the exact clock is used.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub softirq: f64,
    /// Hard interrupts, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub irq: f64,
    /// Taken by the hypervisor, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub steal: f64,
    /// Idle, waiting for I/O included, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub idle: f64,
}

/// One direction of traffic over one hop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HopRecord {
    /// Test host or tenant.
    pub host: String,
    /// Device, or the process that terminates the traffic (`docker-proxy`).
    pub device: String,
    /// `forward` (client to server) or `reverse`.
    pub direction: Direction,
    /// device: link counters; process: a program that terminates the traffic; stage: counted by
    /// itself (a fast path); bypassed: a device that must not carry the traffic, and did not in
    /// a valid sample.
    pub kind: RecordKind,
    /// skbs counted by the device: GSO packets count once.
    pub packets: u64,
    /// Layer-3 bytes.
    pub bytes: u64,
    /// bytes / packets. Above the MTU: GSO packets cross this hop uncut.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub mean_skb_bytes: f64,
    /// Packets this hop dropped.
    pub drops: u64,
    /// Packets over a bypassed device that the path's own stage sent there, since
    /// the device does for them what the stage cannot.
    pub excused: u64,
}

/// Lost datagrams and where they went.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Datagrams the sender's kernel accepted.
    pub sent: u64,
    /// Datagrams the receiver read.
    pub received: u64,
    /// (sent − received) ÷ sent.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0, "maximum" = 1)))]
    pub fraction: f64,
    /// Place to number of datagrams (tenant-b socket buffer), by the kernel's own reason of
    /// each drop, or by counters where BPF is not allowed.
    #[serde(rename = "where")]
    pub places: BTreeMap<String, u64>,
    /// Lost, and seen neither by the kernel's own reasons nor by a counter.
    pub unattributed: u64,
}

/// The highest rates at which loss stays within each goal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DropPoint {
    /// One entry a goal, the strictest first.
    pub goals: Vec<DropGoal>,
    /// Trials of the search, void ones included.
    pub trials: u32,
    /// Trials that do not count: the generator did not keep its rate, or others disturbed it.
    pub void_trials: u32,
    /// The generator's own highest rate, datagrams/s, where the search reached
    /// it: the path can take at least that.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub generator_limit: Option<f64>,
}

/// One loss limit of `drop_point`: NDR where it is 0, else PDR.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DropGoal {
    /// Loss allowed, (intended − received) ÷ intended, 0..1.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0, "maximum" = 1)))]
    pub loss: f64,
    /// Conditional throughput, datagrams/s: what was received at the highest
    /// rate that kept within the goal.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub per_s: f64,
    /// Highest offered rate that kept within the goal, datagrams/s.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub kept: f64,
    /// Lowest offered rate above it that did not, datagrams/s; null where none
    /// was met.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub missed: Option<f64>,
}

/// How a schedule was kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Pace {
    /// Units due by the schedule, per second.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub intended_per_s: f64,
    /// Units sent within the interval, per second.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub sent_per_s: f64,
    /// Sent after the intended time, microseconds: median.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub late_p50_us: f64,
    /// Lateness: 99th percentile, microseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub late_p99_us: f64,
    /// Largest lateness, microseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub late_max_us: f64,
}

/// Percentiles of the time per transaction, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Median, microseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub p50: f64,
    /// 90th percentile, microseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub p90: f64,
    /// 99th percentile, microseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub p99: f64,
    /// 99.9th percentile, microseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub p99_9: f64,
    /// 99.99th percentile, microseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub p99_99: f64,
    /// Largest, microseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub max: f64,
}

/// A bin of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Bin {
    /// Upper end of the bin, microseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub us: f64,
    /// Transactions whose time lies in the bin.
    pub count: u64,
}
