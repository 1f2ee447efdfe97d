//! External tools: side by side with the built-in engine, missing, of another version, hanging, and
//! killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use test_support::{need, require};

use super::launch::{Running, eventually, overlane};
use super::machine::{marked, nothing_left};
use super::schema;

fn lab_run(modes: &str, workloads: &str, engines: &str) -> Command {
    let mut command = overlane(["lab", "run", "--json", "--modes", modes]);
    command.args(["--workloads", workloads, "--engine", engines, "--offload", "full"]);
    // Two blocks, for an interval.
    command.args(["--blocks", "2", "--duration", "0.3", "--warmup", "0.05"]);
    command.args(["--disturbance", "100"]);
    command
}

fn results(command: Command, code: i32) -> Value {
    let results = Running::start(command).wait().expect(code).json();
    schema::validate("results", &results);
    results
}

/// Results of a run whose samples all count: on a busy machine some may not, and the run is
/// repeated once.
fn results_that_count(command: impl Fn() -> Command) -> Value {
    for _ in 0..4 {
        let results = results(command(), 0);
        let samples = cells(&results).iter().flat_map(|cell| cell["samples"].as_array().unwrap());
        // A sample in which nothing arrived has no figures to compare.
        let none = |sample: &&Value| sample["valid"] == false || sample["value"] == 0.0;
        let none: Vec<_> = samples.filter(none).collect();
        if none.is_empty() {
            return results;
        }
        let reasons = none.iter().map(|sample| sample["invalid_reason"].to_string());
        eprintln!("measured again: {}", reasons.collect::<Vec<_>>().join(", "));
    }
    panic!("no run in which all samples count");
}

fn cells(results: &Value) -> &Vec<Value> {
    results["cells"].as_array().unwrap()
}

#[test]
fn tools_stand_beside_the_built_in_engine() {
    require!(need::root(), need::tools(&["iperf3", "netperf", "netserver", "qperf"]));
    let engines = "overlane,iperf3,netperf,qperf";
    let results = results_that_count(|| lab_run("host,nat", "tcp_stream,tcp_rr", engines));
    for cell in cells(&results) {
        let text = |name: &str| cell[name].as_str().unwrap();
        let (mode, engine) = (text("mode"), text("engine"));
        let what = format!("{mode} {} by {engine}", text("workload"));
        // iperf3 has no transactions; the others need a second port.
        let cannot = match engine {
            "iperf3" => text("workload") == "tcp_rr",
            "netperf" | "qperf" => mode == "nat",
            _ => false,
        };
        assert_eq!(text("status") == "unsupported", cannot, "{what}: {}", cell["reason"]);
        if cannot {
            continue;
        }
        assert_eq!(cell["status"], "ok", "{what}: {}", cell["reason"]);
        assert!(cell["median"].as_f64().unwrap() > 0.0, "{what}");
        // Ratios are to the baseline of the same engine.
        assert_eq!(cell["ratio"].is_null(), cell["role"] == "baseline", "{what}");
        let tool = &cell["tool"];
        assert_eq!(tool.is_null(), engine == "overlane", "{what}");
        if engine != "overlane" {
            assert!(tool["command"].as_str().unwrap().starts_with(engine), "{what}: {tool}");
            assert!(!tool["figures"].as_object().unwrap().is_empty(), "{what}");
            assert!(tool["ratio"]["median"].as_f64().unwrap() > 0.0, "{what}: {tool}");
        }
        if engine == "netperf" {
            assert!(tool["figures"]["LOCAL_CPU_UTIL"].as_f64().unwrap() > 0.0, "{tool}");
        }
    }
    // Every sample of a tool is longer than requested, which one warning says.
    let warnings = results["warnings"].as_array().unwrap();
    for tool in ["iperf3", "netperf", "qperf"] {
        let start = format!("{tool} accepts whole seconds only");
        let count = warnings.iter().filter(|said| said.as_str().unwrap().starts_with(&start));
        assert_eq!(count.count(), 1, "{tool}: {warnings:#?}");
    }
}

