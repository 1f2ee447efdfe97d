//! What one end of a load has counted, and what its threads leave behind.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::control::FlowCount;
use super::flow::FlowReport;

/// Every flow's counters at one end, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// When, by that end's own clock. Two readings of one end can be compared, those of
    /// two ends cannot.
    pub at: Duration,
    /// The counters, by flow.
    pub flows: Vec<FlowCount>,
}

/// What a flow's thread at the server leaves behind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerReport {
    /// CPUs its thread was allowed to run on.
    pub cpus: Vec<usize>,
    /// Answers of the kernel that did not end the load, by errno and call.
    pub socket_errors: BTreeMap<String, u64>,
    /// Things a reader must know before believing a figure.
    pub notes: Vec<String>,
}

impl From<FlowReport> for ServerReport {
    fn from(report: FlowReport) -> Self {
        ServerReport { cpus: report.cpus, socket_errors: report.socket_errors, notes: report.notes }
    }
}
