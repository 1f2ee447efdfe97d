//! The library of saved hosts: healthy ones by the name of their mode, sick ones
//! by the code of their fault. Without root, on any machine, as `--from` does it.
//!
//! Made by the faults' own test, which says how:
//! `OVERLANE_SAVE_HOSTS=$PWD/doctor/tests/hosts cargo test -p overlane-doctor --test faults`,
//! and with `--test guest` those that end in `guest`.

use std::path::Path;

use doctor::{CHECKS, Severity, diagnose, dump};

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
