//! A small real run: the content of its results, and how they are shown.

use std::path::Path;

use serde_json::Value;
use test_support::{left_out, need, require};

use super::launch::{Ended, Running, entries, overlane, run};
use super::schema;

/// Arguments of the shortest meaningful run. Other tests load this machine, and disturbed samples
/// still count.
pub const SHORT: [&str; 8] =
    ["--blocks", "2", "--duration", "0.1", "--warmup", "0.05", "--disturbance", "100"];

/// `lab run` with these modes and [`SHORT`].
pub fn lab_run<'a>(modes: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["lab", "run", "--modes", modes], &SHORT[..], more].concat()
}

/// One run of several modes: its results, and their presentation.
#[test]
fn a_run_of_several_modes() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("r.json");
    let more = ["--workloads", "tcp_stream,tcp_rr,udp_stream", "--offload", "full,none", "--out"];
    let mut arguments = lab_run("vxlan,nat,nat-proxy,vlan,ipvlan", &more);
    arguments.push(out.to_str().unwrap());
    let ended = run(arguments);
    let results: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    // An unavailable mode that was named makes the run fail in part.
    let modes = results["modes"].as_array().unwrap();
    let lacks = modes.iter().any(|mode| mode["status"] == "unsupported");
    let ended = ended.expect(i32::from(lacks));
    assert_eq!(entries(directory.path()), ["r.json"], "{ended:#?}");
    results_are_as_their_schema_says_and_every_sample_proved_its_path(&results);
    gso_packets_cross_the_wire_under_full_only(&results);
    the_proxy_ends_the_traffic_and_translation_does_not(&results);
    unsupported_modes_are_in_the_results_with_their_reason(&ended, &results);
    a_results_file_is_shown_as_the_run_showed_it(&ended, &results, &out);
}

/// Cells selected by `wanted`: mode, offload and workload.
fn cells<'a>(results: &'a Value, wanted: &[(&str, &str)]) -> Vec<&'a Value> {
    let cells = results["cells"].as_array().unwrap();
    cells.iter().filter(|cell| wanted.iter().all(|(field, value)| cell[field] == *value)).collect()
}

/// The only such cell.
#[track_caller]
fn cell<'a>(results: &'a Value, wanted: &[(&str, &str)]) -> &'a Value {
    let found = cells(results, wanted);
    assert_eq!(found.len(), 1, "{wanted:?}: {found:#?}");
    found[0]
}

/// Mean skb of a cell at a hop, client to server.
#[track_caller]
fn mean_skb(cell: &Value, host: &str, device: &str) -> f64 {
    let hops = cell["hops"].as_array().unwrap();
    let hop = hops.iter().find(|hop| {
        hop["host"] == host && hop["device"] == device && hop["direction"] == "forward"
    });
    hop.unwrap_or_else(|| panic!("no hop {host} {device}: {hops:#?}"))["mean_skb_bytes"]
        .as_f64()
        .unwrap()
}

