//! A sample and its counters.
//!
//! Bytes on hops are layer-3 bytes: the device's counter minus 14 bytes of Ethernet header per
//! packet, so that a mean can be compared with an MTU directly.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::background::Disturbance;
use crate::beside::BesideRates;
use crate::names::{Direction, RecordKind};
use crate::shares::FlowShares;

/// One measured interval of one cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("allOf" = crate::schema::sample_rules())))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::newer))]
pub struct Sample {
    /// Number of the block, from 0.
    pub block: u32,
    /// Position in the block's random order, from 0.
    pub position: u32,
    /// Value in the cell's unit; 0 if the sample failed. For `drop_point`: the rate received at the
    /// highest offered rate that lost at most 0.1%.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub value: f64,
    /// Whether the sample is used for the median, the ratio and the interval.
    pub valid: bool,
    /// Why it is not used; null if it is.
    pub invalid_reason: Option<String>,
    /// Whether every hop of the mode was verified to carry the traffic. True for every valid
    /// sample.
    pub path_proved: bool,
    /// value ÷ the baseline's value in the same block.
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
    /// Rates of the flows, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_shares: Option<FlowShares>,
    /// CPU time of the load per unit of work, in the cell's service demand unit.
    pub service_demand: Option<f64>,
    /// Why it is null: the load's part of the CPU time is unknown. Also null if no work was done,
    /// and in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_demand_reason: Option<String>,
    /// Service demand ÷ the baseline's in the same block.
    pub service_demand_ratio: Option<f64>,
    /// CPU seconds of the whole machine by kind.
    pub cpu: CpuSeconds,
    /// CPU seconds of the server's machine, if it is another one.
    pub peer_cpu: Option<CpuSeconds>,
    /// Latency (rr and crr).
    pub latency_us: Option<Latency>,
    /// Latencies in a histogram, lowest first; empty if nothing was timed.
    pub histogram: Vec<Bin>,
    /// Result of the search (drop_point).
    pub drop_point: Option<DropPoint>,
    /// Adherence to the schedule (open loop, paced).
    pub pace: Option<Pacing>,
    /// Figures of the external tool under its own names.
    pub tool_figures: BTreeMap<String, f64>,
    /// Loss (udp_stream, udp_rr, drop_point).
    pub loss: Option<Loss>,
    /// Packets at each hop.
    pub hops: Vec<HopRecord>,
    /// TCP segments retransmitted in the client's and server's namespaces.
    pub tcp_retransmits: u64,
    /// State of the client's TCP connections; null if it does not send, or by a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpState>,
    /// Order and spacing of datagrams at the receiver (`udp_stream` at a given rate).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<Arrivals>,
    /// Packets by ECN codepoint: datagrams that the server read, or segments that the client's TCP
    /// connections delivered (`tcp_maerts`: the server's). Null without ECN, and by a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn: Option<EcnCounts>,
    /// Rates of the bulk traffic beside the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside_rates: Option<BesideRates>,
    /// Rate in each second of a sample of 3 s or longer, in the workload's unit; absent if the
    /// sample is shorter or the receiver is on another machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0))))]
    pub rates_by_second: Vec<f64>,
    /// Packets dropped at a full softnet backlog, all CPUs.
    pub softnet_dropped: u64,
    /// Times the softirq budget ran out, all CPUs.
    pub softnet_squeezed: u64,
    /// UDP receive errors in the client's and server's namespaces, by kernel counter name.
    pub udp_errors: BTreeMap<String, u64>,
    /// Conntrack entries at the sample's end, all hosts of the testbed.
    pub conntrack_entries: u64,
    /// Disturbance on the client's machine; null if not measured, and in files of older versions.
    #[serde(default)]
    pub disturbance: Option<Disturbance>,
    /// Disturbance on the server's machine, if it is another one.
    #[serde(default)]
    pub peer_disturbance: Option<Disturbance>,
    /// CPU time as seen by the virtual machines at the ends; empty without any. This machine sees
    /// it as QEMU's, included in `cpu`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestSample>,
}

/// Order and spacing of datagrams at the receiver (`udp_stream` at a given rate).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Arrivals {
    /// Interarrival jitter (RFC 3550, section 6.4.1), microseconds, by the kernel's times of
    /// arrival. In a sample: the mean over flows at its end. In a cell: the median over samples.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub jitter_us: f64,
    /// Datagrams that arrived after one that was sent later (RFC 4737).
    pub reordered: u64,
    /// Datagrams that arrived.
    pub received: u64,
}