#[test]
fn a_missing_tool_is_named_with_the_command_that_installs_it() {
    require!(need::root());
    let mut command =
        lab_run("host", "udp_stream", "overlane,iperf3,netperf,qperf,sockperf,nuttcp");
    command.env("PATH", "/nowhere");
    // Each mode was named.
    let results = results(command, 1);
    for cell in cells(&results) {
        let engine = cell["engine"].as_str().unwrap();
        if engine == "overlane" {
            assert_eq!(cell["status"], "ok", "{}", cell["reason"]);
            continue;
        }
        assert_eq!(cell["status"], "unsupported");
        let reason = cell["reason"].as_str().unwrap();
        assert!(reason.contains(&format!("apt install {engine}")), "{reason}");
        assert_eq!(reason.contains("non-free"), engine == "netperf", "{reason}");
    }
}

/// A directory with a program that has the name of a tool.
struct Fake(PathBuf);

impl Fake {
    fn new(test: &str, script: &str) -> Fake {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("qperf");
        test_support::install(format!("#!/bin/sh\n{script}").as_bytes(), &path);
        Fake(directory)
    }

    fn before(&self, command: &mut Command) {
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.0.display()));
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The server is the real one; only the client is fake.
fn other_client(client: &str) -> String {
    let own = "case \"$1\" in --version) echo qperf 99.1; exit;; -lp) ;; esac\n";
    let real = "[ $# = 2 ] && exec /usr/bin/qperf \"$@\"\n";
    format!("{own}{real}{client}\n")
}

#[test]
fn output_of_another_form_is_quoted() {
    const TEST: &str = "output_of_another_form_is_quoted";
    require!(need::root(), need::tools(&["qperf"]));
    let fake = Fake::new(TEST, &other_client("echo '{\"tcp_latency\": \"7 us\"}'"));
    let mut command = lab_run("host", "tcp_rr", "overlane,qperf");
    fake.before(&mut command);
    let results = results(command, 1);
    let failed: Vec<&Value> =
        cells(&results).iter().filter(|cell| cell["engine"] == "qperf").collect();
    assert_eq!(failed.len(), 2);
    for cell in failed {
        assert_eq!(cell["status"], "failed");
        let reason = cell["reason"].as_str().unwrap();
        assert!(reason.contains("unexpected output of qperf 99.1"), "{reason}");
        assert!(reason.contains("tcp_latency") && reason.contains("7 us"), "{reason}");
    }
}

#[test]
fn a_tool_that_hangs_is_ended() {
    const TEST: &str = "a_tool_that_hangs_is_ended";
    require!(need::root(), need::tools(&["qperf"]));
    let fake = Fake::new(TEST, &other_client("echo still here; exec sleep 1000"));
    let mut command = lab_run("host", "tcp_rr", "qperf");
    fake.before(&mut command);
    let running = Running::start(command);
    let mark = running.mark().to_owned();
    let ended = running.wait().expect(1);
    let results = ended.json();
    let reason = cells(&results)[0]["reason"].as_str().unwrap();
    assert!(reason.contains("did not end within") && reason.contains("still here"), "{reason}");
    nothing_left(&mark);
}

#[test]
fn no_end_of_a_run_leaves_a_tool_behind() {
    const TOOLS: [&str; 3] = ["iperf3", "netserver", "sockperf"];
    require!(need::root(), need::tools(&TOOLS));
    for (tool, engine) in TOOLS.into_iter().zip(["iperf3", "netperf", "sockperf"]) {
        for signal in [Signal::SIGKILL, Signal::SIGINT] {
            let mut command = overlane(["lab", "run", "--modes", "host", "--offload", "full"]);
            command.args(["--workloads", "udp_stream", "--engine", engine, "--blocks", "1"]);
            command.args(["--duration", "60", "--warmup", "0", "--disturbance", "100"]);
            let running = Running::start(command);
            let mark = running.mark().to_owned();
            eventually("the tool", || {
                let names: Vec<String> =
                    marked(&mark).into_iter().map(|found| found.name).collect();
                if names.iter().any(|name| name == tool) {
                    Ok(())
                } else {
                    Err(format!("{names:?}"))
                }
            });
            running.signal(signal);
            let ended = running.wait();
            assert!(ended.took < Duration::from_secs(30), "{ended:#?}");
            nothing_left(&mark);
        }
    }
}
