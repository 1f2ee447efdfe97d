//! Counters of one end of a load, and the final reports of its threads.

use std::collections::BTreeMap;
use std::time::Duration;

use results::EcnCounts;
use serde::{Deserialize, Serialize};

use super::arrivals::Arrivals;
use super::control::FlowCount;
use super::flow::FlowReport;

/// Counters of every flow at one end, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// Time of the reading by that end's own clock. Comparable only with readings of the same end.
    pub at: Duration,
    /// Counters by flow.
    pub flows: Vec<FlowCount>,
}

/// Final report of a flow's thread at the server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerReport {
    /// CPUs its thread was allowed to run on.
    pub cpus: Vec<usize>,
    /// Errors of the kernel that did not end the load, by errno and call.
    pub socket_errors: BTreeMap<String, u64>,
    /// Remarks that qualify the figures.
    pub notes: Vec<String>,
    /// Arrivals of numbered datagrams. Only clients that ask for them know the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<Arrivals>,
    /// Packets by ECN codepoint: datagrams read, or segments delivered (`tcp_maerts`). Only clients
    /// that ask for them know the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecn: Option<EcnCounts>,
}

impl From<FlowReport> for ServerReport {
    fn from(report: FlowReport) -> Self {
        ServerReport {
            cpus: report.cpus,
            socket_errors: report.socket_errors,
            notes: report.notes,
            arrivals: report.arrivals,
            ecn: report.ecn,
        }
    }
}
