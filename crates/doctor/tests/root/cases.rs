//! Faults from public reports, each rebuilt in network namespaces by a script of `tests/cases`:
//! the check that names the cause comes first, and the same hosts without the fault are healthy.
//!
//! `scripts/field-cases` runs any directory of such scripts and prints the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use doctor::{Diagnosis, Finding, Scope, Severity, collect, diagnose};
use sys::netns::NetNs;
use test_support::{need, require};

use crate::faults::bench::{at_rest, judge};
use crate::faults::list::FAULTS;

/// Names the directory of the cases; the repository's by default.
const DIRECTORY: &str = "OVERLANE_CASES";
/// File that gets the table.
const TABLE: &str = "OVERLANE_CASES_TABLE";
/// Counters must move between the readings.
const INTERVAL: Duration = Duration::from_millis(600);
/// Readings until the fault shows: connections start, neighbours fail, tables fill.
const READINGS: usize = 12;

/// Whether a case of `make test` is a fault of this check.
pub(crate) fn covers(code: &str) -> bool {
    split(read(&ours())).0.iter().any(|case| case.checks.iter().any(|check| check == code))
}

fn ours() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// A case: its script, and the lines of its header.
pub(crate) struct Case {
    script: PathBuf,
    name: String,
    /// Codes that name the cause. Empty: unknown.
    checks: Vec<String>,
    /// Name of the fault in NIKA (`sands-lab/nika`); empty: none.
    nika: String,
    /// Namespaces that the administrator of one host sees. Empty: one host is not enough.
    node: Vec<String>,
}

impl Case {
    /// One of the repository's cases.
    pub(crate) fn named(name: &str) -> Case {
        Case::read(&ours().join(format!("{name}.sh")))
    }

    fn read(script: &Path) -> Case {
        let name = script.file_stem().unwrap().to_str().unwrap().to_owned();
        let known = ours().join(format!("{name}.sh"));
        let head = std::fs::read_to_string(if known.exists() { &known } else { script }).unwrap();
        let line = |key: &str| -> Vec<String> {
            let found = head.lines().find_map(|line| line.strip_prefix(key));
            found.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
        };
        let (checks, node) = (line("# Check:"), line("# One node:"));
        let nika = line("# NIKA:").concat();
        Case { script: script.to_owned(), name, checks, nika, node }
    }

