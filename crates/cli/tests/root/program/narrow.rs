//! Tables and lists in a narrow terminal.

use std::path::Path;

use test_support::{need, require};

use super::launch::{Running, overlane, run};

const COLUMNS: usize = 60;

fn narrow(arguments: &[&str]) -> String {
    let mut command = overlane(arguments);
    command.env("COLUMNS", COLUMNS.to_string());
    Running::start(command).wait().expect(0).stdout
}

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn lines_fit_into_sixty_columns() {
    require!(need::root());
    let recording = data("watch.jsonl");
    let commands: [&[&str]; 9] = [
        &[],
        &["lab", "list"],
        &["lab", "plans"],
        &["accel", "explain"],
        &["accel", "explain", "AX101"],
        &["doctor", "list"],
        &["doctor", "explain", "OV093"],
        &["watch", &recording, "--text"],
        &["report", &recording],
    ];
    for command in commands {
        let text = narrow(command);
        assert!(text.lines().count() > 3, "{command:?}: {text}");
        for line in text.lines() {
            // A word that is longer than the line cannot be broken.
            let words = line.split_whitespace().count();
            assert!(line.chars().count() <= COLUMNS || words == 1, "{command:?}: {line}");
        }
    }
}

#[test]
fn lines_for_other_programs_are_not_broken() {
    require!(need::root());
    let list = run(["lab", "list"]).expect(0).stdout;
    let swarm = list.lines().find(|line| line.starts_with("  swarm "));
    assert!(swarm.is_some_and(|line| line.ends_with(" - wire")), "{list}");
    let text = run(["watch", &data("watch.jsonl"), "--once"]).expect(0).stdout;
    assert!(text.lines().any(|line| line.contains("Mbit/s") && line.ends_with("p99")), "{text}");
}
