//! What faults cost traffic that flowed meanwhile.

use serde::{Deserialize, Serialize};

use crate::names::Profile;

/// A fault of a mode, and each time that it befell a testbed of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultRecord {
    /// Name of the mode (`bgp`).
    pub mode: String,
    /// Offload profile of the wire.
    pub offload: Profile,
    /// Underlay MTU, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 68)))]
    pub mtu: u32,
    /// Name of the fault among those of its mode (`session-ends`).
    pub fault: String,
    /// What happened, in words.
    pub title: String,
    /// Seconds from one datagram to the next, from client to server.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub interval_s: f64,
    /// Times that it was asked for.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub asked: u32,
    /// Each time, in order; fewer than asked for where the run was interrupted.
    pub trials: Vec<FaultTrial>,
}

/// One time that a fault befell a testbed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultTrial {
    /// Why it failed; null where it did not.
    pub reason: Option<String>,
    /// What it cost; null where it failed.
    pub cost: Option<FaultCost>,
}

/// What a fault cost traffic. Datagrams count from its beginning until traffic flowed again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultCost {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Those of them that arrived; the others are lost.
    pub received: u64,
    /// Arrivals of datagrams that had arrived before.
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
