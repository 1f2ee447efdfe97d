//! Broken or unused paths, full disks, and concurrent runs.

use nix::sys::signal::Signal;
use serde_json::Value;
use test_support::{need, require};

use super::launch::{OVERLANE, Running, entries, overlane, sh};
use super::machine::{held, nothing_left};
use super::run::lab_run;
use super::schema;

/// Runs `ip` in a namespace.
fn ip(netns: &str, arguments: &str) -> String {
    let net = format!("--net={netns}");
    let words: Vec<&str> = [&net[..], "ip"].into_iter().chain(arguments.split(' ')).collect();
    sh("nsenter", &words)
}

fn with_address(namespaces: &[String], device: &str, address: &str) -> String {
    let wanted = format!(" {address}/");
    let has = |netns: &&String| {
        ip(netns, "-o -4 addr").lines().any(|line| line.contains(device) && line.contains(&wanted))
    };
    namespaces.iter().find(has).unwrap_or_else(|| panic!("{device} {address}")).clone()
}

/// Starts a run and stops it in the warm-up of its first sample, of `host`.
fn halted_before_the_first_sample(arguments: &[&str]) -> Running {
    for seed in 0..100 {
        let mut command = overlane(arguments);
        command.args(["--seed", &seed.to_string()]).env("OVERLANE_LOG", "overlane=debug");
        let mut running = Running::start(command);
        running.await_stderr("sampling ");
        running.signal(Signal::SIGSTOP);
        let said = running.stderr_so_far();
        let begun: Vec<&str> = said.lines().filter(|line| line.contains("sampling ")).collect();
        if begun.len() == 1 && begun[0].contains("sampling host") {
            return running;
        }
    }
    panic!("no seed puts host first");
}

#[test]
fn broken_and_diverted_paths_fail_alone() {
    require!(need::root(), need::tools(&["nsenter", "ip"]));
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("r.json");
    // The paths are broken during the warm-up.
    let arguments = "lab run --modes host,routed,bridge,vxlan --workloads tcp_rr --offload full \
        --blocks 2 --duration 0.05 --warmup 0.4 --disturbance 100 --out";
    let mut arguments: Vec<&str> = arguments.split_whitespace().collect();
    arguments.push(out.to_str().unwrap());
    let running = halted_before_the_first_sample(&arguments);

    let namespaces = held(running.pid());
    // vxlan: the server's tenant is unplugged.
    let tenant = with_address(&namespaces, "eth0", "10.1.0.12");
    ip(&tenant, "link set eth0 down");
    // bridge: a shorter path between the tenants that bypasses every declared hop.
    let (a, b) = (
        with_address(&namespaces, "eth0", "10.0.0.11"),
        with_address(&namespaces, "eth0", "10.0.0.12"),
    );
    ip(&a, &format!("link add x0 type veth peer name x0 netns {b}"));
    for (netns, own, other, tenant) in
        [(&a, "192.0.2.1", "192.0.2.2", "10.0.0.12"), (&b, "192.0.2.2", "192.0.2.1", "10.0.0.11")]
    {
        ip(netns, &format!("addr add {own}/24 dev x0"));
        ip(netns, "link set x0 up");
        ip(netns, &format!("route add {tenant}/32 via {other}"));
    }
    running.signal(Signal::SIGCONT);
    let mark = running.mark().to_owned();
    let ended = running.wait().expect(1);

    let results: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    schema::validate("results", &results);
    assert_eq!(results["complete"], true);
    let mut reasons = std::collections::BTreeMap::new();
    for cell in results["cells"].as_array().unwrap() {
        let mode = cell["mode"].as_str().unwrap();
        match mode {
            "vxlan" | "bridge" => {
                assert_eq!(cell["status"], "failed", "{cell:#?}");
                reasons.insert(mode, cell["reason"].as_str().unwrap());
                for sample in cell["samples"].as_array().unwrap() {
                    assert_eq!(
                        (&sample["valid"], &sample["path_proved"]),
                        (&false.into(), &false.into())
                    );
                }
            }
            _ => assert_eq!(cell["status"], "ok", "{cell:#?}"),
        }
    }
    assert!(reasons["vxlan"].contains("10.1.0.12:5301"), "{reasons:?}");
    let diverted = reasons["bridge"];
    assert!(diverted.contains("did not take the mode's path: tenant-a eth0 saw "), "{diverted}");
    for reason in reasons.values() {
        // Wrapped to the table's width, so by its first words.
        let first: String = reason.split(' ').take(3).collect::<Vec<_>>().join(" ");
        assert!(ended.stdout.contains(&first), "{first}: {}", ended.stdout);
    }
    nothing_left(&mark);
}

#[test]
fn a_full_disk_costs_neither_the_earlier_file_nor_the_table() {
    require!(need::root(), need::tools(&["unshare", "mount"]));
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().display();
    for earlier in ["earlier results", ""] {
        let before = if earlier.is_empty() {
            String::new()
        } else {
            format!("echo '{earlier}' > {at}/r.json;")
        };
        let run = lab_run("host", &["--workloads", "tcp_rr", "--offload", "full,none"]).join(" ");
        let script = format!(
            "mount -t tmpfs -o size=16k none {at}; {before} \"{OVERLANE}\" {run} --out {at}/r.json; \
             echo code $?; ls -A {at}; cat {at}/r.json"
        );
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        let ended = Running::start(command).wait();
        let (table, after) = ended.stdout.split_once("code ").unwrap();
        assert!(table.contains("tcp_rr, 1 B messages"), "{ended:#?}");
        assert!(
            ended.stderr.contains("r.json") && ended.stderr.contains("No space left on device"),
            "{ended:#?}"
        );
        let expected =
            if earlier.is_empty() { "1\n".to_owned() } else { format!("1\nr.json\n{earlier}\n") };
        assert_eq!(after, expected, "{ended:#?}");
    }
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn earlier_results_are_replaced_whole() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("r.json");
    for _ in 0..2 {
        let more = ["--workloads", "tcp_rr", "--offload", "full", "--out", out.to_str().unwrap()];
        super::launch::run(lab_run("host", &more)).expect(0);
        let results = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
        schema::validate("results", &results);
        assert_eq!(entries(directory.path()), ["r.json"]);
        std::fs::write(&out, "x".repeat(1_000_000)).unwrap();
    }
}

#[test]
fn two_runs_at_once_do_not_disturb_each_other() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let out = |n: usize| directory.path().join(format!("{n}.json"));
    let runs: Vec<Running> = (0..2)
        .map(|n| {
            let out = out(n);
            let more =
                ["--workloads", "tcp_rr", "--offload", "full", "--out", out.to_str().unwrap()];
            Running::start(overlane(lab_run("nat,vxlan", &more)))
        })
        .collect();
    for (n, running) in runs.into_iter().enumerate() {
        let mark = running.mark().to_owned();
        running.wait().expect(0);
        let results: Value =
            serde_json::from_str(&std::fs::read_to_string(out(n)).unwrap()).unwrap();
        schema::validate("results", &results);
        for cell in results["cells"].as_array().unwrap() {
            assert_eq!(cell["status"], "ok", "{cell:#?}");
        }
        nothing_left(&mark);
    }
    assert_eq!(entries(directory.path()), ["0.json", "1.json"]);
}
