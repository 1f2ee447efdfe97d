//! What a check found.

use serde::{Deserialize, Serialize};

use settings::Change;

/// How bad it is.
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

/// How sure it is that this is the case, and matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// It may be so on purpose, or depend on what cannot be seen from here.
    Low,
    /// It is so; what it costs depends on the traffic.
    Medium,
    /// It is so, and has that effect.
    High,
}

/// One thing that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Evidence {
    /// Value with its name, as the source has it.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub what: String,
    /// Where: a file, or the request to the kernel.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub source: String,
}

/// Share of traffic or CPU time that a finding costs, and how it is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Cost {
    /// Share of the path's traffic or of a CPU's time that is lost, 0 to 1: by
    /// this findings are ranked.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0, "maximum" = 1)))]
    pub share: f64,
    /// Counted here and now; else an estimate.
    pub measured: bool,
    /// Of what, and for an estimate where it comes from.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub what: String,
}

/// What can be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Fix {
    /// The changes, in this order, where `overlane doctor fix` can make them. Those that
    /// belong together are in one fix; none: by hand only.
    #[serde(skip)]
    pub changes: Vec<Change>,
    /// A command for a shell, as root.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub command: String,
    /// What it may break.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub risk: String,
    /// The command that gives back what was there.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub undo: String,
}

/// One fault that a check found on one object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Finding {
    /// The check's code, for good (`OV013`).
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = r"^OV[0-9]{3}$")))]
    pub code: String,
    /// Title of the check, the same for all its findings.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub title: String,
    /// How bad it is.
    pub severity: Severity,
    /// Label of the namespace; `machine` for what has none.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub namespace: String,
    /// Device, or what else it is about.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub object: String,
    /// Readings that the finding follows from; at least one.
    #[cfg_attr(feature = "schema", schemars(extend("minItems" = 1)))]
    pub evidence: Vec<Evidence>,
    /// Cost by which findings are ranked.
    pub cost: Cost,
    /// How sure it is.
    pub confidence: Confidence,
    /// What can be done; `None` where no command does it.
    pub fix: Option<Fix>,
}

/// What a check could not look at.
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
    /// Why it could not be looked at, in words.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub reason: String,
}

impl Cost {
    /// Counted here and now.
    pub fn measured(share: f64, what: impl Into<String>) -> Cost {
        Cost { share: share.clamp(0.0, 1.0), measured: true, what: what.into() }
    }

    /// An estimate; `what` says where it comes from.
    pub fn estimated(share: f64, what: impl Into<String>) -> Cost {
        Cost { share: share.clamp(0.0, 1.0), measured: false, what: what.into() }
    }

    /// `part` of `whole` packets, counted here and now.
    pub fn of_packets(part: u64, whole: u64, what: &str) -> Cost {
        // Ranks only: 52 bits are enough.
        let share = if whole == 0 { 1.0 } else { part as f64 / whole as f64 };
        Cost::measured(share, format!("{part} of {whole} {what}"))
    }
}

impl Finding {
    /// Appends a reading and the file or request that it is from.
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

    /// Another severity than the check's.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Finding {
        self.severity = severity;
        self
    }

    /// Another confidence than high.
    #[must_use]
    pub fn confidence(mut self, confidence: Confidence) -> Finding {
        self.confidence = confidence;
        self
    }

    /// A change that can be made, and taken back.
    #[must_use]
    pub fn set(self, change: Change, risk: &str) -> Finding {
        self.set_all(vec![change], risk)
    }

    /// Changes that belong together: made in this order, and taken back in the other. None
    /// make no fix.
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

    /// What can be done by hand only.
    #[must_use]
    pub fn by_hand(mut self, command: String, risk: &str, undo: String) -> Finding {
        self.fix = Some(Fix { changes: Vec::new(), command, risk: risk.to_owned(), undo });
        self
    }
}