fn results_are_as_their_schema_says_and_every_sample_proved_its_path(results: &Value) {
    schema::validate("results", results);
    assert_eq!(results["complete"], true);
    assert_eq!(results["ended_by"], "blocks");
    assert_eq!(results["plan"]["blocks_done"], 2);
    let mut valid = 0;
    for cell in results["cells"].as_array().unwrap() {
        for sample in cell["samples"].as_array().unwrap() {
            if sample["valid"] == true {
                valid += 1;
                assert_eq!(sample["path_proved"], true, "{cell:#?}");
                assert!(!sample["hops"].as_array().unwrap().is_empty(), "{cell:#?}");
            }
        }
    }
    // (2 + 3 modes and the A/A) × 2 profiles × 3 workloads × 2 blocks. Another program may void a
    // few of them.
    assert!(valid > 40, "{valid}");
    let mut floors = 0;
    for offload in ["full", "none"] {
        for workload in ["tcp_stream", "tcp_rr", "udp_stream"] {
            let of = |role| {
                cell(results, &[("role", role), ("offload", offload), ("workload", workload)])
            };
            assert_eq!(of("baseline")["mode"], "host");
            let aa = of("aa");
            assert_eq!(aa["mode"], "host");
            // One ratio for each block in which both samples count.
            let ratios: Vec<f64> = aa["samples"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|sample| sample["ratio"].as_f64())
                .collect();
            if ratios.len() == 2 {
                floors += 1;
                assert_eq!(aa["ratio"]["samples"], 2);
                assert!(aa["ratio"]["median"].as_f64().unwrap() > 0.0, "{aa:#?}");
            }
        }
    }
    assert!(floors > 0, "no A/A ratio of two blocks");
    for testbed in results["testbeds"].as_array().unwrap() {
        let on = testbed["devices"][0]["features"]["tx-tcp-segmentation"].as_bool();
        if testbed["mode"] == "host" {
            assert_eq!(on, Some(testbed["offload"] == "full"), "{testbed}");
        }
        // No figure comes from a path that damages packets.
        assert_eq!(testbed["probe"]["damage"].as_array().map(Vec::len), Some(0), "{testbed}");
    }
}

fn gso_packets_cross_the_wire_under_full_only(results: &Value) {
    for (offload, expected) in [("full", 6000.0..70_000.0), ("none", 500.0..1500.1)] {
        let cell =
            cell(results, &[("mode", "vxlan"), ("offload", offload), ("workload", "tcp_stream")]);
        for host in ["a", "b"] {
            let mean = mean_skb(cell, host, "nic0");
            assert!(expected.contains(&mean), "{offload} {host}: {mean}, expected {expected:?}");
        }
    }
}

fn the_proxy_ends_the_traffic_and_translation_does_not(results: &Value) {
    let ends = |mode: &str| -> Vec<Value> {
        cells(results, &[("mode", mode)])
            .into_iter()
            .flat_map(|cell| cell["hops"].as_array().unwrap().clone())
            .filter(|hop| hop["kind"] == "process")
            .collect()
    };
    assert!(ends("nat").is_empty());
    if let Err(missing) = need::tools(&["docker-proxy"]) {
        return left_out(&missing);
    }
    let proxies = ends("nat-proxy");
    // 2 profiles × 3 workloads × 2 directions.
    assert_eq!(proxies.len(), 12, "{proxies:#?}");
    for hop in proxies {
        assert_eq!(hop["device"], "docker-proxy");
        let carries = hop["direction"] == "forward" || hop["packets"].as_u64().unwrap() > 0;
        assert!(
            carries && (hop["direction"] != "forward" || hop["bytes"].as_u64().unwrap() > 100),
            "{hop}"
        );
    }
}

fn unsupported_modes_are_in_the_results_with_their_reason(ended: &Ended, results: &Value) {
    let list = run(["lab", "list", "--json"]).expect(0).json();
    let mut looked_at = 0;
    for listed in list.as_array().unwrap().iter().filter(|mode| mode["supported"] == false) {
        let name = listed["mode"].as_str().unwrap();
        let records = results["modes"].as_array().unwrap();
        let Some(record) = records.iter().find(|record| record["mode"] == name) else { continue };
        looked_at += 1;
        assert_eq!(record["status"], "unsupported");
        assert_eq!(record["reason"], listed["reason"]);
        assert_eq!(record["remedy"], listed["remedy"]);
        for cell in cells(results, &[("mode", name)]) {
            assert_eq!(
                (&cell["status"], &cell["reason"]),
                (&"unsupported".into(), &listed["reason"])
            );
        }
        let reason = listed["reason"].as_str().unwrap();
        assert!(ended.stdout.contains(&format!("{name}: {reason}")), "{}", ended.stdout);
    }
    if looked_at == 0 {
        left_out(&"this machine can build every mode of the run");
    }
}

