//! The table of capabilities names a first-tier test for each capability, or a reason.

use std::collections::BTreeSet;
use std::path::Path;

use results::Workload;
use test_support::tiers;

use crate::launch::run;

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Capabilities by kind and name, as the code lists them.
fn capabilities() -> BTreeSet<(&'static str, String)> {
    let help = run(["--help"]).expect(0).stdout;
    let verbs = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let verbs = verbs.lines().filter_map(|line| line.split_whitespace().next());
    let mut all: BTreeSet<(&str, String)> =
        verbs.filter(|verb| *verb != "help").map(|verb| ("verb", verb.to_owned())).collect();
    all.extend(lab::modes().iter().map(|mode| ("mode", mode.name().to_owned())));
    all.extend(doctor::CHECKS.iter().map(|check| ("check", check.code.to_owned())));
    all.extend(Workload::ALL.iter().map(|workload| ("workload", workload.name().to_owned())));
    all.extend(observe::EXPLANATIONS.iter().map(|known| ("drop", known.reason.to_owned())));
    all.extend(accel::EXPLANATIONS.iter().map(|refusal| ("refusal", refusal.code.to_owned())));
    all
}

#[test]
fn each_has_a_test_in_the_first_tier_or_a_reason() {
    let page = format!("{TOP}/docs/src/design/capabilities.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut missing = capabilities();
    let mut wrong = Vec::new();
    let nightly = tiers::nightly(Path::new(TOP));
    // Rows after the table's head and the line below it.
    for line in page.lines().filter(|line| line.starts_with('|')).skip(2) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [kind, name, test, _seconds] = cells[..] else { panic!("four cells: {line}") };
        let name = name.trim_matches('`');
        let listed = missing.iter().find(|(of, own)| *of == kind && own == name).cloned();
        match listed {
            Some(listed) => drop(missing.remove(&listed)),
            None => wrong.push(format!("not in the code, or twice: {line}")),
        }
        // A reason is a sentence, a test one word in quotes.
        let Some(test) = test.strip_prefix('`').and_then(|test| test.strip_suffix('`')) else {
            if !test.contains(' ') {
                wrong.push(format!("neither a test nor a reason: {line}"));
            }
            continue;
        };
        let (binary, function) = test.split_once(' ').unwrap_or((test, ""));
        if !tiers::exists(Path::new(TOP), binary, function) {
            wrong.push(format!("no such test: {line}"));
        }
        if nightly.iter().any(|(of, start)| of == binary && function.starts_with(start)) {
            wrong.push(format!("only in the nightly tier: {line}"));
        }
    }
    wrong.extend(missing.iter().map(|(kind, name)| format!("no row: {kind} {name}")));
    assert!(wrong.is_empty(), "run `scripts/capabilities`, and read it:\n{}", wrong.join("\n"));
}
