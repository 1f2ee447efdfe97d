//! Dependencies in the program are those that `deny.toml` allows: licences, sources, one version of
//! each crate. `scripts/check-dependencies` runs cargo-deny, which some machines lack; this test
//! checks the same with `cargo metadata`, without a network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use toml_edit::DocumentMut;

/// Whether allowed licences alone satisfy an SPDX expression. Parentheses are supported around a
/// whole operand only; `AND` binds closer than `OR` (SPDX 2.3, annex D).
fn allowed(expression: &str, licences: &BTreeSet<String>) -> bool {
    let expression = expression.trim();
    // Old manifests write `/` for `OR`.
    let expression = &expression.replace('/', " OR ");
    for (word, all) in [(" OR ", false), (" AND ", true)] {
        let parts = split(expression, word);
        if parts.len() > 1 {
            let mut met = parts.iter().map(|part| allowed(part, licences));
            return if all { met.all(|met| met) } else { met.any(|met| met) };
        }
    }
    let trimmed = expression.trim();
    match trimmed.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => allowed(inner, licences),
        None => licences.contains(trimmed),
    }
}

/// The operands of `word` outside parentheses.
fn split<'a>(expression: &'a str, word: &str) -> Vec<&'a str> {
    let (mut depth, mut begin, mut parts) = (0, 0, Vec::new());
    for (at, character) in expression.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ' ' if depth == 0 && expression[at..].starts_with(word) => {
                parts.push(&expression[begin..at]);
                begin = at + word.len();
            }
            _ => {}
        }
    }
    parts.push(&expression[begin..]);
    parts
}

fn texts(item: &toml_edit::Item) -> BTreeSet<String> {
    let array = item.as_array().expect("a list in deny.toml");
    array
        .iter()
        .map(|value| match value.as_inline_table() {
            Some(table) => table["name"].as_str().unwrap().to_owned(),
            None => value.as_str().unwrap().to_owned(),
        })
        .collect()
}

#[test]
fn dependencies_match_deny_toml() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let deny: DocumentMut =
        std::fs::read_to_string(top.join("deny.toml")).unwrap().parse().unwrap();
    let licences = texts(&deny["licenses"]["allow"]);
    let twice = texts(&deny["bans"]["skip"]);
    let registries = texts(&deny["sources"]["allow-registry"]);

    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version", "1", "--locked", "--offline"]);
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = command.args(["--filter-platform", &host]).current_dir(top).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap().iter();
    let used: BTreeSet<&str> = nodes.map(|node| node["id"].as_str().unwrap()).collect();
    let all = metadata["packages"].as_array().unwrap().iter();
    let packages: Vec<&Value> =
        all.filter(|package| used.contains(package["id"].as_str().unwrap())).collect();
    assert!(packages.len() > 100, "{}", packages.len());

    let mut problems = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or("no licence");
        if !allowed(licence, &licences) {
            problems.push(format!("{name}: licence {licence}"));
        }
        if let Some(source) = package["source"].as_str() {
            let registry = source.strip_prefix("registry+").unwrap_or(source);
            if !registries.contains(registry) {
                problems.push(format!("{name}: from {source}"));
            }
        }
        versions.entry(name).or_default().insert(package["version"].as_str().unwrap());
    }
    for (name, versions) in &versions {
        if (versions.len() > 1) != twice.contains(*name) {
            problems.push(format!("{name}: {versions:?}; deny.toml lists what may be there twice"));
        }
    }
    problems.extend(
        twice
            .iter()
            .filter(|name| !versions.contains_key(name.as_str()))
            .map(|name| format!("{name}: deny.toml lists it, and it is not built in")),
    );
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn expressions_of_licences_are_understood() {
    let licences = BTreeSet::from(["MIT".to_owned(), "Zlib".to_owned()]);
    for met in
        ["MIT", "GPL-2.0-only OR MIT", "MIT/Apache-2.0", "MIT AND Zlib", "(MIT OR X) AND Zlib"]
    {
        assert!(allowed(met, &licences), "{met}");
    }
    for not in ["GPL-2.0-only", "MIT AND GPL-2.0-only", "X OR Y", "(MIT OR X) AND Y", "no licence"]
    {
        assert!(!allowed(not, &licences), "{not}");
    }
}
