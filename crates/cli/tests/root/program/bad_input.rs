//! Bad input is a usage error: exit code 2 before anything is built. The message names the argument
//! and the allowed values.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::launch::{Ended, Running, entries, overlane};
use test_support::{need, require};

/// Expects a usage error at once. Building the smallest testbed and watching the idle machine would
/// exceed the time limit on an unloaded machine. The log shows that nothing was built.
#[track_caller]
fn refused(arguments: &[&str], named: &[&str]) -> Ended {
    let mut command = overlane(arguments);
    command.env("OVERLANE_LOG", "overlane=debug");
    let ended = Running::start(command).wait_at_most(Duration::from_secs(30)).expect(2);
    for text in named {
        assert!(ended.stderr.contains(text), "{arguments:?} does not say {text:?}: {ended:#?}");
    }
    assert!(ended.stdout.is_empty(), "{ended:#?}");
    for text in ["building", "measuring", "panicked"] {
        assert!(!ended.stderr.contains(text), "{ended:#?}");
    }
    ended
}

#[test]
fn options_that_lab_run_refuses() {
    let with = |arguments: &[&str], named: &[&str]| {
        let all: Vec<&str> = ["lab", "run"].iter().chain(arguments).copied().collect();
        refused(&all, named);
    };
    let modes = &["unknown mode \"nat2\"", "did you mean \"nat\"", "`overlane lab list` lists all"];
    with(&["--modes", "host,nat2"], &[&["--modes"], &modes[..]].concat());
    with(&["--baseline", "nat2"], &[&["--baseline"], &modes[..]].concat());
    with(&["--modes", ""], &["--modes", "unknown mode \"\""]);
    with(&["--modes", "all,vm,all"], &["--modes", "\"all\"", "listed twice"]);
    let workloads = ["--workloads", "tcp_stream, tcp_rr, tcp_crr, tcp_maerts, udp_stream, udp_rr"];
    with(&["--workloads", "tcp_steam"], &[&workloads[..], &["tcp_steam"]].concat());
    let offloads = ["--offload", "known: full, no-tunnel, none"];
    with(&["--offload", "some"], &[&offloads[..], &["\"some\""]].concat());

    for (argument, twice) in [
        ("--modes", "vxlan,host,vxlan"),
        ("--workloads", "tcp_rr,tcp_rr"),
        ("--offload", "none,full,none"),
        ("--mtu", "1500,1500"),
    ] {
        with(&[argument, twice], &[argument, "listed twice"]);
    }

    for size in ["0", "65508", "-1", "64,0", "4294967296", "1e3", ""] {
        with(&[&format!("--sizes={size}")], &["--sizes", "1 to 65507"]);
    }
    for (range, named) in [
        ("1:2", "FROM:TO:*FACTOR"),
        ("1:2:3:4", "FROM:TO:*FACTOR"),
        ("9:1:*2", "ends before it begins"),
        ("1:9:*1", "*FACTOR (2 or more)"),
        ("1:9:+0", "+STEP (1 or more)"),
        ("1:9:2", "*FACTOR (2 or more) or +STEP (1 or more)"),
        ("1:65508:*2", "1 to 65507"),
        ("1:60000:+1", "more than 256 sizes"),
    ] {
        with(&["--sizes", range], &["--sizes", named]);
    }

    for mtu in ["575", "65536", "0", "-1", "jumbo", "1500,", "99999999999"] {
        with(&[&format!("--mtu={mtu}")], &["--mtu", "576 to 65535"]);
    }
    for (argument, value, allowed) in [
        ("--duration", "0", "0.01 to 3600 seconds"),
        ("--duration", "nan", "0.01 to 3600 seconds"),
        ("--duration", "inf", "0.01 to 3600 seconds"),
        ("--warmup", "-1", "0 to 3600 seconds"),
        ("--blocks", "0", "1 to 10000"),
        ("--blocks", "10001", "1 to 10000"),
        ("--flows", "0", "1 to"),
        ("--flows", "100000", "1 to"),
        ("--flows", "1,x", "\"x\" is not 1 to"),
        ("--outstanding", "0", "1 to 1024"),
        ("--load", "101", "0 to 100 percent"),
        ("--load", "nan", "0 to 100 percent"),
        ("--socket-buffers", "0", "1024 to"),
        ("--engine", "ttcp", "known: overlane, iperf3"),
        ("--disturbance", "0", "more than 0, at most 100"),
        ("--disturbance", "101", "more than 0, at most 100"),
        ("--disturbance", "nan", "more than 0, at most 100"),
        ("--confidence", "95,0", "PERCENT 0.1 to 100"),
        ("--confidence", "101", "LEVEL 50 to 99.9"),
        ("--confidence", "95,5,5", "such as 95,5"),
        ("--confidence", "", "such as 95,5"),
        ("--seed", "x", "--seed"),
        ("--placement", "left", "split"),
        ("--format", "pdf", "markdown"),
        ("--faults", "1001", "0..=1000"),
        ("--faults", "-1", "--faults"),
    ] {
        // One word, because clap takes a value with a leading - for an option.
        with(&[&format!("{argument}={value}")], &[argument, allowed]);
    }
    with(&["--confidence", "95,5", "--max-blocks", "1"], &["--max-blocks", "2 to 10000"]);
}

