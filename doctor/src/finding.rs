//! What a check found.

use serde::{Deserialize, Serialize};

use crate::change::Change;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
pub struct Evidence {
    /// What was read.
    pub what: String,
    /// Where: a file, or the request to the kernel.
    pub source: String,
}

/// What it costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Share of the path's traffic or of a CPU's time that is lost, 0 to 1: by
    /// this findings are ranked.
    pub share: f64,
    /// Counted here and now; else an estimate.
    pub measured: bool,
    /// Of what, and for an estimate where it comes from.
    pub what: String,
}

/// What can be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fix {
    /// The change, where `overlane doctor fix` can make it.
    #[serde(skip)]
    pub change: Option<Change>,
    /// A command for a shell, as root.
    pub command: String,
    /// What it may break.
    pub risk: String,
    /// The command that gives back what was there.
    pub undo: String,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The check's code, for good (`OV013`).
    pub code: String,
    /// The check's title.
    pub title: String,
    /// How bad it is.
    pub severity: Severity,
    /// Label of the namespace; `machine` for what has none.
    pub namespace: String,
    /// Device, or what else it is about.
    pub object: String,
    /// What was read.
    pub evidence: Vec<Evidence>,
    /// What it costs.
    pub cost: Cost,
    /// How sure it is.
    pub confidence: Confidence,
    /// What can be done; `None` where no command does it.
    pub fix: Option<Fix>,
}

/// What a check could not look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Skipped {
    /// The check's code.
    pub code: String,
    /// On what.
    pub object: String,
    /// Why.
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
    /// What was read.
    #[must_use]
    pub fn evidence(mut self, what: impl Into<String>, source: impl Into<String>) -> Finding {
        self.evidence.push(Evidence { what: what.into(), source: source.into() });
        self
    }

    /// What it costs.
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
    pub fn set(mut self, change: Change, risk: &str) -> Finding {
        let (command, undo) = (change.command(), change.undo());
        self.fix = Some(Fix { change: Some(change), command, risk: risk.to_owned(), undo });
        self
    }

    /// What can be done by hand only.
    #[must_use]
    pub fn by_hand(mut self, command: String, risk: &str, undo: String) -> Finding {
        self.fix = Some(Fix { change: None, command, risk: risk.to_owned(), undo });
        self
    }
}
