//! What else ran on the machines of a run, and the rule that judged it.

use serde::{Deserialize, Serialize};

use crate::names::JudgedBy;

/// What disturbed one sample, as shares of CPU or wall time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::newer))]
pub struct Disturbance {
    /// CPU time taken by the hypervisor, as a share of all CPUs' time, 0..1.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub steal_share: f64,
    /// Wall time in which this process's control group was throttled, 0..1.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub throttled_share: f64,
    /// CPU time of processes that neither are nor descend from this process, as
    /// a share of all CPUs' time, 0..1. Kernel threads are left out: they may
    /// work for the traffic. Softirqs that happened to run on a process count
    /// as its own, as the kernel has it.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub other_share: f64,
    /// The same and steal of the one CPU of the test's on which they took most, as a
    /// share of that CPU's time, 0..1. A process counts where it ran last.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub busiest_share: f64,
}

/// A share's usual level and how far it spreads.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Usual {
    /// Median over the last samples of the run, 0..1.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub level: f64,
    /// Standard deviation, from the median absolute deviation.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub spread: f64,
}

/// The background of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MachineBackground {
    /// [`Disturbance::other_share`].
    pub other: Usual,
    /// [`Disturbance::busiest_share`].
    pub busiest: Usual,
    /// [`Disturbance::steal_share`].
    pub steal: Usual,
    /// [`Disturbance::throttled_share`].
    pub throttled: Usual,
}

/// What samples were judged by, and what was usual on the run's machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Background {
    /// `background`: what stands out from the run's own background is taken once more.
    /// `strict`: what is past `--disturbance` is void.
    pub rule: JudgedBy,
    /// The share of `--disturbance`, 0..1; null under the rule `background`, and where
    /// it lifts all limits.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub strict_share: Option<f64>,
    /// The client's machine; in the lab the only one.
    pub machine: MachineBackground,
    /// The server's machine, where it is another.
    pub peer: Option<MachineBackground>,
    /// Samples taken once more, since they stood out.
    pub retaken: u32,
    /// Samples that stood out still, and count: the order within a block is random, so
    /// that they widen an interval and do not shift it.
    pub kept: u32,
}