#[test]
fn options_that_contradict_each_other() {
    let with = |arguments: &[&str], named: &[&str]| {
        let all: Vec<&str> = ["lab", "run"].iter().chain(arguments).copied().collect();
        refused(&all, named);
    };
    with(
        &["--blocks", "5", "--confidence", "95,5"],
        &["--blocks", "--confidence", "cannot be used with"],
    );
    with(&["--json", "--format", "csv"], &["--json", "--format", "cannot be used with"]);
    with(&["--gso", "--workloads", "tcp_rr"], &["--gso", "udp_stream"]);
    with(&["--load", "50", "--workloads", "tcp_stream"], &["--load", "tcp_rr or udp_rr"]);
    with(&["--outstanding", "4", "--workloads", "tcp_crr"], &["--outstanding", "tcp_rr"]);
    with(&["--load", "50", "--outstanding", "4"], &["--load", "--outstanding"]);
    with(&["--max-blocks", "9"], &["--max-blocks", "--confidence"]);
    let known = ["--faults", "those that do: bgp, ", "vrouter-ha"];
    with(&["--faults", "1", "--modes", "vxlan"], &[&known[..], &["none of the modes"]].concat());
    with(
        &["--faults", "1", "--modes", "vlan@guest"],
        &[&known[..], &["modes …@guest support no fault"]].concat(),
    );
    with(&["--faults", "1", "--plan", "tap-bridge"], &[&known[..], &["plan tap-bridge"]].concat());
    refused(&["report", "x", "--json", "--format", "csv"], &["--json", "--format"]);
    refused(&["lab", "down", "x", "--all"], &["--all", "cannot be used with"]);
    refused(&["lab", "down"], &["NAMES"]);
    refused(&["lab", "exec", "a"], &["COMMAND"]);
    refused(&["lab", "run", "vxlan"], &["vxlan"]);
    refused(&["--no-such"], &["--no-such"]);
    refused(&["lab", "fly"], &["fly"]);
}

#[test]
fn arguments_that_lab_up_exec_and_down_refuse() {
    refused(&["lab", "up", "nat2"], &["MODE", "unknown mode \"nat2\"", "did you mean \"nat\""]);
    refused(&["lab", "up", "host", "--offload", "some"], &["--offload", "known: full"]);
    refused(&["lab", "up", "host", "--mtu", "99999"], &["--mtu", "576 to 65535"]);
    for name in ["", "a/b", "a b", "a\nb", "ü", &"x".repeat(41)] {
        refused(
            &["lab", "up", "host", &format!("--name={name}")],
            &["--name", "1 to 40 characters of A-Z"],
        );
    }
    refused(&["lab", "exec", "no-such-host", "--", "true"], &["HOST", "no-such-host"]);
    refused(&["lab", "down", "no-such-testbed"], &["no-such-testbed", "overlane lab status"]);
    refused(&["man", "/no/such/directory"], &["DIRECTORY", "/no/such/directory"]);
    refused(&["completions", "csh"], &["bash", "zsh"]);
}

#[test]
fn places_that_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let with = |out: &Path, named: &str| {
        let out = out.to_str().unwrap();
        refused(&["lab", "run", "--modes", "host", "--out", out], &["--out", out, named]);
    };
    with(directory.path(), "it is a directory");
    with(&directory.path().join("none/r.json"), "No such file or directory");
    let file = directory.path().join("file");
    fs::write(&file, "kept").unwrap();
    with(&file.join("r.json"), "Not a directory");
    with(Path::new(""), "a value is required");
    // Root can write everywhere except on a read-only file system.
    with(Path::new("/proc/r.json"), "cannot be written");
    assert_eq!(entries(directory.path()), ["file"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
}

#[test]
fn a_directory_that_belongs_to_somebody_else() {
    require!(need::root(), need::tools(&["setpriv"]));
    let copy = super::unprivileged::Copy::new();
    let directory = tempfile::tempdir().unwrap();
    for name in ["new.json", "old.json"] {
        let out = directory.path().join(name);
        if name == "old.json" {
            fs::write(&out, "{}").unwrap();
        }
        let arguments = ["lab", "run", "--modes", "host", "--out", out.to_str().unwrap()];
        let ended = Running::start(copy.command(&arguments)).wait().expect(2);
        assert!(
            ended.stderr.contains("--out") && ended.stderr.contains("Permission denied"),
            "{ended:#?}"
        );
    }
    assert_eq!(entries(directory.path()), ["old.json"]);
}
