//! The library of saved hosts: healthy ones by the name of their mode, sick ones
//! by the code of their fault. Without root, on any machine, as `--from` does it.
//!
//! Made by the faults' own test, which says how:
//! `OVERLANE_SAVE_HOSTS=$PWD/crates/doctor/tests/hosts cargo test -p overlane-doctor --test root faults::`,
//! and with `--test root guest::` those that end in `guest`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use doctor::{CHECKS, Host, Severity, diagnose, dump};

fn saved(name: &str) -> Host {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
    let path = directory.join(format!("{name}.tar.zst"));
    dump::read(std::fs::File::open(path).unwrap()).unwrap()
}

#[test]
fn saved_hosts_are_judged_as_they_were() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
    let mut seen = std::collections::BTreeSet::new();
    let mut healthy = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(name) = name.strip_suffix(".tar.zst") else { panic!("{name}: no saved host") };
        let host = dump::read(std::fs::File::open(&path).unwrap());
        let host = host.unwrap_or_else(|error| panic!("{name}: {error}"));
        let codes: Vec<String> = diagnose(&host)
            .findings
            .into_iter()
            .filter(|finding| finding.severity >= Severity::Warn)
            .map(|finding| finding.code)
            .collect();
        let mode = name.split_once('-').filter(|(code, _)| code.starts_with("OV"));
        // The naive copy loop has no header, which is what it is there to show.
        let mut expected: Vec<&str> =
            if name.ends_with("tap") || name.ends_with("naive") { vec!["OV044"] } else { vec![] };
        match mode {
            Some((code, _)) => {
                let found = diagnose(&host).findings.iter().any(|finding| finding.code == code);
                assert!(found, "{name}: not found");
                seen.insert(code.to_owned());
                expected.push(code);
            }
            None => healthy += 1,
        }
        let strange: Vec<_> =
            codes.iter().filter(|code| !expected.contains(&code.as_str())).collect();
        assert!(strange.is_empty(), "{name}: {strange:?}");
    }
    let missing: Vec<_> = CHECKS.iter().filter(|check| !seen.contains(check.code)).collect();
    assert!(missing.is_empty(), "no host with the fault of {missing:?}");
    assert!(healthy >= 10, "{healthy} healthy hosts");
}

/// What each saved host is found to have, with its evidence and its cost, is what
/// `tests/judgements.txt` has on record. `OVERLANE_SAVE_JUDGEMENTS=1` writes it anew; then
/// the difference shows what a change of a check means for hosts that are known.
#[test]
fn judgements_are_those_on_record() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut hosts = BTreeMap::new();
    for entry in std::fs::read_dir(root.join("hosts")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = name.strip_suffix(".tar.zst").unwrap().to_owned();
        let diagnosis = diagnose(&saved(&name));
        let mut lines = Vec::new();
        for finding in diagnosis.findings {
            let mut line = format!(
                "{} {:?} {:?} {}/{}: {} {:.3} of {}",
                finding.code,
                finding.severity,
                finding.confidence,
                finding.namespace,
                finding.object,
                if finding.cost.measured { "measured" } else { "estimated" },
                finding.cost.share,
                finding.cost.what
            );
            for evidence in &finding.evidence {
                write!(line, "; {} ({})", evidence.what, evidence.source).unwrap();
            }
            if let Some(fix) = finding.fix {
                write!(line, "; fix: {}; undo: {}", fix.command, fix.undo).unwrap();
            }
            lines.push(line);
        }
        for skipped in diagnosis.skipped {
            lines.push(format!("not looked: {} {}", skipped.code, skipped.object));
        }
        lines.sort();
        lines.dedup();
        hosts.insert(name, lines);
    }
    let mut got = String::new();
    for (name, lines) in hosts {
        writeln!(got, "== {name}\n{}", lines.join("\n")).unwrap();
    }
    let path = root.join("judgements.txt");
    if std::env::var_os("OVERLANE_SAVE_JUDGEMENTS").is_some() {
        std::fs::write(&path, &got).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap();
    for (number, (got, recorded)) in got.lines().zip(recorded.lines()).enumerate() {
        assert_eq!(got, recorded, "line {} of judgements.txt", number + 1);
    }
    assert_eq!(got.lines().count(), recorded.lines().count());
}
