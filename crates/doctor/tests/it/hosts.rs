//! The library of saved hosts: healthy ones have the name of their mode, faulty ones the code of
//! their fault. Tested without root, on any machine, like `--from`.
//!
//! The faults' own test writes them:
//! `OVERLANE_SAVE_HOSTS=$PWD/crates/doctor/tests/hosts cargo test -p overlane-doctor --test root faults::`,
//! and with `--test root guest::` those that end in `guest`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use doctor::host::Reading;
use doctor::{CHECKS, Host, Severity, diagnose, dump};
use netstate::entry::Address;

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
        // The naive copy loop has no header, which it is meant to show.
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
        // Hosts of `tests/cases` carry traffic, which also shows symptoms of the fault.
        if name.contains("-case") {
            continue;
        }
        let strange: Vec<_> =
            codes.iter().filter(|code| !expected.contains(&code.as_str())).collect();
        assert!(strange.is_empty(), "{name}: {strange:?}");
    }
    let missing: Vec<_> = CHECKS.iter().filter(|check| !seen.contains(check.code)).collect();
    assert!(missing.is_empty(), "no host with the fault of {missing:?}");
    assert!(healthy >= 10, "{healthy} healthy hosts");
}

/// The findings of each saved host, with evidence and cost, equal those recorded in
/// `tests/judgements.txt`. `OVERLANE_SAVE_JUDGEMENTS=1` rewrites it; the difference then shows how
/// a changed check affects known hosts.
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

/// An IPv6 VTEP without a route, on a host whose NIC does or does not ignore router advertisements.
#[test]
fn lost_ipv6_routes_name_the_device_that_ignores_routers() {
    let remote = "fd72::2".parse().unwrap();
    let unreachable = "find route fd72::2: Network is unreachable (ENETUNREACH)";
    for (accept_ra, ignores) in [(Some("1"), true), (Some("2"), false), (None, false)] {
        let mut host = saved("vxlan");
        let at = host.namespaces.iter().position(|namespace| !namespace.tunnels.is_empty());
        let namespace = &mut host.namespaces[at.unwrap()];
        namespace.tunnels[0].ways = vec![(remote, Reading::Unread(unreachable.to_owned()))];
        let Reading::Read(links) = &namespace.interfaces else { panic!("no links") };
        let nic = links.iter().find(|link| link.kind.as_deref() == Some("veth")).unwrap();
        let Reading::Read(addresses) = &mut namespace.addresses else { panic!("no addresses") };
        let address = "fd71::1".parse().unwrap();
        addresses.push(Address { link: nic.index, address, prefix: 64, duplicate: false });
        let key = |key: &str| format!("net/ipv6/conf/{}/{key}", nic.name);
        namespace.sysctls.insert(key("forwarding"), "1".to_owned());
        if let Some(value) = accept_ra {
            namespace.sysctls.insert(key("accept_ra"), value.to_owned());
        }
        namespace.routes = Reading::Read(Vec::new());
        let findings = diagnose(&host).findings;
        let find = |code: &str| findings.iter().find(|finding| finding.code == code);
        let (deaf, unreachable) = (find("OV072"), find("OV036"));
        assert_eq!((deaf.is_some(), unreachable.is_some()), (ignores, !ignores), "{accept_ra:?}");
        match deaf {
            Some(found) => assert!(found.evidence[1].what.contains("accept_ra = 1")),
            None => assert_eq!(unreachable.unwrap().evidence[0].what, "no route to fd72::2"),
        }
        assert_eq!(deaf.is_some_and(|found| found.fix.is_some()), ignores, "{accept_ra:?}");
    }
}