fn a_results_file_is_shown_as_the_run_showed_it(ended: &Ended, results: &Value, file: &Path) {
    let report = |format: &str| {
        let shown = run(["report", file.to_str().unwrap(), "--format", format]).expect(0);
        assert!(shown.stderr.is_empty(), "{shown:#?}");
        shown.stdout
    };
    assert_eq!(report("text"), ended.stdout);
    let shown = report("text");
    let wide = shown.lines().find(|line| line.chars().count() > 80);
    assert_eq!(wide, None, "wider than 80 columns");
    assert_eq!(&serde_json::from_str::<Value>(&report("json")).unwrap(), results);
    let csv = report("csv");
    assert_eq!(csv.lines().count(), 1 + results["cells"].as_array().unwrap().len());
    let markdown = report("markdown");
    assert!(
        markdown.lines().any(|line| line.starts_with('|') && line.contains("vxlan")),
        "{markdown}"
    );
    // A reader that closes the pipe is not a failure.
    let command = format!("{} report {} | true", super::launch::OVERLANE, file.display());
    super::launch::sh("bash", &["-o", "pipefail", "-c", &command]);
}

/// FRR 10 also needs its manager, and rejects a client that sends nothing.
#[test]
fn an_frr_that_is_first_in_the_path_fills_tables() {
    require!(need::root(), need::networks());
    let path = require!(need::newer_frr());
    let words = lab_run("evpn,bgp-frr", &["--workloads", "tcp_rr", "--offload", "full", "--json"]);
    let mut command = overlane(words);
    command.env("PATH", path);
    // Samples may be void, because other programs load this machine.
    let results = Running::start(command).wait().json();
    for mode in results["modes"].as_array().unwrap() {
        assert_eq!(mode["status"], "ok", "{mode:#}");
    }
}

#[test]
fn a_run_prints_the_format_asked_for() {
    require!(need::root());
    let with = |more: &[&str]| {
        let more = [&["--workloads", "tcp_rr", "--offload", "full", "--seed", "7"], more].concat();
        run(lab_run("host", &more)).expect(0)
    };
    let results = with(&["--json"]).json();
    schema::validate("results", &results);
    assert_eq!(results["plan"]["seed"], 7);
    assert_eq!(with(&["--format", "csv"]).stdout.lines().count(), 3, "a head, host and its A/A");
    assert!(with(&["--format", "markdown"]).stdout.contains("| host"));
    // A pipe cannot be replaced by a file, so it is written directly.
    let piped = with(&["--format", "csv", "--out", "/dev/stderr"]);
    // A warning about a busy machine precedes it.
    let json = &piped.stderr[piped.stderr.find("\n{").map_or(0, |at| at + 1)..];
    schema::validate("results", &serde_json::from_str(json).unwrap());
}

#[test]
fn a_goal_ends_the_run_or_its_limit_does() {
    require!(need::root());
    let with = |confidence: &str| {
        let more = ["--workloads", "tcp_rr", "--offload", "full", "--json", "--duration", "0.05"];
        let all = [
            &["lab", "run", "--modes", "host", "--disturbance", "100", "--max-blocks", "12"],
            &["--confidence", confidence][..],
            &more[..],
        ]
        .concat();
        run(all).expect(0).json()
    };
    let narrow = with("95,0.1");
    schema::validate("results", &narrow);
    assert_eq!(
        (&narrow["ended_by"], &narrow["plan"]["blocks_done"]),
        (&"max_blocks".into(), &12.into())
    );
    assert_eq!(narrow["plan"]["confidence"]["half_width"], 0.001);
    let looks = narrow["plan"]["confidence"]["looks"].as_array().unwrap();
    assert_eq!(looks.last().unwrap(), 12);
}

