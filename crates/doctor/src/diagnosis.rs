//! Runs all checks on one host.

use serde::{Deserialize, Serialize};

use crate::check::{CHECKS, CheckOutcome};
use crate::finding::{Finding, Severity, Skipped};
use crate::host::{Host, LeftOut};
use crate::path::{MOST_PATHS, Path, Paths, paths};
use crate::view::View;

/// Version of the JSON form.
pub const FORMAT: u32 = 1;
/// Most findings reported per check, those with the highest cost. A saved host may have a hundred
/// thousand misconfigured devices.
pub const MOST_OF_A_CHECK: usize = 2000;
/// Most notes per check about objects that it could not examine.
const MOST_SKIPPED: usize = 2000;

/// Findings of all checks on one host, and objects that could not be read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Diagnosis {
    /// Version of this form: 1.
    #[cfg_attr(feature = "schema", schemars(extend("const" = FORMAT)))]
    pub format: u32,
    /// Time of reading, seconds since 1970.
    pub taken_s: u64,
    /// Time between the two readings, s.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub interval_s: f64,
    /// Number of namespaces that were read.
    pub namespaces: usize,
    /// Number of checks that were run.
    pub checks: usize,
    /// Packet paths, from tenant to NIC.
    pub paths: Vec<Path>,
    /// Findings, highest cost first.
    pub findings: Vec<Finding>,
    /// Objects that checks could not examine.
    pub skipped: Vec<Skipped>,
    /// Objects that could not be read at all.
    pub left_out: Vec<LeftOut>,
}

impl Diagnosis {
    /// Returns the highest severity of all findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// Runs every check, and keeps at most [`MOST_OF_A_CHECK`] findings of each.
pub fn diagnose(host: &Host) -> Diagnosis {
    let view = View::new(host);
    let mut outcome = CheckOutcome::default();
    let mut left_out = host.left_out.clone();
    for check in CHECKS {
        let (found, notes) = (outcome.findings.len(), outcome.skipped.len());
        outcome.run(check, &view);
        // Sort first, so that truncating drops the cheapest findings.
        outcome.findings[found..].sort_by(rank);
        let mut more = |what: &str, count: usize, most: usize| {
            if count > most {
                left_out.push(LeftOut {
                    object: format!("{} {what}", count - most),
                    reason: format!("of {}: only {most} are reported", check.code),
                });
            }
        };
        more("findings", outcome.findings.len() - found, MOST_OF_A_CHECK);
        more("notes", outcome.skipped.len() - notes, MOST_SKIPPED);
        outcome.findings.truncate(found + MOST_OF_A_CHECK);
        outcome.skipped.truncate(notes + MOST_SKIPPED);
    }
    let CheckOutcome { mut findings, mut skipped, .. } = outcome;
    findings.sort_by(rank);
    skipped.sort();
    // Several places of a check may need the same reading.
    skipped.dedup();
    let Paths { paths, cut } = paths(&view);
    if cut {
        left_out.push(LeftOut {
            object: "paths".to_owned(),
            reason: format!("the search stops at {MOST_PATHS} paths"),
        });
    }
    Diagnosis {
        format: FORMAT,
        taken_s: host.taken_s,
        interval_s: host.interval_s,
        namespaces: host.namespaces.len(),
        checks: CHECKS.len(),
        paths,
        findings,
        skipped,
        left_out,
    }
}

/// Orders findings by cost, highest first.
fn rank(a: &Finding, b: &Finding) -> std::cmp::Ordering {
    let rank = b.cost.share.total_cmp(&a.cost.share);
    rank.then(b.severity.cmp(&a.severity))
        .then_with(|| (&a.code, &a.namespace, &a.object).cmp(&(&b.code, &b.namespace, &b.object)))
}
