//! Dashboards and alerts of `examples` use metrics that the program has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the words of a text that are names of metrics.
fn metrics(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("overlane_"))
        .collect()
}

#[test]
fn dashboards_and_alerts_use_documented_metrics() {
    let reference = std::fs::read_to_string(top().join("docs/src/reference/metrics.md")).unwrap();
    let known = metrics(&reference);
    assert!(known.len() > 40, "{known:?}");
    for file in [
        "examples/grafana/overlane-accel.json",
        "examples/grafana/overlane-watch.json",
        "examples/prometheus/overlane.rules.yaml",
    ] {
        let text = std::fs::read_to_string(top().join(file)).unwrap();
        let used = metrics(&text);
        assert!(used.len() > 5, "{file}: {used:?}");
        for metric in used {
            // A histogram has series with these endings.
            let base =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| metric.strip_suffix(end));
            assert!(
                known.contains(metric) || base.is_some_and(|base| known.contains(base)),
                "{file}: {metric} is not in docs/src/reference/metrics.md"
            );
        }
    }
}

/// Each alert has a severity, a summary and a description.
#[test]
fn alerts_are_complete() {
    let text =
        std::fs::read_to_string(top().join("examples/prometheus/overlane.rules.yaml")).unwrap();
    let alerts = text.matches("- alert: ").count();
    assert!(alerts >= 8);
    for part in ["expr: ", "for: ", "labels: {severity: ", "summary: ", "description: "] {
        assert_eq!(text.matches(part).count(), alerts, "{part}");
    }
}
