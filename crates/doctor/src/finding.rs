//! Findings of checks.

use serde::{Deserialize, Serialize};

use settings::Change;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing is lost for certain.
    Info,
    /// It costs throughput, CPU or packets.
    Warn,
    /// Packets do not arrive.
    Error,
}

/// Confidence that a finding is true and matters on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The state may be intended, or its effect may depend on things that doctor cannot see.
    Low,
    /// The state is certain; its cost depends on the traffic.
    Medium,
    /// State and effect are certain.
    High,
}

/// A value that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Evidence {
    /// Value with its name, as in the source.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub what: String,
    /// Source: a file, or the request to the kernel.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub source: String,
}

/// Share of traffic or CPU time that a finding costs, measured or estimated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Cost {
    /// Lost share of the path's traffic or of a CPU's time, 0 to 1. Findings are ranked by it.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0, "maximum" = 1)))]
    pub share: f64,
    /// True if counted on this host between the two readings; false for an estimate.
    pub measured: bool,
    /// The traffic or time that the share refers to, and the source of an estimate.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub what: String,
}

/// Remedy for a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Fix {
    /// Changes that `overlane doctor fix` makes, in this order. Changes that depend on each other
    /// are in one fix. Empty: the command must be run by hand.
    #[serde(skip)]
    pub changes: Vec<Change>,
    /// Shell command, to be run as root.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub command: String,
    /// Possible side effects.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub risk: String,
    /// Command that restores the previous state.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub undo: String,
}

/// One fault that a check found on one object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Finding {
    /// Code of the check (`OV013`). A code never changes its meaning.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = r"^OV[0-9]{3}$")))]
    pub code: String,
    /// Title of the check, the same for all its findings.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub title: String,
    /// Severity of a finding.
    pub severity: Severity,
    /// Label of the namespace, or `machine` for a finding outside namespaces.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub namespace: String,
    /// Device or other object of the finding.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub object: String,
    /// Values that prove the finding; at least one.
    #[cfg_attr(feature = "schema", schemars(extend("minItems" = 1)))]
    pub evidence: Vec<Evidence>,
    /// Cost, by which findings are ranked.
    pub cost: Cost,
    /// Confidence of the finding.
    pub confidence: Confidence,
    /// Remedy; `None` if no command helps.
    pub fix: Option<Fix>,
}

/// An object that a check could not examine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Skipped {
    /// Code of the check (`OV013`).
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = r"^OV[0-9]{3}$")))]
    pub code: String,
    /// Namespace and device, or `machine`.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub object: String,
    /// Why it could not be examined, in words.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub reason: String,
}

impl Cost {
    /// A cost counted on this host.
    pub fn measured(share: f64, what: impl Into<String>) -> Cost {
        Cost { share: share.clamp(0.0, 1.0), measured: true, what: what.into() }
    }

    /// An estimated cost; `what` names its source.
    pub fn estimated(share: f64, what: impl Into<String>) -> Cost {
        Cost { share: share.clamp(0.0, 1.0), measured: false, what: what.into() }
    }

    /// A counted cost of `part` among `whole` packets.
    pub fn of_packets(part: u64, whole: u64, what: &str) -> Cost {
        // Precise enough: the share only ranks findings, and 52 bits suffice.
        let share = if whole == 0 { 1.0 } else { part as f64 / whole as f64 };
        Cost::measured(share, format!("{part} of {whole} {what}"))
    }
}

impl Finding {
    /// Appends a value and its source, a file or a request.
    #[must_use]
    pub fn evidence(mut self, what: impl Into<String>, source: impl Into<String>) -> Finding {
        self.evidence.push(Evidence { what: what.into(), source: source.into() });
        self
    }

    /// Sets the cost; a new finding has an estimate of 0.
    #[must_use]
    pub fn cost(mut self, cost: Cost) -> Finding {
        self.cost = cost;
        self
    }

    /// Overrides the check's severity.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Finding {
        self.severity = severity;
        self
    }

    /// Sets the confidence; a new finding has high confidence.
    #[must_use]
    pub fn confidence(mut self, confidence: Confidence) -> Finding {
        self.confidence = confidence;
        self
    }

    /// Sets a fix of one reversible change.
    #[must_use]
    pub fn set(self, change: Change, risk: &str) -> Finding {
        self.set_all(vec![change], risk)
    }

    /// Sets a fix of several changes, made in this order and undone in reverse. Without changes
    /// there is no fix.
    #[must_use]
    pub fn set_all(mut self, changes: Vec<Change>, risk: &str) -> Finding {
        if changes.is_empty() {
            return self;
        }
        let joined = |commands: Vec<String>| commands.join(" && ");
        let command = joined(changes.iter().map(Change::command).collect());
        let undo = joined(changes.iter().rev().map(Change::undo).collect());
        self.fix = Some(Fix { changes, command, risk: risk.to_owned(), undo });
        self
    }

    /// Sets a command to be run by hand.
    #[must_use]
    pub fn by_hand(mut self, command: String, risk: &str, undo: String) -> Finding {
        self.fix = Some(Fix { changes: Vec::new(), command, risk: risk.to_owned(), undo });
        self
    }
}
