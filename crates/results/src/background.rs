//! Other load on the machines of a run, and the rule that judged it.

use serde::{Deserialize, Serialize};

use crate::names::JudgedBy;

/// Disturbance of one sample, as shares of CPU or wall time.
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
    /// CPU time of processes other than this one and its descendants, as a share of all CPUs' time,
    /// 0..1. Kernel threads do not count, because they may work for the traffic. Softirqs count for
    /// the process that they interrupted, as in the kernel's accounting.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub other_share: f64,
    /// Share of other processes and steal on the one CPU of the test where it was largest, as a
    /// share of that CPU's time, 0..1. A process counts where it ran last.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub busiest_share: f64,
}

/// Usual level and spread of a share.
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

/// Rule for judging samples, and the usual load on the run's machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Background {
    /// `background`: samples that stand out from the run's own background are repeated. `strict`:
    /// samples beyond `--disturbance` are discarded.
    pub rule: JudgedBy,
    /// Share of `--disturbance`, 0..1; null under the rule `background`, and if there is no limit.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub strict_share: Option<f64>,
    /// The client's machine; in the lab, the only one.
    pub machine: MachineBackground,
    /// The server's machine, if it is another one.
    pub peer: Option<MachineBackground>,
    /// Number of samples repeated because they stood out.
    pub retaken: u32,
    /// Number of samples that still stood out and were kept. The order within a block is random, so
    /// they widen an interval without shifting it.
    pub kept: u32,
}
