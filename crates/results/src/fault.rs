//! Effects of faults on traffic.

use serde::{Deserialize, Serialize};

use crate::names::Profile;

/// A fault of a mode, with its trials. Each trial injects it into a fresh testbed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultRecord {
    /// Name of the mode (`bgp`).
    pub mode: String,
    /// Offload profile of the link.
    pub offload: Profile,
    /// Underlay MTU, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 68)))]
    pub mtu: u32,
    /// Name of the fault among those of its mode (`session-ends`).
    pub fault: String,
    /// Description of the fault.
    pub title: String,
    /// Seconds between two datagrams from client to server.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub interval_s: f64,
    /// Number of trials requested.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub asked: u32,
    /// Trials, in order; fewer than requested if the run was interrupted.
    pub trials: Vec<FaultTrial>,
}

/// One injection of a fault into a testbed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultTrial {
    /// Why the trial failed; null if it did not.
    pub reason: Option<String>,
    /// Effect on traffic; null if the trial failed.
    pub cost: Option<FaultCost>,
}

/// Effect of a fault on traffic. Datagrams count from its beginning until traffic flowed again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultCost {
    /// Datagrams sent.
    pub sent: u64,
    /// Sent datagrams that arrived. The rest is lost.
    pub received: u64,
    /// Duplicate arrivals.
    pub twice: u64,
    /// Longest time between two arrivals, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub outage_s: f64,
}

impl FaultCost {
    /// Datagrams that did not arrive.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }
}