#[test]
fn a_setting_is_recorded_and_one_that_cannot_be_had_fails_the_run() {
    require!(need::root());
    let more = ["--workloads", "tcp_stream", "--offload", "full", "--no-probe", "--json"];
    let known = lab_run(
        "host",
        &[&more[..], &["--vary", "sysctl:net.ipv4.tcp_congestion_control=reno,cubic"]].concat(),
    );
    let results = run(known).json();
    let file = "/proc/sys/net/ipv4/tcp_congestion_control";
    let found = std::fs::read_to_string(file).unwrap();
    for cell in results["cells"].as_array().unwrap().iter().filter(|c| c["status"] == "ok") {
        let setting = cell["setting"].as_str().and_then(|setting| setting.split_once('='));
        let wanted = setting.map_or(found.trim(), |(_, value)| value);
        assert_eq!(cell["tcp"]["congestion_control"], wanted, "{cell:#}");
        assert!(cell["tcp"]["cwnd"].as_f64().unwrap() > 0.0, "{cell:#}");
    }
    assert!(results["testbeds"][0]["qdiscs"]["a/nic0"].is_string(), "{}", results["testbeds"]);
    assert!(results["testbeds"][0]["probe"].is_null(), "{}", results["testbeds"]);
    let unknown = lab_run(
        "host",
        &[&more[..], &["--vary", "sysctl:net.ipv4.tcp_congestion_control=nosuch"]].concat(),
    );
    let ended = run(unknown).expect(1);
    assert_eq!(ended.json()["complete"], true, "the mode as found was measured");
}

#[test]
fn durations_take_a_unit_and_a_mistyped_name_shows_the_nearest() {
    require!(need::root());
    let short = ["lab", "run", "--modes", "host", "--offload", "full", "--workloads", "tcp_rr"];
    let taken = ["--blocks", "1", "--duration", "50ms", "--warmup", "0.01s", "--json"];
    let results = run([&short[..], &taken].concat()).json();
    assert_eq!(results["plan"]["duration_s"], 0.05);
    for options in ["doctor --watch 20ms", "doctor --watch 0.02"] {
        run(options.split(' ').chain(["--netns", "/proc/self/ns/net"])).expect(0);
    }
    for (options, problem) in [
        ("doctor fix OV013 --confirm-within 2days", "expected 1s to 1day"),
        ("accel check --seconds 61m", "expected 0 to 1h"),
        ("accel check --seconds 500ms", "expected whole seconds"),
        ("measure serve --max-seconds 5x", "expected seconds, or a number and a unit"),
        ("lab run --modes vxlam", "did you mean \"vxlan\""),
        ("lab run --modes VXLAN", "did you mean \"vxlan\""),
        ("lab run --modes kubernets", "did you mean \"kubernetes\""),
        ("lab plans cni-swep", "did you mean \"cni-sweep\""),
        ("lab run --modes vxlam@guest", "did you mean \"vxlan@guest\""),
        ("lab run --plan cni-swep", "did you mean \"cni-sweep\""),
        ("lab up vxlam", "did you mean \"vxlan\""),
    ] {
        let ended = run(options.split(' ')).expect(2);
        assert!(ended.stderr.contains(problem), "{options}: {ended:#?}");
    }
}

/// A flow that gets nothing for a while is a result, not a failure.
#[test]
fn the_shares_of_many_flows_are_reported() {
    require!(need::root());
    let many = "lab run --modes host --offload full --workloads tcp_stream --flows 128 --blocks 2";
    let results = run(many.split(' ').chain(["--duration", "0.5", "--json"])).expect(0).json();
    let cells = results["cells"].as_array().unwrap();
    assert!(!cells.is_empty());
    for cell in cells {
        assert_eq!(cell["status"], "ok", "{cell:#}");
        let samples = cell["samples"].as_array().unwrap();
        let is_starved = |sample: &Value| {
            sample["invalid_reason"].as_str().is_some_and(|why| why.contains("nothing arrived"))
        };
        assert!(!samples.iter().any(is_starved), "{cell:#}");
        let shares = &cell["flow_shares"];
        let [least, most, jain] =
            ["least", "most", "jain"].map(|key| shares[key].as_f64().unwrap());
        assert!(least <= most && (0.0..=1.0).contains(&jain), "{shares}");
    }
}

