//! The results file: what was measured, on what, by which plan, with every raw
//! sample. `schema/results.schema.json` documents it; the tests hold the two
//! together.
//!
//! Bytes on hops are layer-3 bytes: the device's counter less 14 bytes of
//! Ethernet header a packet, so that a mean compares with an MTU directly.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod read;

pub use read::{FieldError, ReadError};

/// The value of [`Results::schema`] that this version writes.
pub const SCHEMA: &str = "overlane.results/3";

/// A whole results file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Version of overlane that wrote the file.
    pub overlane: String,
    /// False when the run was ended before its last block.
    pub complete: bool,
    /// Why the run ended when it did: `blocks`, `confidence`, `max_blocks`, `interrupted`, `failed`.
    pub ended_by: String,
    /// Start, RFC 3339, UTC.
    pub started: String,
    /// End, RFC 3339, UTC.
    pub finished: String,
    /// The machine; the client's, where there are two.
    pub machine: Machine,
    /// The server's machine (`overlane measure run`); null in the lab.
    pub peer: Option<Machine>,
    /// The plan as it was carried out.
    pub plan: Plan,
    /// Every mode asked for, measured or not.
    pub modes: Vec<ModeRecord>,
    /// What each testbed's devices really had switched on (`ethtool -k`).
    pub testbeds: Vec<TestbedRecord>,
    /// The measured cells.
    pub cells: Vec<Cell>,
    /// CPUs and interrupts over the whole run, in equal steps; null where none
    /// was kept.
    pub timeline: Option<Timeline>,
    /// Things a reader must know before believing a figure.
    pub warnings: Vec<String>,
}

/// What every CPU did over the run, sampled in equal steps by `/proc/stat`,
/// `/proc/interrupts` and `/proc/softirqs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// Length of a step, seconds.
    pub step_s: f64,
    /// One entry a CPU.
    pub cpus: Vec<CpuTimeline>,
    /// One entry an interrupt or softirq that came at least once a second.
    pub interrupts: Vec<InterruptTimeline>,
    /// What was being measured, in order of time.
    pub marks: Vec<Mark>,
}

/// Shares of one CPU's time, one value a step, each 0..1.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuTimeline {
    /// CPU number.
    pub cpu: usize,
    /// User mode, nice included.
    pub user: Vec<f64>,
    /// Kernel mode outside interrupts.
    pub system: Vec<f64>,
    /// Hard interrupts.
    pub irq: Vec<f64>,
    /// Softirq.
    pub softirq: Vec<f64>,
    /// Taken by the hypervisor.
    pub steal: Vec<f64>,
}

/// How often one interrupt came on one CPU, per second, one value a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterruptTimeline {
    /// Name: a queue's (`virtio0-input.0`), a kind's (`CAL`), or `NET_RX` and
    /// `NET_TX` of the softirqs.
    pub name: String,
    /// CPU number.
    pub cpu: usize,
    /// Per second, one value a step.
    pub per_s: Vec<f64>,
}

/// A sample's place on the time line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Seconds since the time line's beginning.
    pub at_s: f64,
    /// Index in [`Results::cells`] of what began here.
    pub cell: usize,
}

/// The machine a run was made on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// `model name` of `/proc/cpuinfo`.
    pub cpu_model: String,
    /// Online CPUs.
    pub cpus: usize,
    /// `MemTotal`, bytes.
    pub memory_bytes: u64,
    /// `uname -r`.
    pub kernel: String,
    /// `PRETTY_NAME` of `/etc/os-release`.
    pub os: String,
    /// Hypervisor vendor when the CPU says that there is one.
    pub hypervisor: Option<String>,
    /// How CPU time was counted: `exact` (scheduler and softirq trace points)
    /// or `tick` (`/proc/stat`, sampled by the timer).
    pub cpu_clock: String,
    /// Why the exact clock was not used, when it was not.
    pub cpu_clock_reason: Option<String>,
    /// `root`; run by an ordinary user `user-namespace` in the lab, else `user`.
    pub privileges: String,
    /// Share of all CPUs busy before the run, 0..1; subtracted from CPU figures.
    pub idle_load: f64,
}

