//! The table of README is an excerpt of the results in `docs/results`.

use std::path::{Path, PathBuf};

use report::Style;
use results::Results;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_table_of_readme_has_the_figures_of_the_kept_results() {
    let readme = std::fs::read_to_string(top().join("README.md")).unwrap();
    let kept = std::fs::read(top().join("docs/results/modes.json")).unwrap();
    let results = Results::from_json(&kept).unwrap();
    let text = report::text(&results, Style { colour: false, width: 80 });
    let block = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let known: Vec<Vec<String>> = text.lines().map(words).collect();
    let rows: Vec<&str> = block.lines().filter(|line| !line.trim().is_empty()).collect();
    assert!(rows.len() > 5, "{block}");
    for row in rows {
        assert!(
            known.contains(&words(row)),
            "README has {row:?}, which docs/results/modes.json has not"
        );
    }
    assert!(block.contains("vxlan+accel"), "the fast path is not in README's table");
    let date = &results.started[..10];
    assert!(readme.contains(date), "README does not give the date of its figures, {date}");
}

#[test]
fn the_gain_on_nodes_is_that_of_the_kept_results() {
    let readme = std::fs::read_to_string(top().join("README.md")).unwrap();
    let kept = std::fs::read(top().join("docs/results/nodes.json")).unwrap();
    let results: serde_json::Value = serde_json::from_slice(&kept).unwrap();
    let median = |mode: &str| {
        let cells = results["cells"].as_array().unwrap().iter();
        let mut of_mode =
            cells.filter(|cell| cell["mode"] == mode && cell["workload"] == "udp_stream");
        of_mode.next().unwrap()["ratio"]["median"].as_f64().unwrap()
    };
    let gain = format!("from {:.2} to {:.2} of the bare", median("k8s"), median("k8s+accel"));
    let words = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&gain), "README does not say {gain:?}");
}
