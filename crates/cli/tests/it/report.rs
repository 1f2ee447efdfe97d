//! `overlane report`: its output, its files, and its refusals.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use test_support::{need, require};

use crate::launch::{Ended, entries, overlane, run};
use crate::{example, promtool, schema};

/// Example results with valid message sizes.
fn readable() -> Value {
    let mut results = example::results();
    results.cells.iter_mut().for_each(|cell| cell.message_bytes = cell.message_bytes.min(65_507));
    serde_json::to_value(results).unwrap()
}

/// Writes the results file of an example.
fn results(directory: &Path, name: &str) -> (String, Value) {
    let results = readable();
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
    // Again, over an existing file; prints the tables, too, on request.
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
    // Also without the results: the output place is checked first.
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
    let directory = tempfile::tempdir().unwrap();
    let (before, mut results) = results(directory.path(), "a.json");
    // A second run in which every mode but the baseline lost a third.
    let after = directory.path().join("b.json");
    for cell in results["cells"].as_array_mut().unwrap() {
        // Few blocks prove nothing, so there are many.
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
    schema::validate("compare", &json);
    assert_eq!(json["failed"], true);
    let few = run(["report", "compare", &before, &before, "--json"]).expect(0).json();
    schema::validate("compare", &few);

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

/// Four intervals of a testbed, recorded by `watch`.
fn recording() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/watch.jsonl").to_owned()
}

/// Compares with a reviewed file. `UPDATE_EXPECTED=1` rewrites it.
fn as_expected(name: &str, got: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        fs::write(&path, got).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    for (number, (got, expected)) in got.lines().zip(expected.lines()).enumerate() {
        assert_eq!(got, expected, "{name}, line {}", number + 1);
    }
    assert_eq!(got.len(), expected.len(), "{name}");
}

#[test]
fn a_recording_is_reported_as_text_and_as_a_page() {
    let text = run(["report", &recording()]).expect(0);
    as_expected("watch.txt", &text.stdout);
    for line in text.stdout.lines().filter(|line| !line.contains("  ")) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert_eq!(run(["report", &recording(), "--format", "text"]).expect(0).stdout, text.stdout);
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("page.html");
    let ended = run(["report", &recording(), "--html", page.to_str().unwrap()]).expect(0);
    assert_eq!(ended.stdout, "", "nothing else was asked for");
    let page = fs::read_to_string(&page).unwrap();
    // One row, axis or series per line, so that a difference names its line.
    let mut lines = page.replace("><", ">\n<");
    for inner in ["</", "<title", "<td", "<th", "<b>", "<br", "<path class=\"m"] {
        lines = lines.replace(&format!(">\n{inner}"), &format!(">{inner}"));
    }
    as_expected("watch.html", &(lines + "\n"));
    for head in ["In short", "Dropped packets over time", "Cost of the recording", "Packet paths"] {
        assert!(page.contains(&format!("<h2>{head}</h2>")), "{head}");
    }
    for shown in ["Time from the previous hop, p99", "Packets per second", "NO_SOCKET", "VXLAN 42"]
    {
        assert!(page.contains(shown), "{shown}");
    }
    for forbidden in ["<script", "javascript:", "src=", "@import", "url(", "style=\""] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert_eq!(entries(directory.path()), ["page.html"]);
}

#[test]
fn a_recording_from_a_pipe_is_reported() {
    let mut command = overlane(["report", "/dev/stdin"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reporting = command.spawn().unwrap();
    let mut pipe = reporting.stdin.take().unwrap();
    let recorded = fs::read(recording()).unwrap();
    // In several writes.
    for part in [&recorded[..1], &recorded[1..]] {
        pipe.write_all(part).unwrap();
    }
    drop(pipe);
    let reported = reporting.wait_with_output().unwrap();
    let of_file = run(["report", &recording()]).expect(0);
    assert_eq!(String::from_utf8(reported.stdout).unwrap(), of_file.stdout);
}

#[test]
fn a_recording_that_a_full_disk_cut_is_reported_up_to_there() {
    let recorded = fs::read_to_string(recording()).unwrap();
    let first = recorded.lines().next().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let [cut, whole] = ["cut.jsonl", "whole.jsonl"].map(|name| directory.path().join(name));
    fs::write(&cut, format!("{first}\n{}", &first[..500])).unwrap();
    fs::write(&whole, format!("{first}\n")).unwrap();
    let reported = run(["report", cut.to_str().unwrap()]).expect(0);
    assert!(reported.stderr.contains("line 2, the last one, is cut short"), "{reported:#?}");
    let of_whole = run(["report", whole.to_str().unwrap()]).expect(0);
    assert_eq!(reported.stdout, of_whole.stdout);
}

#[test]
fn results_are_read_from_standard_input_and_behind_a_byte_order_mark() {
    let directory = tempfile::tempdir().unwrap();
    let (file, results) = results(directory.path(), "r.json");
    let expected = run(["report", &file]).expect(0).stdout;
    let marked = directory.path().join("marked.json");
    fs::write(&marked, format!("\u{feff}{results}")).unwrap();
    assert_eq!(run(["report", marked.to_str().unwrap()]).expect(0).stdout, expected);
    let mut command = overlane(["report", "-"]);
    let output = command.stdin(fs::File::open(&file).unwrap()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    let metrics = run(["report", &file, "--format", "openmetrics"]).expect(0).stdout;
    assert!(metrics.contains("# TYPE overlane_result_ratio gauge\n"), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
}

#[test]
fn promtool_finds_nothing_in_the_metrics_of_results() {
    require!(need::tool("promtool"));
    let directory = tempfile::tempdir().unwrap();
    let (file, results) = results(directory.path(), "r.json");
    let metrics = run(["report", &file, "--format", "openmetrics"]).expect(0).stdout;
    promtool::assert_clean(&metrics);
    // Base units: seconds, where the results have microseconds.
    let cell = results["cells"].as_array().unwrap().iter().find(|cell| cell["role"] == "baseline");
    let cell = cell.unwrap();
    let demand = &cell["service_demand"];
    let unit = demand["unit"].as_str().unwrap().strip_prefix("us/").unwrap();
    let head = format!("overlane_result_cpu_seconds{{mode={},role=\"baseline\"", cell["mode"]);
    let line = metrics.lines().find(|line| line.starts_with(&head)).unwrap();
    assert!(line.contains(&format!("per=\"{unit}\"")), "{line}");
    let value: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
    let expected = demand["value"].as_f64().unwrap() / 1e6;
    assert!((value / expected - 1.0).abs() < 1e-9, "{line}: {expected}");
}

#[test]
fn options_for_results_are_refused_for_a_recording() {
    let directory = tempfile::tempdir().unwrap();
    let charts = directory.path().join("charts");
    let file = recording();
    for arguments in [
        &["--svg", charts.to_str().unwrap()][..],
        &["--json"],
        &["--csv"],
        &["--markdown"],
        &["--format", "csv"],
    ] {
        refused(
            &[&["report", &file], arguments].concat(),
            &[&format!("{}: ", arguments[0]), "only text and --html"],
        );
    }
}

#[test]
fn a_damaged_recording_is_refused_by_its_line_and_no_page_is_written() {
    let recorded = fs::read_to_string(recording()).unwrap();
    let lines: Vec<&str> = recorded.lines().collect();
    let directory = tempfile::tempdir().unwrap();
    let [file, page] = ["r.jsonl", "page.html"].map(|name| directory.path().join(name));
    let mut other: Value = serde_json::from_str(lines[0]).unwrap();
    other["format"] = 7.into();
    for (text, problem) in [
        (format!("{}\n{}\n", lines[0], &lines[1][..500]), "line 2: control character"),
        (format!("{}\nnoise\n", lines[0]), "line 2: expected ident"),
        (format!("{other}\n"), "line 1: format 7, this version reads 1"),
        (format!("{}\n{}", lines[0], "[".repeat(20 << 20)), "line 2: "),
        (format!("{}\n{}\n{{}}", lines[0], lines[1]), "line 3: missing field"),
    ] {
        fs::write(&file, text).unwrap();
        let (file, page) = (file.to_str().unwrap(), page.to_str().unwrap());
        let ended = refused(&["report", file, "--html", page], &["FILE: ", "r.jsonl", problem]);
        assert!(ended.stderr.len() < 500, "{ended:?}");
        assert_eq!(entries(directory.path()), ["r.jsonl"]);
    }
}

/// Arbitrary text in a recording is shown as text.
#[test]
fn nothing_in_a_recording_becomes_markup_or_drives_a_terminal() {
    const EVIL: &str = "\"'><script>alert(1)</script>&<!--]]>\x1b[31m\u{202e}\n\u{0}";
    let recorded = fs::read_to_string(recording()).unwrap();
    let mut lines: Vec<Value> =
        recorded.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut number = 0;
    for line in &mut lines {
        line["not_seen"] = vec![EVIL].into();
        line["time_s"] = 1e300.into();
        line["seconds"] = 1e-300.into();
        line["own_cpu"] = 1e308.into();
        line["events"] = u64::MAX.into();
        line["followed"] = u64::MAX.into();
        line["other_ways"] = u64::MAX.into();
        for way in line["ways"].as_array_mut().unwrap() {
            way["ending"] = EVIL.into();
            way["packets"] = u64::MAX.into();
            way["example"]["source"] = EVIL.into();
            for hop in way["hops"].as_array_mut().unwrap() {
                number += 1;
                hop["namespace"] = format!("{EVIL}{number}").into();
                hop["device"] = EVIL.repeat(20).into();
                hop["since_before"]["p99_ns"] = u64::MAX.into();
                hop["since_before"]["count"] = u64::MAX.into();
                hop["cut"] = 1e308.into();
                hop["bytes"] = (-1e308).into();
                if hop["counted"].is_object() {
                    hop["counted"]["packets_per_s"] = 1e308.into();
                }
            }
        }
        for drop in line["drops"].as_array_mut().unwrap() {
            drop["packets"] = u64::MAX.into();
            for key in ["namespace", "device", "reason", "function", "meaning", "check"] {
                drop[key] = EVIL.into();
            }
        }
    }
    let text: String = lines.iter().cycle().take(40).map(|line| format!("{line}\n")).collect();
    let directory = tempfile::tempdir().unwrap();
    let [file, page] = ["r.jsonl", "page.html"].map(|name| directory.path().join(name));
    fs::write(&file, text).unwrap();
    let (file, page) = (file.to_str().unwrap(), page.to_str().unwrap());
    let ended = run(["report", file, "--html", page, "--format", "text"]).expect(0);
    for c in ['\x1b', '\u{202e}', '\0'] {
        assert!(!ended.stdout.contains(c), "{ended:?}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(!page.contains("<script") && !page.contains("<!--") && !page.contains('\x1b'));
    assert!(page.contains("&lt;script&gt;") && !page.contains("NaN"));
    // Also during playback.
    run(["watch", file, "--once"]).expect(0);
}

#[test]
fn results_files_that_are_not_whole() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("r.json");
    let path = file.to_str().unwrap();
    let good = readable();
    let text = serde_json::to_string_pretty(&good).unwrap();
    let report = |text: &str, named: &[&str]| {
        fs::write(&file, text).unwrap();
        for format in ["text", "csv", "json", "markdown"] {
            refused(&["report", path, "--format", format], named);
        }
    };
    report("", &["cut short"]);
    let middle = text.find("\"kernel\"").unwrap();
    report(&text[..middle], &["cut short", "/machine"]);
    report(&text[..text.len() - 2], &["cut short", "the file ends inside"]);
    report(
        &text.replace("overlane.results/3", "overlane.results/2"),
        &["/schema", "overlane.results/3", "overlane.results/2"],
    );
    report("[]", &["expected", "/"]);
    report("not json", &["not JSON", "line 1"]);
    let edited = |pointer: &str, value: serde_json::Value| {
        let mut edited = good.clone();
        *edited.pointer_mut(pointer).unwrap() = value;
        edited.to_string()
    };
    report(&edited("/machine/cpus", "two".into()), &["/machine/cpus", "expected", "two"]);
    report(&edited("/cells/0/offload", "fast".into()), &["/cells/0/offload", "\"full\"", "fast"]);
    report(
        &edited("/cells/0/samples/0/path_proved", false.into()),
        &["/cells/0/samples/0/path_proved", "true for a valid sample"],
    );
    let mut edited = good.clone();
    edited["machine"]["colour"] = "red".into();
    report(&edited.to_string(), &["/machine", "colour"]);
    let mut edited = good.clone();
    edited["plan"].as_object_mut().unwrap().remove("seed");
    report(&edited.to_string(), &["/plan", "seed"]);

    refused(
        &["report", directory.path().join("none").to_str().unwrap()],
        &["none", "No such file"],
    );
    refused(&["report", directory.path().to_str().unwrap()], &["directory"]);
    fs::write(&file, &text).unwrap();
    assert_eq!(run(["report", path, "--json"]).expect(0).json(), good);
}