/// A NAT translates the connections beside datagrams, too.
#[test]
fn latency_alone_and_beside_bulk_traffic_is_in_results_and_table() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("r.json");
    let more = ["--workloads", "tcp_rr,udp_rr", "--beside", "tcp_stream,tcp_maerts", "--offload"];
    let last = ["full", "--out", out.to_str().unwrap()];
    let ended = run(lab_run("nat", &[&more[..], &last].concat())).expect(0);
    let results: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    schema::validate("results", &results);
    let all = serde_json::json!(["tcp_stream", "tcp_maerts", "both"]);
    assert_eq!(results["plan"]["beside"], all);
    let cells = results["cells"].as_array().unwrap();
    // Baseline, A/A and nat, with two workloads, alone and beside three kinds of bulk traffic.
    assert_eq!(cells.len(), 3 * 2 * 4);
    for cell in cells.iter().filter(|cell| cell["status"] == "ok") {
        let rates = |way: &str| cell["beside_rates"][way].as_f64().is_some_and(|rate| rate > 0.0);
        let (forward, reverse) = (rates("forward_bits_per_s"), rates("reverse_bits_per_s"));
        let expected = match cell["beside"].as_str() {
            None => (false, false),
            Some("tcp_stream") => (true, false),
            Some("tcp_maerts") => (false, true),
            _ => (true, true),
        };
        assert_eq!((forward, reverse), expected, "{cell:#}");
        // CPU time includes more than the requests.
        assert!(cell["beside"].is_null() || cell["service_demand"].is_null(), "{cell:#}");
    }
    let table = "latency in µs alone and beside bulk traffic";
    assert!(ended.stdout.contains(table), "{ended:#?}");
}

/// A layer 2 mode supports both, a translating mode IPv4 only.
#[test]
fn ipv6_is_measured_alone_and_against_ipv4() {
    require!(need::root());
    let workload = ["--workloads", "tcp_rr,udp_stream", "--offload", "full", "--json"];
    let both = run(lab_run("vxlan,nat", &[&workload[..], &["-4", "-6"]].concat())).json();
    schema::validate("results", &both);
    assert_eq!(both["plan"]["vary"], serde_json::json!(["ip=6"]));
    let six = cell(&both, &[("mode", "vxlan"), ("workload", "tcp_rr"), ("setting", "ip=6")]);
    assert_eq!(six["status"], "ok", "{six:#}");
    let nat = cell(&both, &[("mode", "nat"), ("workload", "tcp_rr"), ("setting", "ip=6")]);
    assert_eq!(nat["status"], "unsupported", "{nat:#}");
    let texts = |results: &Value, of: &str| serde_json::to_string(&results[of]).unwrap();
    assert!(texts(&both, "warnings").contains("20 bytes longer"), "{both:#}");
    assert!(texts(&both, "modes").contains("the server is [fd08::2]:5301"), "{both:#}");

    let alone = run(lab_run("vxlan", &[&workload[..], &["-6"]].concat())).json();
    schema::validate("results", &alone);
    assert_eq!(alone["plan"]["ipv6"], true);
    assert!(alone["cells"].as_array().unwrap().iter().all(|cell| cell["status"] == "ok"));
    let ended = run(["lab", "run", "--modes", "bridge", "-6", "--vary", "ip=6"]).expect(2);
    assert!(ended.stderr.contains("not with --vary ip=6"), "{ended:#?}");
}