    /// Runs the script, which has its own namespaces.
    pub(crate) fn run(&self, prefix: &str, what: &str) -> Result<(), String> {
        let log = std::env::temp_dir().join(format!("{prefix}-log"));
        // The script's traffic outlives it, so pipes would not end.
        let to = |path: &Path| std::fs::File::create(path).unwrap();
        let status = Command::new("sh")
            .arg(&self.script)
            .arg(what)
            .env("PREFIX", prefix)
            .env("RUN", std::env::temp_dir().join(format!("{prefix}-run")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(to(&log))
            .status()
            .unwrap();
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(&log);
        if status.success() { Ok(()) } else { Err(format!("{what}: {status}: {text}")) }
    }

    /// Diagnoses the case's namespaces, or the namespaces of one host.
    fn look(&self, prefix: &str, node: &[String], is_saved: bool) -> Diagnosis {
        let mut named = Vec::new();
        for entry in std::fs::read_dir("/run/netns").unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let Some(short) = name.strip_prefix(&format!("{prefix}-")) else { continue };
            if node.is_empty() || node.iter().any(|of| of == short) {
                named.push((short.to_owned(), NetNs::open(&entry.path()).unwrap()));
            }
        }
        named.sort_by(|a, b| a.0.cmp(&b.0));
        let mut host = collect(Scope::Some(named), INTERVAL).unwrap();
        at_rest(&mut host);
        let mut diagnosis =
            if is_saved { judge(&self.saved_name(), &host) } else { diagnose(&host) };
        // `sw` is the wire and its switch, `srv` an external server: they are not diagnosed.
        diagnosis.findings.retain(|finding| !["sw", "srv"].contains(&finding.namespace.as_str()));
        diagnosis
    }

    /// Name in the library of saved hosts.
    fn saved_name(&self) -> String {
        let number = self.name.split('-').next().unwrap_or_default();
        format!("{}-case{number}", self.checks.first().map_or("", String::as_str))
    }

    fn is_right(&self, finding: &Finding) -> bool {
        self.checks.contains(&finding.code)
    }

    /// Diagnoses until the first finding is right.
    pub(crate) fn seek(&self, prefix: &str, node: &[String]) -> Diagnosis {
        let mut diagnosis = self.look(prefix, node, true);
        for _ in 1..READINGS {
            if diagnosis.findings.first().is_some_and(|first| self.is_right(first)) {
                break;
            }
            diagnosis = self.look(prefix, node, true);
        }
        diagnosis
    }

    /// Judges a case. Removes namespaces and processes, even if the case fails.
    fn judge(&self, prefix: &str) -> Judgement {
        let mut judgement = Judgement::default();
        let all = self.run(prefix, "up").map(|()| {
            judgement.all = Some(self.seek(prefix, &[]));
            if !self.node.is_empty() {
                judgement.one = Some(self.seek(prefix, &self.node));
            }
        });
        let healthy = self.run(prefix, "healthy").map(|()| {
            let diagnosis = self.look(prefix, &[], false);
            let bad = diagnosis.findings.into_iter();
            judgement.warnings =
                bad.filter(|finding| finding.severity >= Severity::Warn).map(line).collect();
        });
        judgement
            .problems
            .extend([all, healthy, self.run(prefix, "down")].into_iter().filter_map(Result::err));
        judgement
    }
}

/// Doctor's findings for one case.
#[derive(Default)]
struct Judgement {
    all: Option<Diagnosis>,
    /// Findings from one host.
    one: Option<Diagnosis>,
    /// Findings at warning or above on the hosts without the fault.
    warnings: Vec<String>,
    problems: Vec<String>,
}

fn line(finding: Finding) -> String {
    let evidence = finding.evidence.iter().map(|one| one.what.as_str()).collect::<Vec<_>>();
    format!("{} {}/{}: {}", finding.code, finding.namespace, finding.object, evidence.join("; "))
}

fn first(diagnosis: &Diagnosis) -> String {
    diagnosis.findings.first().cloned().map_or_else(|| "nothing".to_owned(), line)
}

fn rank(case: &Case, diagnosis: &Diagnosis) -> Option<usize> {
    diagnosis.findings.iter().position(|finding| case.is_right(finding)).map(|at| at + 1)
}

/// How often each check named a cause, and how often it reported something else at warning or above.
#[derive(Default)]
struct Record {
    right: u32,
    beside: u32,
    healthy: u32,
    confidence: BTreeSet<String>,
}

/// A table of the checks by code: each view of a case counts as one.
fn by_check(cases: &[Case], judged: &BTreeMap<String, Judgement>) -> String {
    let mut records: BTreeMap<String, Record> = BTreeMap::new();
    for case in cases {
        let judgement = &judged[&case.name];
        for diagnosis in [&judgement.all, &judgement.one].into_iter().flatten() {
            let mut seen = BTreeSet::new();
            for finding in &diagnosis.findings {
                let is_right = case.is_right(finding);
                if !is_right && finding.severity < Severity::Warn || !seen.insert(&finding.code) {
                    continue;
                }
                let record = records.entry(finding.code.clone()).or_default();
                match is_right {
                    true => record.right += 1,
                    false => record.beside += 1,
                }
                let word = format!("{:?}", finding.confidence).to_lowercase();
                record.confidence.insert(word);
            }
        }
        for warning in &judgement.warnings {
            let code = warning.split(' ').next().unwrap_or_default().to_owned();
            records.entry(code).or_default().healthy += 1;
        }
    }
    let mut table = String::from(
        "| check | confidence | named the cause | beside the cause | on healthy hosts |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    for (code, Record { right, beside, healthy, confidence }) in records {
        let words = confidence.into_iter().collect::<Vec<_>>().join(", ");
        writeln!(table, "| {code} | {words} | {right} | {beside} | {healthy} |").unwrap();
    }
    table
}

#[test]
fn faults_from_public_reports_are_named_first() {
    require!(need::networks(), need::root(), tools());
    match std::env::var_os(DIRECTORY) {
        Some(directory) => judge_all(&read(Path::new(&directory))),
        None => judge_all(&split(read(&ours())).0),
    }
}

/// Nightly: `make test` makes another fault of the same checks, and judges the records of these
/// hosts (`hosts::judgements_are_those_on_record`).
#[test]
fn further_faults_of_the_same_checks_are_named_first() {
    require!(need::networks(), need::root(), tools());
    judge_all(&split(read(&ours())).1);
}

pub(crate) fn tools() -> Result<(), String> {
    need::tools(&[
        "ip",
        "bridge",
        "tc",
        "nft",
        "iptables-legacy",
        "ethtool",
        "ping",
        "python3",
        "sysctl",
        "clang",
    ])
}

/// The cases of a directory by name; those of `OVERLANE_CASES_ONLY` if it is set.
fn read(directory: &Path) -> Vec<Case> {
    let only = std::env::var("OVERLANE_CASES_ONLY").unwrap_or_default();
    let scripts = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    let mut cases: Vec<Case> = scripts
        .filter(|path| path.extension().is_some_and(|kind| kind == "sh"))
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_chosen = only.is_empty() || only.split(' ').any(|one| name.starts_with(one));
            name.as_bytes()[0].is_ascii_digit() && is_chosen
        })
        .map(|path| Case::read(&path))
        .collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

