//! What CPUs and interrupts did over a run.

use serde::{Deserialize, Serialize};

/// What every CPU did over the run, sampled in equal steps by `/proc/stat`,
/// `/proc/interrupts` and `/proc/softirqs`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// Length of a step, seconds.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CpuTimeline {
    /// Number of the CPU, as in `/proc/stat`.
    pub cpu: usize,
    /// User mode, nice included.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0, max = 1.0))))]
    pub user: Vec<f64>,
    /// Kernel mode outside interrupts.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0, max = 1.0))))]
    pub system: Vec<f64>,
    /// Handlers of hardware interrupts.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0, max = 1.0))))]
    pub irq: Vec<f64>,
    /// Softirqs, those of the network stack among them.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0, max = 1.0))))]
    pub softirq: Vec<f64>,
    /// Taken by the hypervisor.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0, max = 1.0))))]
    pub steal: Vec<f64>,
}

/// How often one interrupt came on one CPU, per second, one value a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InterruptTimeline {
    /// Name: a queue's (`virtio0-input.0`), a kind's (`CAL`), or `NET_RX` and
    /// `NET_TX` of the softirqs.
    pub name: String,
    /// Number of the CPU, as in `/proc/interrupts`.
    pub cpu: usize,
    /// Per second, one value a step.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.0))))]
    pub per_s: Vec<f64>,
}

/// A sample's place on the time line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Seconds since the time line's beginning.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub at_s: f64,
    /// Index in `cells` of what began here.
    pub cell: usize,
}