/// The plan as it was carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Name of the plan (`qperf-sweep`), or the file it came from; null where
    /// arguments alone said what to do.
    pub name: Option<String>,
    /// Seed of the block order.
    pub seed: u64,
    /// Mode that every ratio is taken to.
    pub baseline: String,
    /// Modes asked for.
    pub modes: Vec<String>,
    /// Offload profiles of the wire.
    pub offload: Vec<String>,
    /// Underlay MTUs, bytes.
    pub mtu: Vec<u32>,
    /// Workloads.
    pub workloads: Vec<String>,
    /// Message sizes asked for, bytes; empty: each workload's default.
    pub sizes: Vec<u32>,
    /// Parallel flows.
    pub flows: Vec<u32>,
    /// Requests that each flow keeps under way (rr).
    pub outstanding: Vec<u32>,
    /// Load of the open-loop cells, percent of the path's own maximum; empty:
    /// every workload as fast as it goes.
    pub load_percent: Vec<f64>,
    /// Socket buffers asked for, bytes; empty: the kernel's own.
    pub socket_buffers: Vec<u32>,
    /// Load engines: `overlane`, `iperf3` …
    pub engines: Vec<String>,
    /// Settings varied, as they were asked for (`sysctl:net.core.netdev_budget=300,1000`).
    pub vary: Vec<String>,
    /// Whether `udp_stream` hands the kernel UDP GSO super-packets.
    pub gso: bool,
    /// Where client and server threads ran.
    pub placement: Placement,
    /// How the wire's NICs spread what they receive: `none` (veth's own way) or
    /// `rss` (each flow to one CPU of the receiving host's threads).
    pub steering: String,
    /// Blocks asked for.
    pub blocks: u32,
    /// Most blocks under a confidence goal.
    pub max_blocks: u32,
    /// Blocks carried out.
    pub blocks_done: u32,
    /// Seconds measured per sample.
    pub duration_s: f64,
    /// Seconds discarded before each.
    pub warmup_s: f64,
    /// Confidence of every interval, and the goal where one was set.
    pub confidence: ConfidenceGoal,
}

/// Confidence of the intervals and when to stop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfidenceGoal {
    /// Coverage of every interval, 0..1.
    pub level: f64,
    /// Stop when every ratio's half-width is below this share (0.05 = ±5%).
    pub half_width: Option<f64>,
    /// Block counts at which the goal was looked at; the error probability is
    /// spent over them, so that stopping early keeps the coverage.
    pub looks: Vec<u32>,
}

/// Where the load engine's threads ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// `split`, `same` or `none`.
    pub policy: String,
    /// CPUs of the client's threads; empty: not pinned.
    pub client_cpus: Vec<usize>,
    /// CPUs of the server's threads; empty: not pinned.
    pub server_cpus: Vec<usize>,
}

/// A mode asked for: what it is, and whether this machine could build it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModeRecord {
    /// Name (`vxlan`).
    pub mode: String,
    /// Its path in words.
    pub path: String,
    /// `ok`, `failed` or `unsupported`.
    pub status: Status,
    /// Why not, when not.
    pub reason: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// What the mode says of itself (`user-space datapath`).
    pub notes: Vec<String>,
}

/// One testbed and what its devices had switched on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestbedRecord {
    /// Mode.
    pub mode: String,
    /// Offload profile.
    pub offload: String,
    /// Underlay MTU, bytes.
    pub mtu: u32,
    /// MTU of the tenants' devices, bytes.
    pub tenant_mtu: u32,
    /// Every hop's device.
    pub devices: Vec<DeviceRecord>,
}

/// A device and its offload features.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRecord {
    /// Test host or tenant (`a`, `b`, `tenant-a` …).
    pub host: String,
    /// Device name.
    pub device: String,
    /// MTU, bytes.
    pub mtu: u32,
    /// Feature name as the kernel has it → on.
    pub features: BTreeMap<String, bool>,
}

/// `ok`, `failed` or `unsupported`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Measured, every figure with its proof.
    Ok,
    /// Tried, and no valid sample came of it.
    Failed,
    /// This kernel or machine cannot build it.
    Unsupported,
}

