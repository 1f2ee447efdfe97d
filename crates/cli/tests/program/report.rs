//! `overlane report`: what it writes, where, and what it refuses.

use std::fs;
use std::path::Path;

use serde_json::Value;
use test_support::{need, require};

use super::launch::{Ended, entries, run};

/// A results file of a short real run.
fn results(directory: &Path, name: &str) -> (String, Value) {
    let results = super::run::small();
    let path = directory.join(name);
    fs::write(&path, results.to_string()).unwrap();
    (path.to_str().unwrap().to_owned(), results)
}

#[track_caller]
fn refused(arguments: &[&str], named: &[&str]) -> Ended {
    let ended = run(arguments).expect(2);
    for text in named {
        assert!(ended.stderr.contains(text), "{arguments:?} does not say {text:?}: {ended:#?}");
    }
    assert!(ended.stdout.is_empty() && !ended.stderr.contains("panicked"), "{ended:#?}");
    ended
}

#[test]
fn page_and_charts_are_written() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let (file, _) = results(directory.path(), "r.json");
    let page = directory.path().join("out.html");
    let charts = directory.path().join("charts");
    let (page_name, charts_name) = (page.to_str().unwrap(), charts.to_str().unwrap());
    let ended = run(["report", &file, "--html", page_name, "--svg", charts_name]).expect(0);
    assert_eq!(ended.stdout, "", "nothing else was asked for");
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>"));
    assert!(text.contains("Ratio to the baseline") && text.contains("Every sample"));
    let names = entries(&charts);
    assert!(names.iter().any(|name| name.contains("-ratio-")), "{names:?}");
    assert!(names.iter().all(|name| name.ends_with(".svg")), "{names:?}");
    // A second time, over what is there; and the tables when asked for too.
    let ended = run(["report", &file, "--html", page_name, "--markdown"]).expect(0);
    assert!(ended.stdout.starts_with("### "), "{ended:#?}");
    for (short, long) in [("--markdown", "markdown"), ("--csv", "csv"), ("--json", "json")] {
        let long = run(["report", &file, "--format", long]).expect(0).stdout;
        assert_eq!(run(["report", &file, short]).expect(0).stdout, long);
    }
    assert_eq!(entries(directory.path()), ["charts", "out.html", "r.json"]);
}

#[test]
fn places_that_cannot_be_written_are_found_first() {
    let directory = tempfile::tempdir().unwrap();
    let inside = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    // The results are not there either: the place is looked at before them.
    refused(
        &["report", "none.json", "--html", directory.path().to_str().unwrap()],
        &["--html", "it is a directory"],
    );
    refused(
        &["report", "none.json", "--html", &inside("no/out.html")],
        &["--html", "No such file"],
    );
    refused(&["report", "none.json", "--html", "/proc/out.html"], &["--html", "cannot be written"]);
    fs::write(inside("file"), "kept").unwrap();
    refused(&["report", "none.json", "--svg", &inside("file")], &["--svg", "not a directory"]);
    refused(&["report", "none.json", "--svg", &inside("no/charts")], &["--svg", "No such file"]);
    refused(
        &["report", "none.json", "--html", &inside("out.html")],
        &["none.json", "No such file"],
    );
    refused(&["report", "r.json", "--csv", "--markdown"], &["--csv", "--markdown"]);
    refused(&["report"], &["<FILE>"]);
    assert_eq!(entries(directory.path()), ["file"]);
}

#[test]
fn a_comparison_is_a_gate() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let (before, mut results) = results(directory.path(), "a.json");
    // A second run in which every mode but the baseline lost a third.
    let after = directory.path().join("b.json");
    for cell in results["cells"].as_array_mut().unwrap() {
        // Few blocks prove nothing: make them many.
        let samples = cell["samples"].as_array_mut().unwrap();
        let copies = samples.clone();
        for round in 1..12_u32 {
            for (i, mut sample) in copies.iter().cloned().enumerate() {
                sample["block"] = (round * copies.len() as u32 + i as u32).into();
                samples.push(sample);
            }
        }
    }
    let many = directory.path().join("many.json");
    fs::write(&many, results.to_string()).unwrap();
    for cell in results["cells"].as_array_mut().unwrap() {
        if cell["role"] == "measured" {
            for sample in cell["samples"].as_array_mut().unwrap() {
                if let Some(ratio) = sample["ratio"].as_f64() {
                    sample["ratio"] = (ratio / 1.5).into();
                }
            }
        }
    }
    fs::write(&after, results.to_string()).unwrap();
    let (many, after) = (many.to_str().unwrap(), after.to_str().unwrap());
    let gate = |a: &str, b: &str, limit: &str| run(["report", "compare", a, b, "--fail-on", limit]);
    let lost = gate(many, after, "5%").expect(10);
    let said = lost.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("A proven regression exceeds 5.0%"), "{lost:#?}");
    gate(many, after, "40").expect(0);
    gate(many, many, "0").expect(0);
    assert!(run(["report", "compare", many, after]).expect(0).stdout.contains("worse"));
    // JSON: valid by its schema, and the same answer.
    let json =
        run(["report", "compare", many, after, "--fail-on", "5%", "--json"]).expect(10).json();
    super::schema::validate("compare", &json);
    assert_eq!(json["failed"], true);
    let few = run(["report", "compare", &before, &before, "--json"]).expect(0).json();
    super::schema::validate("compare", &few);

    refused(&["report", "compare", &before], &["<B>"]);
    for limit in ["-1%", "101%", "five", ""] {
        refused(
            &["report", "compare", &before, after, &format!("--fail-on={limit}")],
            &["--fail-on"],
        );
    }
    let none = directory.path().join("none.json");
    refused(
        &["report", "compare", &before, none.to_str().unwrap()],
        &["none.json", "No such file"],
    );
    let cut = directory.path().join("cut.json");
    fs::write(&cut, &fs::read(after).unwrap()[..900]).unwrap();
    refused(
        &["report", "compare", &before, cut.to_str().unwrap()],
        &["cut.json", "results are cut short"],
    );
    let edited = directory.path().join("edited.json");
    results["plan"]["baseline"] = "vxlan".into();
    fs::write(&edited, results.to_string()).unwrap();
    refused(
        &["report", "compare", &before, edited.to_str().unwrap()],
        &["/plan/baseline", "\"host\"", "\"vxlan\""],
    );
}
