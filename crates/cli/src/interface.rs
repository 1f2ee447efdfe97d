//! Tests that a release keeps the interface of the releases before it (semver): commands and
//! options, fields of JSON documents, metrics.
//!
//! `packaging/interface/VERSION` lists the interface of a release. `UPDATE_INTERFACE=1 cargo test
//! -p overlane interface` writes the file of the current version; a release is made from it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Command;
use serde_json::Value;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Adds a line for each visible command and argument.
fn commands(path: &str, command: &Command, lines: &mut BTreeSet<String>) {
    lines.insert(format!("command {path}"));
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        match argument.get_long() {
            Some(long) => lines.insert(format!("option {path} --{long}")),
            None => lines.insert(format!("argument {path} {}", argument.get_id())),
        };
        for value in argument.get_possible_values().iter().filter(|value| !value.is_hide_set()) {
            let name = argument.get_long().unwrap_or_else(|| argument.get_id().as_str());
            lines.insert(format!("value {path} {name}={}", value.get_name()));
        }
    }
    for under in command.get_subcommands().filter(|under| !under.is_hide_set()) {
        commands(&format!("{path} {}", under.get_name()), under, lines);
    }
}

/// Adds a line for each property of a schema, and for each required one.
fn properties(path: &str, schema: &Value, lines: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Object(known)) = fields.get("properties") {
                lines.extend(known.keys().map(|name| format!("field {path}.{name}")));
            }
            if let Some(Value::Array(required)) = fields.get("required") {
                let names = required.iter().filter_map(Value::as_str);
                lines.extend(names.map(|name| format!("always {path}.{name}")));
            }
            for (name, inner) in fields {
                let path = match name.as_str() {
                    "properties" | "$defs" | "items" | "anyOf" | "oneOf" => path.to_owned(),
                    name => format!("{path}.{name}"),
                };
                properties(&path, inner, lines);
            }
        }
        Value::Array(all) => all.iter().for_each(|inner| properties(path, inner, lines)),
        _ => {}
    }
}

/// Returns the interface of this source tree.
fn interface() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let mut command = crate::command_line::command();
    command.build();
    commands("overlane", &command, &mut lines);
    for file in std::fs::read_dir(top().join("schema")).unwrap() {
        let path = file.unwrap().path();
        let schema: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().replace(".schema.json", "");
        properties(&name, &schema, &mut lines);
    }
    let metrics = std::fs::read_to_string(top().join("docs/src/reference/metrics.md")).unwrap();
    let words = metrics.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("overlane_"));
    lines.extend(names.map(|name| format!("metric {name}")));
    lines
}

/// Returns the part of a version in which nothing may be removed: `0.1` of 0.1.3, `1` of 1.2.3.
fn compatible(version: &str) -> &str {
    let significant = if version.starts_with("0.") { 2 } else { 1 };
    let end = version.match_indices('.').nth(significant - 1).map_or(version.len(), |(at, _)| at);
    &version[..end]
}

#[test]
fn nothing_of_an_earlier_release_is_missing() {
    let now = interface();
    let directory = top().join("packaging/interface");
    let version = env!("CARGO_PKG_VERSION");
    if std::env::var_os("UPDATE_INTERFACE").is_some() {
        std::fs::create_dir_all(&directory).unwrap();
        let text: String = now.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(directory.join(version), text).unwrap();
    }
    let mut compared = 0;
    for file in std::fs::read_dir(&directory).unwrap() {
        let path = file.unwrap().path();
        let of = path.file_name().unwrap().to_string_lossy().into_owned();
        if compatible(&of) != compatible(version) {
            continue;
        }
        let before = std::fs::read_to_string(&path).unwrap();
        let missing: Vec<&str> = before.lines().filter(|line| !now.contains(*line)).collect();
        assert!(missing.is_empty(), "{of} had, and this version has not:\n{}", missing.join("\n"));
        compared += 1;
    }
    assert!(compared > 0, "no list of an interface in {}", directory.display());
}

#[test]
fn versions_are_compatible_as_semver_has_it() {
    assert_eq!(compatible("0.1.7"), "0.1");
    assert_eq!(compatible("1.2.3"), "1");
    assert_ne!(compatible("0.1.7"), compatible("0.2.0"));
}
