//! A cell: one mode under one load, with its samples and their summary.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::beside::BesideRates;
use crate::interval::Interval;
use crate::names::{Beside, DemandUnit, Engine, Profile, Role, Status, Unit};
use crate::sample::{Arrivals, Bin, DropPoint, HopRecord, Latency, Loss, Pacing, Sample, TcpState};
use crate::shares::FlowShares;
use crate::workload::Task;

/// Combination of mode, offload profile, MTU, workload and message size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("allOf" = crate::schema::cell_rules())))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::newer))]
pub struct Cell {
    /// Network mode (vxlan, bridge, nat ...).
    pub mode: String,
    /// baseline: reference of every ratio with the same offload, MTU, workload and size; aa: the
    /// baseline measured again, whose ratio is the noise floor; measured: a mode under test.
    pub role: Role,
    /// Offloads of the link's NICs: full (TSO, GSO, tunnel segmentation, GRO), no-tunnel (as full,
    /// without tunnel segmentation), none (all off).
    pub offload: Profile,
    /// Underlay MTU, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 68)))]
    pub mtu: u32,
    /// Workload (tcp_stream …), or drop_point: the highest rate of udp_stream within each loss
    /// limit.
    pub workload: Task,
    /// Message size, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = 65507)))]
    pub message_bytes: u32,
    /// Flows that run at the same time.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub flows: u32,
    /// Outstanding requests per flow (rr).
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub outstanding: u32,
    /// Schedule of requests or datagrams; null if they were sent at full speed.
    pub offered: Option<Offered>,
    /// Bulk traffic beside the requests (rr); absent without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
    /// Socket buffers of both ends, bytes; null: the kernel's default.
    pub socket_buffer_bytes: Option<u32>,
    /// The varied setting (`sysctl:net.core.netdev_budget=1000`). Ratios are to the same mode as
    /// found. Null: as found.
    pub setting: Option<String>,
    /// UDP GSO in use (`udp_stream` only).
    pub gso: bool,
    /// `overlane`, or the name of an external tool.
    pub engine: Engine,
    /// Unit of `value` and `median`: `bit/s`, `datagram/s`, `transaction/s`, `connection/s`. `us`
    /// for cells at a load (`offered.percent`), whose rate is given: the value is the median
    /// latency, and a ratio above 1 is worse.
    pub unit: Unit,
    /// ok: measured, and the path of every valid sample was verified; failed: tried, without any
    /// valid sample; unsupported: this kernel or machine cannot build the mode.
    pub status: Status,
    /// Why there is no figure, if status is not ok.
    pub reason: Option<String>,
    /// Every sample, including discarded ones.
    pub samples: Vec<Sample>,
    /// Blocks after which this cell was no longer sampled, because more samples would not have
    /// changed the verdict of a trial; null: it was sampled until the run ended.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub settled_after: Option<u32>,
    /// Median of the valid samples' values, in `unit`.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub median: Option<f64>,
    /// Median over blocks of value / baseline value of the same block, with its interval. 1 is
    /// as fast as the baseline, 0.5 half as fast.
    pub ratio: Option<Interval>,
    /// State of the client's TCP connections, medians over valid samples; the congestion control of
    /// the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpState>,
    /// Rates of the bulk traffic beside the requests, medians over valid samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside_rates: Option<BesideRates>,
    /// Order and spacing of datagrams at the receiver, all valid samples (`udp_stream` at a given
    /// rate).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<Arrivals>,
    /// Medians over valid samples of the rates of the flows, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_shares: Option<FlowShares>,
    /// CPU time of the load per unit of work, softirqs included.
    pub service_demand: Option<ServiceDemand>,
    /// Why it is null: the load's part of the CPU time is unknown in most samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_demand_reason: Option<String>,
    /// Latency, the median over samples of each percentile (rr and crr).
    pub latency_us: Option<Latency>,
    /// Latencies of all valid samples in one histogram, lowest first; empty if nothing was timed.
    pub histogram: Vec<Bin>,
    /// Median over samples of the rate within each loss limit (drop_point).
    pub drop_point: Option<DropPoint>,
    /// Adherence to the schedule, of the worst sample.
    pub pace: Option<Pacing>,
    /// The external tool; null for the built-in engine.
    pub tool: Option<Tool>,
    /// Loss over all valid samples (udp_stream).
    pub loss: Option<Loss>,
    /// Medians over valid samples of the packets at each hop.
    pub hops: Vec<HopRecord>,
    /// Drift over the run, if there is one.
    pub trend: Option<String>,
}

impl Cell {
    /// Reason of a cell whose turn did not come before the run ended.
    pub const NO_SAMPLE: &'static str = "no sample was taken";

    /// Returns whether the run ended before the first sample of the cell.
    pub fn never_ran(&self) -> bool {
        self.samples.is_empty() && self.reason.as_deref() == Some(Self::NO_SAMPLE)
    }
}

/// CPU time of the load per unit of work: its tasks and guests on all CPUs, and the softirqs of its
/// packets. Files of older versions: of the whole machine, idle load subtracted.
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
    /// Percent of the path's own maximum, if requested in percent.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub percent: Option<f64>,
    /// Intended rate over all flows: transactions/s or datagrams/s. 0 if each request waits for the
    /// previous answer (0 percent), or if the maximum is unknown.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub per_s: f64,
}

/// An external tool and its own figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// Version as the tool prints it.
    pub version: String,
    /// Command line of the client's program.
    pub command: String,
    /// Figures of the tool under its own names (`LOCAL_CPU_UTIL`), medians over samples.
    pub figures: BTreeMap<String, f64>,
    /// The tool's value ÷ the built-in engine's on the same path in the same block, with its
    /// interval. They agree if it includes 1. Null if the built-in engine did not measure the same.
    pub ratio: Option<Interval>,
}
