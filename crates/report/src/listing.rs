//! Lists that commands print as JSON: modes, checks, standing testbeds.

use doctor::{Check, Severity};
use serde::{Deserialize, Serialize};

/// A network mode, and whether this user can build it on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
#[cfg_attr(feature = "schema", schemars(transform = reasons))]
pub struct ListedMode {
    /// Name for --modes and lab up.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = MODE)))]
    pub mode: &'static str,
    /// Name of its group. --modes accepts it for all modes of the group.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = MODE)))]
    pub group: &'static str,
    /// Whether --modes all includes it. Otherwise it or its group must be named.
    pub in_all: bool,
    /// Path in words, hop by hop.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub path: &'static str,
    /// Whether it can be built now.
    pub supported: bool,
    /// Why it cannot be built; null if it can.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub reason: Option<String>,
    /// Remedy; null if it can be built.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub remedy: Option<String>,
}

/// A check of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct ListedCheck {
    /// Code of the check, which never changes its meaning.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = r"^OV[0-9]{3}$")))]
    pub code: &'static str,
    /// error: packets do not arrive; warn: it costs throughput, CPU or packets; info: worth
    /// knowing.
    pub severity: Severity,
    /// Title of its findings.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub title: &'static str,
    /// Cause, effect and remedy.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub explanation: &'static str,
}

impl From<&Check> for ListedCheck {
    fn from(check: &Check) -> Self {
        let Check { code, severity, title, explanation, .. } = *check;
        ListedCheck { code, severity, title, explanation }
    }
}

/// A standing testbed. Its paths under /proc are valid until its holder ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct StandingTestbed {
    /// Name of the testbed.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = TESTBED)))]
    pub name: String,
    /// Mode (see lab list).
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = MODE)))]
    pub mode: String,
    /// Offload profile of the link.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["full", "no-tunnel", "none"])))]
    pub offload: results::Profile,
    /// Underlay MTU, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 576, "maximum" = 65535)))]
    pub mtu: u32,
    /// Process id of the holder. The testbed ends with it.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub pid: u32,
    /// Test hosts and tenants.
    #[cfg_attr(feature = "schema", schemars(extend("minItems" = 2)))]
    pub hosts: Vec<StandingHost>,
    /// Address at which the client reaches a server in the server's namespace: address:port.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("pattern" = r"^([0-9.]+|\[[0-9a-fA-F:]+\]):[0-9]+$"))
    )]
    pub target: String,
    /// Host or tenant on the client's side.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub client: String,
    /// Host or tenant on the server's side.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub server: String,
    /// Notes of the mode.
    pub notes: Vec<String>,
}

/// A host or tenant of a standing testbed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct StandingHost {
    /// Name for lab exec.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub name: String,
    /// Path of its network namespace, for nsenter --net=.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = r"^/proc/[0-9]+/fd/[0-9]+$")))]
    pub netns: String,
    /// Process id of the first process of this host's programs; null if the mode has none.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub init: Option<u32>,
}

/// Name of a mode.
#[cfg(feature = "schema")]
const MODE: &str = r"^[a-z][a-z0-9+-]*(@guest)?$";

/// Name of a testbed.
#[cfg(feature = "schema")]
pub const TESTBED: &str = r"^[A-Za-z0-9._+-]{1,40}$";

/// A mode that cannot be built has a reason and a remedy. Other modes have neither.
#[cfg(feature = "schema")]
fn reasons(schema: &mut schemars::Schema) {
    let both = |kind: &str| {
        let is = || schemars::json_schema!({ "type": kind });
        schemars::json_schema!({ "properties": { "reason": is(), "remedy": is() } }).to_value()
    };
    let supported = schemars::json_schema!({ "properties": { "supported": { "const": true } } });
    schema.insert("if".to_owned(), supported.to_value());
    schema.insert("then".to_owned(), both("null"));
    schema.insert("else".to_owned(), both("string"));
}