/// What a cell is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Every ratio of its offload, workload and size is taken to this cell.
    Baseline,
    /// The baseline once more: its ratio is the noise floor (A/A).
    Aa,
    /// A mode under test.
    Measured,
}

/// mode × offload profile × MTU × workload × message size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// Mode.
    pub mode: String,
    /// Baseline, A/A or measured.
    pub role: Role,
    /// Offload profile of the wire.
    pub offload: String,
    /// Underlay MTU, bytes.
    pub mtu: u32,
    /// Workload (`tcp_stream` … or `drop_point`).
    pub workload: String,
    /// Message size, bytes.
    pub message_bytes: u32,
    /// Parallel flows.
    pub flows: u32,
    /// Requests that each flow keeps under way (rr).
    pub outstanding: u32,
    /// The schedule that requests or datagrams were sent on; null where they
    /// were sent as fast as the path took them.
    pub offered: Option<Offered>,
    /// Socket buffers of both ends, bytes; null: the kernel's own.
    pub socket_buffer_bytes: Option<u32>,
    /// The varied setting (`sysctl:net.core.netdev_budget=1000`): ratios are to
    /// the same mode as found; null: as found.
    pub setting: Option<String>,
    /// UDP GSO in use (`udp_stream` only).
    pub gso: bool,
    /// `overlane`, or the name of a driven tool.
    pub engine: String,
    /// Unit of `value` and `median`: `bit/s`, `datagram/s`, `transaction/s`,
    /// `connection/s`; `us` for cells at a load (`offered.percent`), whose rate
    /// is given: there it is the median latency, and a ratio above 1 is worse.
    pub unit: String,
    /// Whether there is a figure.
    pub status: Status,
    /// Why not, when not.
    pub reason: Option<String>,
    /// Every sample taken, void ones included.
    pub samples: Vec<Sample>,
    /// Median of the valid samples' values, in `unit`.
    pub median: Option<f64>,
    /// Ratio to the baseline.
    pub ratio: Option<Interval>,
    /// CPU time per unit of work.
    pub service_demand: Option<ServiceDemand>,
    /// Latency, the median over samples of each percentile (rr and crr).
    pub latency_us: Option<Latency>,
    /// Every valid sample's latencies in one histogram, lowest first; empty
    /// where nothing was timed.
    pub histogram: Vec<Bin>,
    /// Median over samples of each goal's rate (drop_point).
    pub drop_point: Option<DropPoint>,
    /// Worst of the samples: how the schedule was kept.
    pub pace: Option<Pace>,
    /// The driven tool; null for the built-in engine.
    pub tool: Option<Tool>,
    /// Loss over all valid samples (udp_stream).
    pub loss: Option<Loss>,
    /// Medians over valid samples of what crossed each hop.
    pub hops: Vec<HopRecord>,
    /// What the samples' order says: a drift over the run, when there is one.
    pub trend: Option<String>,
}

/// A median and its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Median.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Coverage, 0..1.
    pub confidence: f64,
    /// Ratios it was computed from.
    pub samples: usize,
}

/// CPU time per unit of work: all CPUs, softirq included, idle load subtracted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceDemand {
    /// Median over samples.
    pub value: f64,
    /// `us/KiB`, `us/datagram`, `us/transaction` or `us/connection`.
    pub unit: String,
    /// Ratio to the baseline's, with its interval.
    pub ratio: Option<Interval>,
}

/// Percentiles, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// 99.99th percentile.
    pub p99_99: f64,
    /// Largest.
    pub max: f64,
}

/// A load on a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offered {
    /// Percent of the path's own maximum, where it was asked for so.
    pub percent: Option<f64>,
    /// Intended, over all flows: transactions/s or datagrams/s; 0 where the next
    /// request waits for the answer to the last (0 percent), and where the maximum
    /// is not known.
    pub per_s: f64,
}

/// How a schedule was kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pace {
    /// Intended, per second.
    pub intended_per_s: f64,
    /// Sent, per second.
    pub sent_per_s: f64,
    /// Sent after the intended time, microseconds: median.
    pub late_p50_us: f64,
    /// 99th percentile.
    pub late_p99_us: f64,
    /// Largest.
    pub late_max_us: f64,
}

