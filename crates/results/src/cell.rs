//! A cell: one mode under one load, with its samples and what they come to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::interval::Interval;
use crate::names::{DemandUnit, Engine, Profile, Role, Status, Unit};
use crate::sample::{Bin, DropPoint, HopRecord, Latency, Loss, Pace, Sample};
use crate::workload::Task;

/// mode × offload profile × MTU × workload × message size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("allOf" = crate::schema::cell_rules())))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::newer))]
pub struct Cell {
    /// Network mode (vxlan, bridge, nat ...).
    pub mode: String,
    /// baseline: every ratio of the same offload, MTU, workload and size is taken to it; aa:
    /// the baseline once more, its ratio is the noise floor; measured: a mode under test.
    pub role: Role,
    /// What the NICs of the wire can do: full (TSO, GSO, tunnel segmentation, GRO), no-tunnel
    /// (as full without tunnel segmentation), none (all off).
    pub offload: Profile,
    /// Underlay MTU, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 68)))]
    pub mtu: u32,
    /// Workload (tcp_stream …), or drop_point: the highest rate of udp_stream at which loss
    /// stays within each goal.
    pub workload: Task,
    /// Message size, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = 65507)))]
    pub message_bytes: u32,
    /// Flows that run at the same time.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub flows: u32,
    /// Requests that each flow keeps under way (rr).
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
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
    pub engine: Engine,
    /// Unit of `value` and `median`: `bit/s`, `datagram/s`, `transaction/s`,
    /// `connection/s`; `us` for cells at a load (`offered.percent`), whose rate
    /// is given: there it is the median latency, and a ratio above 1 is worse.
    pub unit: Unit,
    /// ok: measured, every valid sample with its proof; failed: tried, and no valid sample came
    /// of it; unsupported: this kernel or machine cannot build the mode.
    pub status: Status,
    /// Why there is no figure, where status is not ok.
    pub reason: Option<String>,
    /// Every sample taken, void ones included.
    pub samples: Vec<Sample>,
    /// Blocks after which this cell took no more samples, because more would not have moved
    /// the verdict of a trial; null: it took samples until the run ended.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub settled_after: Option<u32>,
    /// Median of the valid samples' values, in `unit`.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub median: Option<f64>,
    /// Median over blocks of value / baseline value of the same block, with its interval. 1 is
    /// as fast as the baseline, 0.5 half as fast.
    pub ratio: Option<Interval>,
    /// CPU time of the whole machine per unit of work, softirq included, idle load subtracted.
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

/// CPU time per unit of work: all CPUs, softirq included, idle load subtracted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ServiceDemand {
    /// Median over valid samples, in unit.
    pub value: f64,
    /// us/KiB (streams), us/datagram (udp_stream), us/transaction (rr), us/connection (crr).
    /// us: microseconds of CPU time.
    pub unit: DemandUnit,
    /// Ratio to the service demand of the baseline in the same block, with its interval. Above
    /// 1: more CPU time for the same work.
    pub ratio: Option<Interval>,
}

/// A load on a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Offered {
    /// Percent of the path's own maximum, where it was asked for so.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub percent: Option<f64>,
    /// Intended, over all flows: transactions/s or datagrams/s; 0 where the next
    /// request waits for the answer to the last (0 percent), and where the maximum
    /// is not known.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub per_s: f64,
}

/// A driven tool, and what it says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// As it prints it.
    pub version: String,
    /// Command line of the client's program.
    pub command: String,
    /// Its own figures under its own names (`LOCAL_CPU_UTIL`), medians over samples.
    pub figures: BTreeMap<String, f64>,
    /// Its value ÷ the built-in engine's on the same path in the same block, with
    /// the interval: the two agree where that holds 1. Null where the built-in
    /// engine was not asked the same.
    pub ratio: Option<Interval>,
}