/// Packets with ECN (RFC 3168) over one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EcnCounts {
    /// Datagrams read, or TCP segments delivered (`tcpi_delivered`).
    pub arrived: u64,
    /// Packets of them that arrived with CE: a queue reported congestion. TCP: segments whose
    /// acknowledgements have ECE (`tcpi_delivered_ce`). The receiver repeats ECE until the sender
    /// has reduced its window, so these are more than the marked ones.
    pub ce: u64,
    /// Datagrams that arrived without a codepoint, because the path cleared it. Null for TCP, whose
    /// receiver does not report it.
    pub not_ect: Option<u64>,
}

impl EcnCounts {
    /// Adds the packets of another flow.
    pub fn add(&mut self, other: EcnCounts) {
        self.arrived = self.arrived.saturating_add(other.arrived);
        self.ce = self.ce.saturating_add(other.ce);
        self.not_ect = match (self.not_ect, other.not_ect) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
    }

    /// Combines flows. `None` without any.
    pub fn together(flows: impl Iterator<Item = EcnCounts>) -> Option<EcnCounts> {
        flows.reduce(|mut all, flow| {
            all.add(flow);
            all
        })
    }
}

/// State of the client's TCP connections at the end of a sample (`TCP_INFO`), medians over flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TcpState {
    /// Congestion control in force (`TCP_CONGESTION`).
    pub congestion_control: String,
    /// Smoothed round-trip time, microseconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub rtt_us: f64,
    /// Congestion window, segments.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub cwnd: f64,
}

/// CPU time of one virtual machine over one sample, by its own clock and accounting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GuestSample {
    /// Name of the tenant.
    pub name: String,
    /// CPU seconds by kind; `steal` is time that its host withheld.
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
    /// User mode including nice, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub user: f64,
    /// Kernel mode outside interrupts, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub system: f64,
    /// Softirq, seconds; with the exact clock including the work of ksoftirqd.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub softirq: f64,
    /// Hard interrupts, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub irq: f64,
    /// Taken by the hypervisor, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub steal: f64,
    /// Idle including I/O wait, seconds.
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
    /// device: link counters; process: a program that terminates the traffic; stage: counts its own
    /// packets (a fast path); bypassed: a device that must not carry the traffic, and did not in a
    /// valid sample.
    pub kind: RecordKind,
    /// skbs counted by the device: GSO packets count once.
    pub packets: u64,
    /// Layer-3 bytes.
    pub bytes: u64,
    /// bytes / packets. Above the MTU: GSO packets pass this hop uncut.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub mean_skb_bytes: f64,
    /// Packets this hop dropped.
    pub drops: u64,
    /// Packets that the path's own stage sent through a bypassed device, because the stage cannot
    /// handle them.
    pub excused: u64,
}

/// Lost datagrams and where they were lost.
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
    /// Lost datagrams by place (tenant-b socket buffer), from the kernel's drop reasons, or from
    /// counters if BPF is not allowed.
    #[serde(rename = "where")]
    pub places: BTreeMap<String, u64>,
    /// Losses that appear neither in drop reasons nor in counters.
    pub unattributed: u64,
}

/// The highest rates within each loss limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DropPoint {
    /// One entry per loss limit, strictest first.
    pub goals: Vec<DropGoal>,
    /// Trials of the search, including discarded ones.
    pub trials: u32,
    /// Discarded trials: the generator did not keep its rate, or other load disturbed it.
    pub void_trials: u32,
    /// The generator's own highest rate, datagrams/s, if the search reached it; the path can carry
    /// at least that.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub generator_limit: Option<f64>,
}

/// One loss limit of `drop_point`: NDR if it is 0, else PDR.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DropGoal {
    /// Loss allowed, (intended − received) ÷ intended, 0..1.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0, "maximum" = 1)))]
    pub loss: f64,
    /// Conditional throughput, datagrams/s: the rate received at the highest offered rate within
    /// the limit.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub per_s: f64,
    /// Highest offered rate within the limit, datagrams/s.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub kept: f64,
    /// Lowest offered rate above it that exceeded the limit, datagrams/s; null if none did.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub missed: Option<f64>,
}

/// Adherence to a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Pacing {
    /// Units due by the schedule, per second.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub intended_per_s: f64,
    /// Units sent within the interval, per second.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub sent_per_s: f64,
    /// Lateness of sending: median, microseconds.
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
    /// Number of transactions in the bin.
    pub count: u64,
}
