//! Checks a page of metrics with Prometheus's own tool.

use std::io::Write;
use std::process::{Command, Stdio};

/// Asserts that `promtool check metrics` finds nothing.
///
/// # Panics
/// With its output, and the page.
pub fn assert_clean(page: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.is_empty(), "{said}\n{page}");
}