/// The first case of each check without a fault in a mode of the lab, and the further cases.
fn split(cases: Vec<Case>) -> (Vec<Case>, Vec<Case>) {
    let mut seen: BTreeSet<_> = FAULTS.iter().map(|fault| Some(fault.code.to_owned())).collect();
    cases.into_iter().partition(|case| seen.insert(case.checks.first().cloned()))
}

/// Requires that doctor names each cause first, and is silent about the healthy halves.
fn judge_all(cases: &[Case]) {
    let (next, judged) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|threads| {
        // A case mostly waits.
        for worker in 0..4 {
            let (next, judged) = (&next, &judged);
            threads.spawn(move || {
                let prefix = format!("ov{}{}", std::process::id(), ["a", "b", "c", "d"][worker]);
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let judgement = case.judge(&prefix);
                    judged.lock().unwrap().insert(case.name.clone(), judgement);
                }
            });
        }
    });
    let judged = judged.into_inner().unwrap();
    let mut problems = Vec::new();
    let mut table = String::from(
        "| case | NIKA | first finding, all hosts read | rank | first finding, one host read | rank | \
         healthy |\n| --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for case in cases {
        let judgement = &judged[&case.name];
        let mut cells = Vec::new();
        for (view, diagnosis) in [("all", &judgement.all), ("one", &judgement.one)] {
            let Some(diagnosis) = diagnosis else {
                cells.push("| – | – ".to_owned());
                continue;
            };
            let rank = rank(case, diagnosis);
            if rank != Some(1) {
                let found: Vec<String> =
                    diagnosis.findings.iter().take(4).cloned().map(line).collect();
                problems.push(format!("{} ({view}): rank {rank:?} of {found:#?}", case.name));
            }
            let rank = rank.map_or_else(|| "none".to_owned(), |rank| rank.to_string());
            cells.push(format!("| {} | {rank} ", first(diagnosis).replace('|', "\\|")));
        }
        let healthy = match judgement.warnings.as_slice() {
            [] => "silent".to_owned(),
            all => all.join("<br>").replace('|', "\\|"),
        };
        if !judgement.warnings.is_empty() {
            problems.push(format!("{} healthy: {:#?}", case.name, judgement.warnings));
        }
        problems.extend(judgement.problems.iter().map(|text| format!("{}: {text}", case.name)));
        let cells = cells.concat();
        writeln!(table, "| {} | {} {cells}| {healthy} |", case.name, case.nika).unwrap();
    }
    println!("{table}");
    if let Some(mut path) = std::env::var_os(TABLE) {
        std::fs::write(&path, &table).unwrap();
        path.push(".checks");
        std::fs::write(path, by_check(cases, &judged)).unwrap();
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
