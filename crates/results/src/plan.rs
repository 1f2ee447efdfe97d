//! The plan of a run, as it was carried out.

use serde::{Deserialize, Serialize};

use crate::names::{Beside, Engine, PlacementPolicy, Profile, Steering};
use crate::workload::Task;

/// Most blocks of a plan. The cost of planning interim analyses is quadratic in the blocks.
pub(crate) const MOST_BLOCKS: u32 = 10_000;

/// The plan as it was carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Name of the plan (`qperf-sweep`), or its file; null if given by arguments alone.
    pub name: Option<String>,
    /// Seed of the block order. The same seed and cells give the same order.
    pub seed: u64,
    /// Mode that is the reference of every ratio.
    pub baseline: String,
    /// Names of the requested modes.
    pub modes: Vec<String>,
    /// Offload profiles of the link; as-found: real NICs.
    pub offload: Vec<Profile>,
    /// Underlay MTUs, bytes.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 68))))]
    pub mtu: Vec<u32>,
    /// Requested workloads; `drop_point`: NDR and PDR.
    pub workloads: Vec<Task>,
    /// Requested message sizes, bytes; empty: each workload's default.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1, max = 65507))))]
    pub sizes: Vec<u32>,
    /// Requested numbers of parallel flows.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1))))]
    pub flows: Vec<u32>,
    /// Requested numbers of outstanding requests per flow (rr).
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1))))]
    pub outstanding: Vec<u32>,
    /// Load of the open-loop cells, percent of the path's own maximum; empty: every workload at
    /// full speed.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0))))]
    pub load_percent: Vec<f64>,
    /// Requested rates of `udp_stream`, payload bits/s over all flows; empty: as fast as possible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates_bits_per_s: Vec<u64>,
    /// Requested bulk traffic beside the requests (rr); each rr cell is also measured without. Empty:
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Beside>,
    /// Requested socket buffers, bytes; empty: the kernel's default.
    pub socket_buffers: Vec<u32>,
    /// Load engines: `overlane`, `iperf3` …
    pub engines: Vec<Engine>,
    /// Varied settings, as requested (`sysctl:net.core.netdev_budget=300,1000`).
    pub vary: Vec<String>,
    /// Whether `udp_stream` sends UDP GSO packets.
    pub gso: bool,
    /// The ends of the measured paths use IPv6; absent: IPv4.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ipv6: bool,
    /// DSCP of all packets; absent: the kernel's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("maximum" = 63)))]
    pub dscp: Option<u8>,
    /// Whether the load uses ECN: ECT(0) on datagrams, TCP connections that negotiate it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ecn: bool,
    /// CPUs of the client's and server's threads.
    pub placement: Placement,
    /// How the link's NICs spread received packets: `none` (veth's default: on the CPU that sent)
    /// or `rss` (each flow on one CPU of the receiving host's threads).
    pub steering: Steering,
    /// Requested blocks. A block is one pass over all cells, including the baseline, in random
    /// order.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub blocks: u32,
    /// Most blocks under a confidence goal.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = crate::plan::MOST_BLOCKS)))]
    pub max_blocks: u32,
    /// Blocks in which every cell was measured; fewer than requested after an early end.
    pub blocks_done: u32,
    /// Seconds measured per sample.
    #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0)))]
    pub duration_s: f64,
    /// Seconds discarded before each sample.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub warmup_s: f64,
    /// Confidence of every interval, and the goal if one was set.
    pub confidence: ConfidenceGoal,
}

/// Confidence of the intervals, and when to stop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConfidenceGoal {
    /// Coverage of every interval, 0..1.
    #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1)))]
    pub level: f64,
    /// Stop once every ratio's half-width is below this share (0.05 = ±5%).
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub half_width: Option<f64>,
    /// Block counts of the interim analyses of the goal. The error probability is spent over them,
    /// so that stopping early keeps the coverage.
    #[cfg_attr(feature = "schema", schemars(inner(range(max = MOST_BLOCKS))))]
    #[serde(rename = "looks")]
    pub interim_analyses: Vec<u32>,
}

/// CPUs of the load engine's threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// split: client and server on different CPUs; same: on one CPU; none: not pinned.
    pub policy: PlacementPolicy,
    /// CPUs of the client's threads; empty: not pinned.
    pub client_cpus: Vec<usize>,
    /// CPUs of the server's threads; empty: not pinned.
    pub server_cpus: Vec<usize>,
}

impl PlacementPolicy {
    /// Assigns the CPUs that a process may use.
    pub fn place(self, usable: &[usize]) -> Placement {
        let (client, server) = match self {
            PlacementPolicy::Split if usable.len() > 1 => usable.split_at(usable.len() / 2),
            // One CPU cannot be split.
            PlacementPolicy::Split | PlacementPolicy::Same => {
                let first = &usable[..usable.len().min(1)];
                (first, first)
            }
            PlacementPolicy::None => (&[][..], &[][..]),
        };
        Placement { policy: self, client_cpus: client.to_vec(), server_cpus: server.to_vec() }
    }
}
