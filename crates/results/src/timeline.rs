//! CPUs and interrupts over a run.

use serde::{Deserialize, Serialize};

/// Work of every CPU over the run, sampled in equal steps from `/proc/stat`, `/proc/interrupts` and
/// `/proc/softirqs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// Length of a step, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub step_s: f64,
    /// One entry per CPU.
    pub cpus: Vec<CpuTimeline>,
    /// One entry per interrupt or softirq with at least one event per second.
    pub interrupts: Vec<InterruptTimeline>,
    /// Samples being measured, in order of time.
    pub marks: Vec<Mark>,
}

/// Shares of one CPU's time, one value per step, each 0..1.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CpuTimeline {
    /// Number of the CPU, as in `/proc/stat`.
    pub cpu: usize,
    /// User mode, including nice.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0, max = 1.0))))]
    pub user: Vec<f64>,
    /// Kernel mode outside interrupts.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0, max = 1.0))))]
    pub system: Vec<f64>,
    /// Handlers of hardware interrupts.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0, max = 1.0))))]
    pub irq: Vec<f64>,
    /// Softirqs, including the network stack's.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0, max = 1.0))))]
    pub softirq: Vec<f64>,
    /// Taken by the hypervisor.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0, max = 1.0))))]
    pub steal: Vec<f64>,
}

/// Rate of one interrupt on one CPU, per second, one value per step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InterruptTimeline {
    /// Name of a queue (`virtio0-input.0`) or kind (`CAL`), or `NET_RX` and `NET_TX` for softirqs.
    pub name: String,
    /// Number of the CPU, as in `/proc/interrupts`.
    pub cpu: usize,
    /// Events per second, one value per step.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0))))]
    pub per_s: Vec<f64>,
}

/// A sample's position on the time line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Seconds since the beginning of the time line.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub at_s: f64,
    /// Index in `cells` of the cell that began here.
    pub cell: usize,
}
