//! `scripts/check-subjects` checks the subjects of commits.

use std::io::Write;
use std::process::{Command, Stdio};

/// Runs the script on subjects. Returns its messages, one per wrong subject.
fn problems(subjects: &str) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/check-subjects");
    let mut command = Command::new(script);
    command.arg("-").stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(subjects.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let problems: Vec<String> =
        String::from_utf8(output.stderr).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(output.status.success(), problems.is_empty(), "{problems:?}");
    problems
}

#[test]
fn subjects_have_an_area_and_an_imperative_verb() {
    for right in [
        "accel: send segments with RST to the slow path",
        "bpf-load: pass errors of libbpf on",
        "docs: bring the glossary up to date",
    ] {
        assert_eq!(problems(right), [""; 0], "{right}");
    }
    let long = format!("doctor: read {}", "x".repeat(60));
    for (wrong, problem) in [
        ("Read again: one flag that stops a test's threads", "expected 'area: verb"),
        ("no area", "expected 'area: verb"),
        ("sys: added a test", "'added' is not"),
        ("sys: fixes a leak", "'fixes' is not"),
        ("sys: adding a test", "'adding' is not"),
        ("sys: cleanup", "only one word"),
        (&long, "at most 72"),
    ] {
        let said = problems(wrong);
        assert!(said.len() == 1 && said[0].contains(problem), "{wrong}: {said:?}");
    }
}
