//! The top level of a results file.

use serde::{Deserialize, Serialize};

use crate::background::Background;
use crate::cell::Cell;
use crate::fault::FaultRecord;
use crate::machine::{Machine, ModeRecord, TestbedRecord};
use crate::names::EndedBy;
use crate::plan::Plan;
use crate::timeline::Timeline;

/// Value of [`Results::schema`] in files of this version.
pub const SCHEMA: &str = "overlane.results/3";

/// Most cells. Each is a row or a card of a report.
pub const MOST_CELLS: usize = 10_000;
/// Most modes, warnings, testbeds, notes.
pub(crate) const MOST_LISTED: usize = 10_000;

/// RFC 3339 with seconds, UTC; `read.rs` checks the same without regular expressions.
#[cfg(feature = "schema")]
const UTC: &str = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|\+00:00)$";

/// Contents of results.json. Every field is always written; null if it has no value. Bytes on hops
/// are layer-3 bytes (the device's counter minus 14 bytes of Ethernet header per packet).
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
    /// Whether the run reached its planned end, and at least one cell has a valid sample. False
    /// after Ctrl-C or a failure; the file then contains the samples taken until then.
    pub complete: bool,
    /// Why the run ended: blocks (all done), confidence (every interval reached the goal), decided
    /// (the verdict on the change on trial is certain), max_blocks (goal missed), out_of_reach (the
    /// goal would be missed), interrupted, failed.
    pub ended_by: EndedBy,
    /// Start, RFC 3339, UTC.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = UTC, "format" = "date-time")))]
    pub started: String,
    /// End, RFC 3339, UTC.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = UTC, "format" = "date-time")))]
    pub finished: String,
    /// The machine; the client's if there are two.
    pub machine: Machine,
    /// The server's machine (`overlane measure run`); null in the lab.
    pub peer: Option<Machine>,
    /// The plan as it was carried out.
    pub plan: Plan,
    /// Every requested mode, measured or not.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = MOST_LISTED)))]
    pub modes: Vec<ModeRecord>,
    /// Offloads that each testbed's devices really had switched on (ethtool -k).
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = MOST_LISTED)))]
    pub testbeds: Vec<TestbedRecord>,
    /// One entry per mode, offload profile, MTU, workload and message size.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = MOST_CELLS)))]
    pub cells: Vec<Cell>,
    /// Effect on traffic of each fault of `--faults`; absent: none was requested, or the file is
    /// from an older version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = MOST_LISTED)))]
    pub faults: Vec<FaultRecord>,
    /// CPUs and interrupts over the whole run, in equal steps; null if not recorded.
    pub timeline: Option<Timeline>,
    /// Cautions for interpreting the figures.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = MOST_LISTED)))]
    pub warnings: Vec<String>,
    /// Other load, and the rule that judged it; null in files of older versions.
    #[serde(default)]
    pub background: Option<Background>,
}
