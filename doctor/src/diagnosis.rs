//! All checks on one host.

use serde::{Deserialize, Serialize};

use crate::check::{CHECKS, Outcome};
use crate::finding::{Finding, Severity, Skipped};
use crate::host::{Host, LeftOut};
use crate::path::{Path, paths};
use crate::view::View;

/// Version of the JSON form.
pub const FORMAT: u32 = 1;

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// [`FORMAT`].
    pub format: u32,
    /// When the host was read, seconds since 1970.
    pub taken_s: u64,
    /// Time between the two readings, s.
    pub interval_s: f64,
    /// Namespaces that were read.
    pub namespaces: usize,
    /// Checks that were run.
    pub checks: usize,
    /// Paths of packets, tenant to NIC.
    pub paths: Vec<Path>,
    /// Findings, what costs most first.
    pub findings: Vec<Finding>,
    /// What checks could not look at.
    pub skipped: Vec<Skipped>,
    /// What could not be read at all.
    pub left_out: Vec<LeftOut>,
}

impl Diagnosis {
    /// The worst severity of all findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// Runs every check.
pub fn diagnose(host: &Host) -> Diagnosis {
    let view = View::new(host);
    let mut outcome = Outcome::default();
    for check in CHECKS {
        outcome.run(check, &view);
    }
    let Outcome { mut findings, mut skipped, .. } = outcome;
    findings.sort_by(|a, b| {
        let rank = b.cost.share.total_cmp(&a.cost.share);
        rank.then(b.severity.cmp(&a.severity)).then_with(|| {
            (&a.code, &a.namespace, &a.object).cmp(&(&b.code, &b.namespace, &b.object))
        })
    });
    skipped.sort();
    skipped.dedup();
    Diagnosis {
        format: FORMAT,
        taken_s: host.taken_s,
        interval_s: host.interval_s,
        namespaces: host.namespaces.len(),
        checks: CHECKS.len(),
        paths: paths(&view),
        findings,
        skipped,
        left_out: host.left_out.clone(),
    }
}