#[test]
fn packets_with_ecn_are_counted_and_other_tools_are_refused() {
    require!(need::root());
    let workloads = ["tcp_stream", "tcp_maerts", "tcp_crr", "udp_stream", "udp_rr"];
    let more = ["--workloads", &workloads.join(","), "--ecn", "--engine", "overlane,iperf3"];
    let ended = run(lab_run("vxlan", &[&more[..], &["--offload", "full", "--json"]].concat()));
    let results = ended.json();
    schema::validate("results", &results);
    assert_eq!(results["plan"]["ecn"], true);
    let ok = [("mode", "vxlan"), ("engine", "overlane"), ("status", "ok")];
    for workload in workloads {
        let cell = cell(&results, &[&ok[..], &[("workload", workload)]].concat());
        let samples = cell["samples"].as_array().unwrap();
        for sample in samples.iter().filter(|sample| sample["valid"] == true) {
            assert!(sample["ecn"]["arrived"].as_u64().unwrap() > 0, "{cell:#}");
            let cleared = if workload.starts_with("udp") { 0.into() } else { Value::Null };
            assert_eq!(sample["ecn"]["not_ect"], cleared, "{cell:#}");
        }
    }
    let tool = [("mode", "vxlan"), ("engine", "iperf3"), ("workload", "tcp_stream")];
    let tool = cell(&results, &tool);
    assert!(tool["reason"].as_str().unwrap().contains("--ecn"), "{tool:#}");
    // The clients' own setting takes precedence for the cells that vary it.
    let more = ["--workloads", "tcp_rr", "--ecn", "--vary", "sysctl:net.ipv4.tcp_ecn=2"];
    let ended = run(lab_run("bridge", &[&more[..], &["--offload", "full", "--json"]].concat()));
    let results: Value = serde_json::from_str(&ended.stdout).unwrap();
    let without = [("mode", "bridge"), ("setting", "sysctl:net.ipv4.tcp_ecn=2")];
    let without = cell(&results, &without);
    let reason = without["reason"].as_str().unwrap();
    assert!(reason.contains("has not negotiated ECN"), "{without:#}");
    // A program that reads the results does not show them: the reasons are on standard error, too.
    let line = ended.stderr.lines().find(|line| line.starts_with("not measured: "));
    assert!(line.is_some_and(|line| line.contains("has not negotiated ECN")), "{}", ended.stderr);
}

#[test]
fn datagrams_at_a_rate_have_loss_jitter_and_order() {
    require!(need::root());
    let more = ["--workloads", "udp_stream", "--sizes", "1400", "--rate", "2M,8M", "--offload"];
    let results = run(lab_run("vxlan", &[&more[..], &["full", "--json"]].concat())).json();
    schema::validate("results", &results);
    assert_eq!(results["plan"]["rates_bits_per_s"], serde_json::json!([2_000_000, 8_000_000]));
    let cells = results["cells"].as_array().unwrap();
    // Baseline, A/A and vxlan, at two rates.
    assert_eq!(cells.len(), 6);
    for cell in cells.iter().filter(|cell| cell["status"] == "ok") {
        let per_s = cell["offered"]["per_s"].as_f64().unwrap();
        assert!([179.0, 714.0].contains(&per_s), "{cell:#}");
        assert!(cell["arrivals"]["received"].as_u64().unwrap() > 0, "{cell:#}");
        assert!(cell["arrivals"]["jitter_us"].as_f64().unwrap() >= 0.0, "{cell:#}");
        assert_eq!(cell["unit"], "datagram/s");
    }
    let refused = [
        (vec!["--workloads", "tcp_rr", "--rate", "1M"], "requires the workload udp_stream"),
        (vec!["--rate", "fast"], "expected a rate in bit/s"),
        (vec!["--rate", "1M", "--gso"], "not with --gso"),
        (vec!["--rate", "1M", "--sizes", "8"], "messages need 16 bytes"),
        (vec!["--dscp", "64"], "expected 0 to 63"),
        (vec!["--vary", "rps=1,1"], "rps=1 is listed twice"),
    ];
    for (more, problem) in refused {
        let ended = run([&["lab", "run", "--modes", "host"], &more[..]].concat()).expect(2);
        assert!(ended.stderr.contains(problem), "{ended:#?}");
    }
}
