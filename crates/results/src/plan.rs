//! The plan of a run, as it was carried out.

use serde::{Deserialize, Serialize};

use crate::names::{Engine, PlacementPolicy, Profile, Steering};
use crate::workload::Task;

/// Most blocks of a plan: its looks take the square of them to compute.
pub(crate) const MOST_BLOCKS: u32 = 10_000;

/// The plan as it was carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Name of the plan (`qperf-sweep`), or the file it came from; null where
    /// arguments alone said what to do.
    pub name: Option<String>,
    /// Seed of the block order. The same seed and cells give the same order.
    pub seed: u64,
    /// Mode that every ratio is taken to.
    pub baseline: String,
    /// Names of the modes that were asked for.
    pub modes: Vec<String>,
    /// Offload profiles of the wire; as-found: of real NICs.
    pub offload: Vec<Profile>,
    /// Underlay MTUs, bytes.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 68))))]
    pub mtu: Vec<u32>,
    /// Workloads that were asked for; `drop_point`: NDR and PDR.
    pub workloads: Vec<Task>,
    /// Message sizes asked for, bytes; empty: each workload's default.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1, max = 65507))))]
    pub sizes: Vec<u32>,
    /// Numbers of parallel flows that were asked for.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1))))]
    pub flows: Vec<u32>,
    /// Requests that each flow keeps under way (rr).
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1))))]
    pub outstanding: Vec<u32>,
    /// Load of the open-loop cells, percent of the path's own maximum; empty:
    /// every workload as fast as it goes.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0))))]
    pub load_percent: Vec<f64>,
    /// Socket buffers asked for, bytes; empty: the kernel's own.
    pub socket_buffers: Vec<u32>,
    /// Load engines: `overlane`, `iperf3` …
    pub engines: Vec<Engine>,
    /// Settings varied, as they were asked for (`sysctl:net.core.netdev_budget=300,1000`).
    pub vary: Vec<String>,
    /// Whether `udp_stream` hands the kernel UDP GSO packets.
    pub gso: bool,
    /// Where the threads of client and server ran.
    pub placement: Placement,
    /// How the wire's NICs spread what they receive: `none` (veth's own way: on the CPU that
    /// sent it) or `rss` (each flow to one CPU of the receiving host's threads).
    pub steering: Steering,
    /// Blocks asked for. A block is one pass over all cells in random order, the baseline among
    /// them.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub blocks: u32,
    /// Most blocks under a confidence goal.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1, "maximum" = crate::plan::MOST_BLOCKS)))]
    pub max_blocks: u32,
    /// Blocks of which every cell was measured; fewer than asked for after an early end.
    pub blocks_done: u32,
    /// Seconds measured per sample.
    #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0)))]
    pub duration_s: f64,
    /// Seconds discarded before each sample.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub warmup_s: f64,
    /// Confidence of every interval, and the goal where one was set.
    pub confidence: ConfidenceGoal,
}

/// Confidence of the intervals and when to stop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConfidenceGoal {
    /// Coverage of every interval, 0..1.
    #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1)))]
    pub level: f64,
    /// Stop when every ratio's half-width is below this share (0.05 = ±5%).
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub half_width: Option<f64>,
    /// Block counts at which the goal was looked at; the error probability is
    /// spent over them, so that stopping early keeps the coverage.
    #[cfg_attr(feature = "schema", schemars(inner(range(max = MOST_BLOCKS))))]
    pub looks: Vec<u32>,
}

/// Where the load engine's threads ran.
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
    /// The CPUs, of those that a process may use.
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