/// The highest rates at which loss stays within each goal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropPoint {
    /// One entry a goal, the strictest first.
    pub goals: Vec<DropGoal>,
    /// Trials made.
    pub trials: u32,
    /// Trials that do not count: the generator did not keep its rate.
    pub void_trials: u32,
    /// The generator's own highest rate, datagrams/s, where the search reached
    /// it: the path can take at least that.
    pub generator_limit: Option<f64>,
}

/// One goal of a drop point.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropGoal {
    /// Loss allowed, (intended − received) ÷ intended, 0..1.
    pub loss: f64,
    /// Conditional throughput, datagrams/s: what was received at the highest
    /// rate that kept within the goal.
    pub per_s: f64,
    /// Highest offered rate that kept within the goal, datagrams/s.
    pub kept: f64,
    /// Lowest offered rate above it that did not, datagrams/s; null where none
    /// was met.
    pub missed: Option<f64>,
}

/// A bin of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bin {
    /// Upper end, microseconds.
    pub us: f64,
    /// Transactions in it.
    pub count: u64,
}

/// A driven tool, and what it says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// As it prints it.
    pub version: String,
    /// Client's command line.
    pub command: String,
    /// Its own figures under its own names (`LOCAL_CPU_UTIL`), medians over samples.
    pub figures: BTreeMap<String, f64>,
    /// Its value ÷ the built-in engine's on the same path in the same block, with
    /// the interval: the two agree where that holds 1. Null where the built-in
    /// engine was not asked the same.
    pub ratio: Option<Interval>,
}

/// Lost datagrams and where they went.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Datagrams the sender's kernel accepted.
    pub sent: u64,
    /// Datagrams the receiver read.
    pub received: u64,
    /// (sent − received) ÷ sent.
    pub fraction: f64,
    /// Place → datagrams (`tenant-b socket buffer`), by the kernel's own reason of
    /// each drop, or by counters where BPF is not allowed.
    #[serde(rename = "where")]
    pub places: BTreeMap<String, u64>,
    /// Lost, and seen by neither.
    pub unattributed: u64,
}

/// One direction of traffic over one hop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HopRecord {
    /// Test host or tenant.
    pub host: String,
    /// Device, or the process that terminates the traffic (`docker-proxy`).
    pub device: String,
    /// `forward` (client to server) or `reverse`.
    pub direction: String,
    /// `device` (link counters), `process` (a socket-level hop), `stage` (counted by
    /// itself) or `bypassed` (a device that must not carry the traffic).
    pub kind: String,
    /// skbs.
    pub packets: u64,
    /// Layer-3 bytes.
    pub bytes: u64,
    /// bytes ÷ packets: above the MTU where super-packets cross uncut.
    pub mean_skb_bytes: f64,
    /// Packets this hop dropped.
    pub drops: u64,
    /// Packets over a bypassed device that the path's own stage sent there, since
    /// the device does for them what the stage cannot.
    pub excused: u64,
}

/// CPU seconds of the whole machine by kind, over one sample.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuSeconds {
    /// User mode, nice included.
    pub user: f64,
    /// Kernel mode outside interrupts.
    pub system: f64,
    /// Softirq, ksoftirqd's work included where the exact clock is used.
    pub softirq: f64,
    /// Hard interrupts.
    pub irq: f64,
    /// Taken by the hypervisor.
    pub steal: f64,
    /// Idle, waiting for I/O included.
    pub idle: f64,
}

/// One measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Block, from 0.
    pub block: u32,
    /// Place within the block's random order, from 0.
    pub position: u32,
    /// Value in the cell's unit; 0 where the sample failed. Of a drop point: what
    /// was received at the highest rate that lost at most 0.1%.
    pub value: f64,
    /// Whether it counts.
    pub valid: bool,
    /// Why it does not.
    pub invalid_reason: Option<String>,
    /// Whether every hop of the mode was seen to carry the traffic.
    pub path_proved: bool,
    /// value ÷ the baseline's value of the same block.
    pub ratio: Option<f64>,
    /// Seconds measured.
    pub seconds: f64,
    /// Payload at the receiver, bits/s.
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
}
