//! Ctrl-C and SIGTERM: results so far are written, and nothing is left.

use nix::sys::signal::Signal;
use serde_json::Value;
use test_support::{need, require};

use super::launch::{Running, entries, overlane, run};
use super::machine::nothing_left;
use super::schema;

/// A run that would take minutes.
fn long(modes: &str, out: &std::path::Path) -> Running {
    let mut command =
        overlane(["lab", "run", "--modes", modes, "--workloads", "tcp_rr,udp_stream"]);
    command.args(["--offload", "full", "--blocks", "1000", "--duration", "0.05"]);
    command.args(["--disturbance", "100", "--out"]).arg(out).env("OVERLANE_LOG", "overlane=debug");
    Running::start(command)
}

/// The results of an interrupted run.
#[track_caller]
pub fn interrupted(out: &std::path::Path) -> Value {
    let results: Value = serde_json::from_str(&std::fs::read_to_string(out).unwrap()).unwrap();
    schema::validate("results", &results);
    assert_eq!(
        (&results["complete"], &results["ended_by"]),
        (&false.into(), &"interrupted".into())
    );
    results
}

#[test]
fn an_interrupted_run_writes_what_it_has() {
    require!(need::root());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("r.json");
        let mut running = long("vxlan,nat-proxy", &out);
        let mark = running.mark().to_owned();
        // Each block measures both workloads of the mode once: after the third time, a block is
        // complete.
        for _ in 0..3 {
            running.await_next_stderr("sampling vxlan");
        }
        running.signal(signal);
        if signal == Signal::SIGTERM {
            // As timeout(1) does. A second Ctrl-C would end it at once.
            running.signal(signal);
        }
        let ended = running.wait().expect(130);
        let results = interrupted(&out);
        let samples: usize = results["cells"]
            .as_array()
            .unwrap()
            .iter()
            .map(|cell| cell["samples"].as_array().unwrap().len())
            .sum();
        assert!(samples > 0, "{results:#?}");
        assert!(ended.stdout.contains("tcp_rr, 1 B messages"), "{ended:#?}");
        assert_eq!(entries(directory.path()), ["r.json"]);
        nothing_left(&mark);
    }
}

#[test]
fn a_hangup_ends_a_run_as_ctrl_c_does() {
    require!(need::root());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1;
    require!(need::that(!ignored, "SIGHUP is ignored here, as under nohup"));
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("r.json");
    let mut running = long("vxlan", &out);
    let mark = running.mark().to_owned();
    for _ in 0..2 {
        running.await_next_stderr("sampling vxlan");
    }
    running.signal(Signal::SIGHUP);
    running.wait().expect(130);
    interrupted(&out);
    nothing_left(&mark);
}

#[test]
fn a_killed_run_leaves_its_samples() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("r.json");
    let mut running = long("vxlan", &out);
    let mark = running.mark().to_owned();
    // When this cell comes again, a sample of each cell has been stored.
    for _ in 0..2 {
        running.await_next_stderr("sampling vxlan");
    }
    running.signal(Signal::SIGKILL);
    running.wait();
    assert_eq!(entries(directory.path()), ["r.json.samples"]);
    let kept = directory.path().join("r.json.samples");
    let kept = kept.to_str().unwrap();
    let results = run(["report", kept, "--format", "json"]).expect(0).json();
    schema::validate("results", &results);
    assert_eq!(
        (&results["complete"], &results["ended_by"]),
        (&false.into(), &"interrupted".into())
    );
    // The order of the run decides which cells.
    let mut cells = results["cells"].as_array().unwrap().iter();
    let is_sampled = cells.any(|cell| !cell["samples"].as_array().unwrap().is_empty());
    assert!(is_sampled, "{results:#}");
    let text = run(["report", kept]).expect(0).stdout;
    assert!(text.contains("the run was killed"), "{text}");
    // The next run does not overwrite them.
    let again = long("vxlan", &out).wait().expect(2);
    assert!(again.stderr.contains("r.json.samples has the samples of a run"), "{again:#?}");
    nothing_left(&mark);
}

/// As with `lab run --out FILE | head -1`.
#[test]
fn a_closed_pipe_takes_nothing_from_written_results() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("r.json");
    let arguments =
        "lab run --modes host --offload full --workloads tcp_rr --blocks 1 --duration 0.05 --out";
    let mut command = overlane(arguments.split(' '));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command.arg(&out).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
    // The samples would prevent the next run.
    assert_eq!(entries(directory.path()), ["r.json"]);
}

