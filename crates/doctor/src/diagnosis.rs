//! All checks on one host.

use serde::{Deserialize, Serialize};

use crate::check::{CHECKS, Outcome};
use crate::finding::{Finding, Severity, Skipped};
use crate::host::{Host, LeftOut};
use crate::path::{MOST_PATHS, Path, Paths, paths};
use crate::view::View;

/// Version of the JSON form.
pub const FORMAT: u32 = 1;
/// Most findings of one check, those that cost most. A saved host may have a hundred
/// thousand devices that are all wrong.
pub const MOST_OF_A_CHECK: usize = 2000;
/// Most notes of one check about what it could not look at.
const MOST_SKIPPED: usize = 2000;

/// Findings of all checks on one host, and what was left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Diagnosis {
    /// Version of this form: 1.
    #[cfg_attr(feature = "schema", schemars(extend("const" = FORMAT)))]
    pub format: u32,
    /// When the host was read, seconds since 1970.
    pub taken_s: u64,
    /// Time between the two readings, s.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
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

/// Runs every check; keeps [`MOST_OF_A_CHECK`] findings of each at most.
pub fn diagnose(host: &Host) -> Diagnosis {
    let view = View::new(host);
    let mut outcome = Outcome::default();
    let mut left_out = host.left_out.clone();
    for check in CHECKS {
        let (found, notes) = (outcome.findings.len(), outcome.skipped.len());
        outcome.run(check, &view);
        outcome.findings[found..].sort_by(rank);
        let mut more = |what: &str, count: usize, most: usize| {
            if count > most {
                left_out.push(LeftOut {
                    object: format!("{} {what}", count - most),
                    reason: format!("of {}, of which {most} are told", check.code),
                });
            }
        };
        more("findings", outcome.findings.len() - found, MOST_OF_A_CHECK);
        more("notes", outcome.skipped.len() - notes, MOST_SKIPPED);
        outcome.findings.truncate(found + MOST_OF_A_CHECK);
        outcome.skipped.truncate(notes + MOST_SKIPPED);
    }
    let Outcome { mut findings, mut skipped, .. } = outcome;
    findings.sort_by(rank);
    skipped.sort();
    skipped.dedup();
    let Paths { paths, cut } = paths(&view);
    if cut {
        left_out.push(LeftOut {
            object: "paths".to_owned(),
            reason: format!("at most {MOST_PATHS} are followed, and as far as that takes"),
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

/// What costs most first.
fn rank(a: &Finding, b: &Finding) -> std::cmp::Ordering {
    let rank = b.cost.share.total_cmp(&a.cost.share);
    rank.then(b.severity.cmp(&a.severity))
        .then_with(|| (&a.code, &a.namespace, &a.object).cmp(&(&b.code, &b.namespace, &b.object)))
}
