//! The whole of a results file.

use serde::{Deserialize, Serialize};

use crate::background::Background;
use crate::cell::Cell;
use crate::fault::FaultRecord;
use crate::machine::{Machine, ModeRecord, TestbedRecord};
use crate::names::EndedBy;
use crate::plan::Plan;
use crate::timeline::Timeline;

/// The value of [`Results::schema`] that this version writes.
pub const SCHEMA: &str = "overlane.results/3";

/// Most cells: each is a row or a card of a report.
pub const MOST_CELLS: usize = 10_000;
/// Most modes, warnings, testbeds, notes.
pub(crate) const MOST_LISTED: usize = 10_000;

/// RFC 3339 with seconds, UTC; `read.rs` checks the same without regular expressions.
#[cfg(feature = "schema")]
const UTC: &str = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|\+00:00)$";

/// What overlane writes to results.json. Every field is always written; null where there
/// is nothing to say. Bytes on hops are layer-3 bytes (the device counter less 14 bytes of
/// Ethernet header a packet).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::newer))]
pub struct Results {
    /// Always overlane.results/3.
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA)))]
    pub schema: String,
    /// Version of overlane that wrote the file.
    pub overlane: String,
    /// Whether the run went to its planned end. False after Ctrl-C or a failure: what was
    /// measured until then is in the file.
    pub complete: bool,
    /// Why the run ended: blocks (all done), confidence (every interval within the goal),
    /// decided (the change on trial), max_blocks (goal not met), out_of_reach (it would not
    /// be met), interrupted, failed.
    pub ended_by: EndedBy,
    /// Start, RFC 3339, UTC.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = UTC, "format" = "date-time")))]
    pub started: String,
    /// End, RFC 3339, UTC.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = UTC, "format" = "date-time")))]
    pub finished: String,
    /// The machine; the client's, where there are two.
    pub machine: Machine,
    /// The server's machine (`overlane measure run`); null in the lab.
    pub peer: Option<Machine>,
    /// The plan as it was carried out.
    pub plan: Plan,
    /// Every mode asked for, measured or not.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = MOST_LISTED)))]
    pub modes: Vec<ModeRecord>,
    /// What the devices of each testbed really had switched on (ethtool -k).
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = MOST_LISTED)))]
    pub testbeds: Vec<TestbedRecord>,
    /// One entry per mode, offload profile, MTU, workload and message size.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = MOST_CELLS)))]
    pub cells: Vec<Cell>,
    /// What each fault of `--faults` cost traffic that flowed meanwhile; absent: none was asked
    /// for, or written before this was kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = MOST_LISTED)))]
    pub faults: Vec<FaultRecord>,
    /// CPUs and interrupts over the whole run, in equal steps; null where none
    /// was kept.
    pub timeline: Option<Timeline>,
    /// Things a reader must know before believing a figure.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = MOST_LISTED)))]
    pub warnings: Vec<String>,
    /// What else ran, and the rule that judged it; null in files of older versions.
    #[serde(default)]
    pub background: Option<Background>,
}
