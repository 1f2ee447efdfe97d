//! The script of the page about pandas computes the medians of the results file.

use std::process::Command;

use serde_json::Value;
use test_support::{need, require};

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn has_pandas() -> bool {
    let imported = Command::new("python3").args(["-c", "import pandas"]).output();
    imported.is_ok_and(|output| output.status.success())
}

#[test]
fn samples_in_pandas_have_the_medians_of_the_file() {
    require!(need::that(has_pandas(), "python3-pandas"));
    let file = format!("{TOP}/docs/results/modes.json");
    let ended = Command::new(format!("{TOP}/examples/pandas/samples.py"))
        .env("OVERLANE", env!("CARGO_BIN_EXE_overlane"))
        .arg(&file)
        .output()
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let text = String::from_utf8(ended.stdout).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let heads = lines.next().unwrap();
    let at = |head: &str| heads.iter().position(|other| *other == head).unwrap();
    let rows: Vec<_> = lines.collect();
    let results: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let cells = results["cells"].as_array().unwrap();
    let measured: Vec<_> = cells.iter().filter(|cell| cell["status"] == "ok").collect();
    assert_eq!(rows.len(), measured.len(), "{text}");
    for cell in measured {
        let keys = ["workload", "offload", "mode", "role"];
        let same = |row: &&Vec<&str>| keys.iter().all(|key| cell[*key] == row[at(key)]);
        let row = rows.iter().find(same).unwrap_or_else(|| panic!("{cell:#}\n{text}"));
        let close = |head: &str, expected: &Value| match expected.as_f64() {
            Some(expected) => {
                let got: f64 = row[at(head)].parse().unwrap();
                assert!((got / expected - 1.0).abs() < 1e-9, "{head}: {got}, not {expected}");
            }
            None => assert_eq!(row[at(head)], "", "{head}"),
        };
        close("value", &cell["median"]);
        close("ratio", &cell["ratio"]["median"]);
        close("latency_p99_us", &cell["latency_us"]["p99"]);
    }
}