#[test]
fn samples_come_as_lines_while_a_run_goes_on() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    let path = path.to_str().unwrap();
    let arguments =
        "lab run --modes host --offload full --workloads tcp_rr --blocks 2 --duration 0.1 --events";
    let arguments = || arguments.split(' ').chain([path]);
    run(arguments()).expect(0);
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["results"]["cells"][0]["mode"], "host");
    // The baseline and its A/A in each block.
    let of_baseline = |line: &&Value| line["cell"] == 0;
    assert!(lines[1..].iter().filter(of_baseline).count() >= 2, "{text}");
    assert!(lines[1..].iter().all(|line| line["sample"]["block"].is_u64()), "{text}");
    let shown = run(["report", path]).expect(0).stdout;
    assert!(shown.contains("tcp_rr"), "{shown}");
    // A file of another run is not overwritten.
    let again = run(arguments()).expect(2);
    assert!(again.stderr.contains("--events: cannot create"), "{again:?}");
}

#[test]
fn interrupted_while_it_builds() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("r.json");
    let mut running = long("all", &out);
    let mark = running.mark().to_owned();
    running.await_stderr("building host");
    running.signal(Signal::SIGINT);
    running.wait().expect(130);
    let results = interrupted(&out);
    let interrupted = results["modes"].as_array().unwrap().iter().filter(|mode| {
        mode["reason"].as_str().is_some_and(|reason| reason.contains("interrupted"))
    });
    assert!(interrupted.count() > 0, "{results:#?}");
    nothing_left(&mark);
}

#[test]
fn interrupted_while_it_probes_and_in_the_first_sample() {
    require!(need::root());
    for phase in ["probing vxlan", "sampling"] {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("r.json");
        let mut running = long("vxlan", &out);
        let mark = running.mark().to_owned();
        running.await_stderr(phase);
        running.signal(Signal::SIGINT);
        running.wait().expect(130);
        let results = interrupted(&out);
        let modes = results["modes"].as_array().unwrap();
        assert!(modes.iter().all(|mode| mode["status"] == "ok"), "{phase}: {results:#}");
        assert_eq!(entries(directory.path()), ["r.json"], "{phase}");
        nothing_left(&mark);
    }
}

/// Docker's programs take seconds, and an interrupt does not wait for them.
#[test]
fn interrupted_while_docker_starts() {
    require!(need::root(), need::tool("dockerd"));
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("r.json");
    let mut running = long("swarm", &out);
    let mark = running.mark().to_owned();
    running.await_stderr("building swarm");
    running.signal(Signal::SIGTERM);
    running.wait().expect(130);
    let results = interrupted(&out);
    let reason = results["modes"].as_array().unwrap().iter().find(|mode| mode["mode"] == "swarm");
    let reason = reason.and_then(|mode| mode["reason"].as_str()).unwrap_or_default();
    assert!(reason.contains("interrupted while") && reason.contains("docker"), "{results:#?}");
    nothing_left(&mark);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("r.json");
    // Two threads may handle the two signals at the same instant, both as the first one: rare, and
    // not every time.
    let was_obeyed = (0..5).any(|_| {
        let mut running = long("vxlan", &out);
        let mark = running.mark().to_owned();
        running.await_stderr("sampling vxlan");
        // Both signals are pending before the process continues, so that the first cannot be
        // handled earlier.
        running.signal(Signal::SIGSTOP);
        running.signal(Signal::SIGINT);
        running.signal(Signal::SIGTERM);
        running.signal(Signal::SIGCONT);
        let ended = running.wait().expect(130);
        nothing_left(&mark);
        let was_obeyed = !out.exists();
        if was_obeyed {
            assert!(ended.stdout.is_empty(), "{ended:#?}");
            // The samples so far, if any, as after a kill.
            let left = entries(directory.path());
            assert!(left.iter().all(|name| name == "r.json.samples"), "{left:?}");
            for name in left {
                std::fs::remove_file(directory.path().join(name)).unwrap();
            }
        } else {
            std::fs::remove_file(&out).unwrap();
        }
        was_obeyed
    });
    assert!(was_obeyed, "five times the second signal was not obeyed");
}
