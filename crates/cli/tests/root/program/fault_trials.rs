//! `lab run --faults`: costs of faults in results and reports, also if a trial fails or the run is
//! interrupted.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::Value;
use test_support::{need, require};

use super::launch::{Running, overlane, run};
use super::machine::nothing_left;
use super::run::lab_run;
use super::schema;
use super::signals::interrupted;

/// A mode with two faults, both of which take seconds.
const MODE: &str = "bgp-frr";
const FAULTS: [&str; 2] = ["session-ends", "daemon-killed"];

fn mode() -> Result<(), String> {
    let listed = run(["lab", "list", "--json"]).expect(0).json();
    let mode = listed.as_array().unwrap().iter().find(|mode| mode["mode"] == MODE).unwrap();
    need::that(mode["supported"] == true, &format!("{MODE}: {}", mode["reason"]))
}

/// Starts a run with this number of trials.
fn start(trials: &str, out: &Path, change: impl FnOnce(&mut std::process::Command)) -> Running {
    let more = ["--workloads", "tcp_rr", "--offload", "full", "--faults", trials, "--out"];
    let mut command = overlane(lab_run(MODE, &more));
    command.arg(out).env("OVERLANE_LOG", "overlane=debug");
    change(&mut command);
    Running::start(command)
}

#[track_caller]
fn trials(results: &Value) -> [Vec<Value>; 2] {
    let faults = results["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 2, "{faults:#?}");
    [0, 1].map(|at| {
        let fault = &faults[at];
        assert_eq!((&fault["mode"], &fault["fault"]), (&MODE.into(), &FAULTS[at].into()));
        fault["trials"].as_array().unwrap().clone()
    })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The estimated durations in the progress output, seconds.
fn estimates(log: &str) -> Vec<u32> {
    let text = log.lines().filter_map(|line| line.split_once("measuring, for about "));
    let seconds = |clock: &str| {
        let (minutes, seconds) = clock.trim().split_once(':').unwrap();
        minutes.parse::<u32>().unwrap() * 60 + seconds.parse::<u32>().unwrap()
    };
    text.map(|(_, clock)| seconds(clock)).collect()
}

#[test]
fn fault_costs_are_in_results_and_reports() {
    require!(need::root(), need::tools(&["vtysh", "ss"]), mode());
    let directory = tempfile::tempdir().unwrap();
    let [out, page] = ["r.json", "r.html"].map(|name| directory.path().join(name));
    let running = start("1", &out, |_| {});
    let mark = running.mark().to_owned();
    let ended = running.wait().expect(0);
    nothing_left(&mark);

    let results: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).unwrap();
    schema::validate("results", &results);
    assert_eq!((&results["complete"], &results["ended_by"]), (&true.into(), &"blocks".into()));
    for trials in trials(&results) {
        assert_eq!(trials.len(), 1, "{trials:#?}");
        let cost = &trials[0]["cost"];
        let figure = |name: &str| cost[name].as_u64().unwrap();
        // FRR withdraws the route in either mode: packets sent before that are lost.
        assert!(figure("received") > 0 && figure("sent") > figure("received"), "{cost:#?}");
        assert!(cost["outage_s"].as_f64().unwrap() > 0.0, "{cost:#?}");
    }

    let table = ended.stdout.split("Faults, offload full, MTU 1500").nth(1);
    let table = table.unwrap_or_else(|| panic!("{ended:#?}"));
    for row in [format!("mode {MODE}"), format!("  {}", FAULTS[0]), format!("  {}", FAULTS[1])] {
        assert!(table.contains(&row), "{row}: {ended:#?}");
    }
    assert!(ended.stdout.lines().all(|line| line.chars().count() <= 80), "{ended:#?}");

    // Once before the blocks, and again before the faults, which the first estimate includes.
    let estimates = estimates(&ended.stderr);
    let own: u32 = lab::find(MODE).unwrap().faults().iter().map(|fault| fault.seconds).sum();
    assert!(estimates.len() == 2 && estimates[0] >= estimates[1], "{estimates:?}");
    assert!(estimates[1] >= own, "{estimates:?}, faults {own}");

    let [out, page] = [&out, &page].map(|path| path.to_str().unwrap());
    run(["report", out, "--html", page]).expect(0);
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<h2>Faults</h2>") && page.contains("vtysh shuts"), "{page}");
    let markdown = run(["report", out, "--markdown"]).expect(0).stdout;
    assert!(markdown.contains(&format!("| {MODE} | session-ends | 1 | ")), "{markdown}");
}

/// A missing program: that trial has a reason and no figures, the others continue.
#[test]
fn a_trial_that_fails_is_a_part_that_failed() {
    require!(need::root(), need::tools(&["vtysh", "ss"]), mode());
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("r.json");
    let running = start("1", &out, |command| {
        // `ss` is searched there, FRR's programs are not.
        command.env("PATH", directory.path());
    });
    let ended = running.wait().expect(1);
    let results: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).unwrap();
    schema::validate("results", &results);
    assert_eq!(results["complete"], true);
    let [session_ends, daemon_killed] = trials(&results);
    assert!(session_ends[0]["cost"].is_object(), "{session_ends:#?}");
    assert!(daemon_killed[0]["cost"].is_null(), "{daemon_killed:#?}");
    let reason = daemon_killed[0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("ss "), "{reason}");
    let text = one_line(&ended.stdout);
    let place =
        format!("{MODE}, offload full, MTU 1500, fault daemon-killed, 1 of 1 trial: failed:");
    assert!(text.contains("Not measured") && text.contains(&place), "{ended:#?}");
}

#[test]
fn an_interrupted_run_has_the_trials_that_were_whole() {
    require!(need::root(), need::tools(&["vtysh", "ss"]), mode());
    let when = [
        // During the blocks, and in the second of four trials.
        (Signal::SIGINT, format!("sampling {MODE}"), [0, 0]),
        (Signal::SIGTERM, format!("{MODE}, fault daemon-killed, trial 1 of 2"), [1, 0]),
    ];
    for (signal, at, whole) in when {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("r.json");
        let mut running = start("2", &out, |_| {});
        let mark = running.mark().to_owned();
        running.await_stderr(&at);
        running.signal(signal);
        let ended = running.wait().expect(130);
        nothing_left(&mark);
        let results = interrupted(&out);
        let trials = trials(&results);
        assert_eq!(trials.each_ref().map(Vec::len), whole, "{trials:#?}");
        assert!(trials[0].iter().all(|trial| trial["cost"].is_object()), "{trials:#?}");
        assert!(results["faults"].as_array().unwrap().iter().all(|fault| fault["asked"] == 2));
        let text = format!("and {} of 4 trials of faults", whole[0]);
        assert!(one_line(&ended.stdout).contains(&text), "{text}: {ended:#?}");
    }
}
