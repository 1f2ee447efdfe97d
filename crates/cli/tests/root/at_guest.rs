//! Modes `…@guest`: their results inside a stock Debian kernel, a run whose guest fails, and the
//! clean-up.

use crate::guests::kernel as guest_kernel;
use crate::guests::silent;
use crate::program::launch;
use crate::program::machine;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use guest_kernel::{broken, kernel};
use launch::{Running, eventually, overlane};
use machine::{marked, nothing_left};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use silent::is_silent;
use test_support::{need, require};

/// Time limit of a run in software emulation on a busy machine.
const LIMIT: Duration = Duration::from_secs(500);

/// A run of these modes with one profile and the fewest samples.
fn run(kernel: &Path, modes: &str, more: &[&str]) -> Running {
    Running::start(command(kernel, modes, more))
}

fn command(kernel: &Path, modes: &str, more: &[&str]) -> Command {
    let mut command = overlane(["lab", "run", "--modes", modes, "--json", "--offload", "full"]);
    command.arg("--guest-kernel").arg(kernel).args(["--duration", "0.3"]).args(more);
    command.env("OVERLANE_LOG", "overlane=debug");
    command
}

/// Results of a run of these modes, each of which was measured.
fn measured(kernel: &Path, modes: &str, workload: &str) -> Value {
    // 2 blocks of the modes, and their A/A.
    all_measured(run(kernel, modes, &["--workloads", workload, "--blocks", "2"]), modes)
}

fn all_measured(running: Running, modes: &str) -> Value {
    let mark = running.mark().to_owned();
    let ended = running.wait_at_most(LIMIT).expect(0);
    let results = ended.json();
    assert_eq!(results["plan"]["baseline"], "host@guest");
    assert_eq!(results["complete"], true);
    for mode in modes.split(',') {
        let record = record(&results, mode);
        assert_eq!(record["status"], "ok", "{record:#}\n{}", ended.stderr);
        assert!(record["path"].as_str().unwrap().contains("inside one guest"), "{record:#}");
    }
    nothing_left(&mark);
    results
}

fn record<'a>(results: &'a Value, mode: &str) -> &'a Value {
    let records = results["modes"].as_array().unwrap();
    records.iter().find(|record| record["mode"] == mode).unwrap()
}

/// The samples of a mode, of which there must be some.
fn samples<'a>(results: &'a Value, mode: &str) -> Vec<&'a Value> {
    let cells = results["cells"].as_array().unwrap().iter().filter(|cell| cell["mode"] == mode);
    let samples: Vec<_> = cells.flat_map(|cell| cell["samples"].as_array().unwrap()).collect();
    assert!(!samples.is_empty(), "{mode}");
    samples
}

/// In each sample that sent anything, the path was proved, and this device carried packets in both
/// hosts; there is at least one such sample.
fn goes_by(results: &Value, mode: &str, device: &str) {
    let samples = samples(results, mode).into_iter();
    let sent: Vec<_> = samples.filter(|sample| !is_silent(sample)).collect();
    assert!(!sent.is_empty(), "{mode}: {results:#}");
    for sample in sent {
        assert_eq!(sample["path_proved"], true, "{mode}: {sample:#}");
        let hops = sample["hops"].as_array().unwrap();
        for host in ["a", "b"] {
            let carried = |hop: &&Value| {
                hop["device"] == device
                    && hop["host"] == host
                    && hop["packets"].as_u64().unwrap() > 0
            };
            assert!(hops.iter().any(|hop| carried(&hop)), "{mode}: {host}/{device}: {hops:#?}");
        }
    }
}

#[test]
fn modes_that_this_kernel_lacks_are_measured_in_one_guest_with_every_hop_proved() {
    let kernel = require!(kernel());
    require!(need::tool("ovs-vswitchd"));
    let modes = "vlan@guest,ipvlan@guest,vxlan@guest,geneve@guest,ovs-vlan@guest,ovs-vxlan@guest";
    let results = measured(&kernel, modes, "tcp_stream");
    let warned = results["warnings"][0].as_str().unwrap();
    assert!(warned.contains("ratios only between modes …@guest"), "{warned}");
    assert!(warned.starts_with("measured inside one guest: "), "{warned}");
    // The results name the guest as the machine.
    let version = kernel.file_name().unwrap().to_string_lossy();
    let version = version.strip_prefix("vmlinuz-").unwrap();
    assert_eq!(results["machine"]["kernel"], version);
    for (mode, device) in [
        ("host@guest", "nic0"),
        ("vlan@guest", "nic0.100"),
        ("ipvlan@guest", "nic0"),
        ("vxlan@guest", "vxlan0"),
        ("geneve@guest", "geneve0"),
        ("ovs-vlan@guest", "nic0"),
        // The device with which the kernel's datapath tunnels; the user-space datapath has none.
        ("ovs-vxlan@guest", "vxlan_sys_4789"),
    ] {
        let notes = record(&results, mode)["notes"].to_string();
        assert_eq!(notes.contains("measured inside one guest"), mode == "host@guest", "{notes}");
        assert_eq!(notes.contains("kernel datapath"), mode.starts_with("ovs"), "{notes}");
        goes_by(&results, mode, device);
    }
}

/// IP in IP by BIRD, routes of a VRF by FRR, and netem.
#[test]
fn daemons_of_this_machine_write_routes_in_a_guest() {
    let kernel = require!(kernel());
    require!(need::tools(&["bird", "vtysh"]));
    let results = measured(&kernel, "bgp-ipip@guest,evpn-l3@guest,netem@guest", "tcp_rr");
    goes_by(&results, "bgp-ipip@guest", "tunl0");
    goes_by(&results, "evpn-l3@guest", "br0");
    goes_by(&results, "evpn-l3@guest", "vxlan0");
    goes_by(&results, "netem@guest", "nic0");
    // A transaction takes at least a millisecond each way.
    for sample in samples(&results, "netem@guest") {
        let median = sample["latency_us"]["p50"].as_f64().unwrap();
        assert!(median >= 2000.0, "{sample:#}");
    }
}

/// One device for all VNIs, with an FRR that is first in `PATH`: in each sample, a VLAN's frames
/// crossed it. Debian 12's own FRR is refused with its version.
#[test]
fn a_vxlan_device_for_many_vnis_is_filled_by_a_newer_frr() {
    const MODE: &str = "evpn-svd@guest";
    let kernel = require!(kernel());
    let path = require!(need::newer_frr());
    let more = ["--workloads", "tcp_rr", "--blocks", "2"];
    // The other mode gets its VRF's VNI from mgmtd.
    let modes = format!("{MODE},evpn-l3@guest");
    let mut newer = command(&kernel, &modes, &more);
    newer.env("PATH", path);
    let results = all_measured(Running::start(newer), &modes);
    goes_by(&results, MODE, "vxlan0");
    goes_by(&results, "evpn-l3@guest", "vxlan0");

    let old = tempfile::tempdir().unwrap();
    for program in ["bgpd", "zebra"] {
        let file = old.path().join(program);
        test_support::install(b"#!/bin/sh\necho bgpd version 8.4.4\n", &file);
    }
    let mut older = command(&kernel, MODE, &more);
    older.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", old.path().display()));
    let ended = Running::start(older).wait_at_most(LIMIT);
    let results = ended.json();
    let refused = record(&results, MODE);
    assert_eq!(refused["status"], "unsupported", "{refused:#}");
    let reason = refused["reason"].as_str().unwrap();
    assert!(reason.ends_with("bgpd: \"bgpd version 8.4.4\", but 8.5 is required"), "{reason}");
}

#[test]
fn wrong_usage_is_refused_before_a_guest_is_booted() {
    for (words, wanted) in [
        ("--modes host@guest,vxlan", "\"vxlan\" together with mode host@guest: modes …@guest"),
        ("--baseline host@guest", "\"all\" together with --baseline host@guest: modes …@guest"),
        ("--modes host@guest --baseline vxlan", "--baseline: unknown mode \"vxlan\""),
        ("--modes nat@guest", "unknown mode \"nat@guest\" in a guest; did you mean \"vlan@guest\""),
        ("--modes guest --workloads tcp", "--workloads"),
        ("--modes guest --guest-kernel /proc/self/exe", "is no kernel image"),
        ("--modes guest --plan ./x.toml", "./x.toml"),
    ] {
        let words = ["lab", "run"].into_iter().chain(words.split(' '));
        let ended = launch::run(words).expect(2);
        assert!(ended.stderr.contains(wanted), "{wanted}: {}", ended.stderr);
    }
    let directory = tempfile::tempdir().unwrap();
    let plan = directory.path().join("plan.toml");
    std::fs::write(&plan, "modes = [\"guest\"]\n").unwrap();
    let words = ["lab", "run", "--plan", plan.to_str().unwrap()];
    let ended = launch::run(words).expect(2);
    assert!(ended.stderr.contains("modes …@guest are not allowed in a plan"), "{}", ended.stderr);
    let ended = launch::run(["lab", "up", "vlan@guest"]).expect(2);
    assert!(ended.stderr.contains("it runs inside a guest"), "{}", ended.stderr);
}

/// Without its package's modules, a kernel lacks them, and the error names them.
#[test]
fn a_module_that_the_kernel_lacks_is_one_unsupported_mode_by_name() {
    let kernel = require!(kernel());
    let directory = tempfile::tempdir().unwrap();
    let (boot, root) = (directory.path().join("boot"), kernel.parent().unwrap().parent().unwrap());
    std::fs::create_dir(&boot).unwrap();
    let image = boot.join(kernel.file_name().unwrap());
    std::os::unix::fs::symlink(&kernel, &image).unwrap();
    let version = kernel.file_name().unwrap().to_string_lossy().replace("vmlinuz-", "");
    let (from, to) =
        (Path::new("lib/modules").join(&version), directory.path().join("lib/modules"));
    std::fs::create_dir_all(to.join(&version)).unwrap();
    std::os::unix::fs::symlink(root.join(&from).join("kernel"), to.join(&version).join("kernel"))
        .unwrap();
    for name in ["modules.dep", "modules.builtin"] {
        let text = std::fs::read_to_string(root.join(&from).join(name)).unwrap();
        let kept: Vec<&str> = text.lines().filter(|line| !line.contains("/8021q.ko")).collect();
        std::fs::write(to.join(&version).join(name), kept.join("\n")).unwrap();
    }
    let running = run(&image, "vlan@guest", &["--workloads", "tcp_rr", "--blocks", "2"]);
    let ended = running.wait_at_most(LIMIT);
    let results = ended.json();
    let records = results["modes"].as_array().unwrap();
    assert_eq!(records[0]["status"], "ok", "{}", records[0]);
    assert_eq!(
        (&records[1]["mode"], &records[1]["status"]),
        (&"vlan@guest".into(), &"unsupported".into())
    );
    let reason = records[1]["reason"].as_str().unwrap();
    assert!(reason.contains(&format!("kernel {version}")) && reason.contains("no module 8021q"));
    let cells = results["cells"].as_array().unwrap();
    assert!(
        cells.iter().any(|cell| cell["mode"] == "vlan@guest" && cell["status"] == "unsupported")
    );
}

#[test]
fn a_guest_that_does_not_come_up_ends_the_run_with_its_reason() {
    let kernel = require!(kernel());
    let directory = tempfile::tempdir().unwrap();
    let image = broken(&kernel, directory.path());
    let running = run(&image, "host@guest", &["--workloads", "tcp_rr", "--blocks", "2"]);
    let mark = running.mark().to_owned();
    let ended = running.wait_at_most(LIMIT).expect(1);
    assert!(ended.stderr.contains("error: guest guest"), "{}", ended.stderr);
    nothing_left(&mark);
}

/// The process ID of QEMU, once the guest measures.
fn measuring(running: &mut Running) -> i32 {
    let mark = running.mark().to_owned();
    eventually("a guest that measures", || {
        assert!(running.runs(), "{}", running.stderr_so_far());
        let found = marked(&mark).into_iter().find(|found| found.name.starts_with("qemu-system"));
        let said = running.stderr_so_far();
        match found.filter(|_| said.contains("in the guest: sampling")) {
            Some(qemu) => Ok(qemu.pid),
            None => Err(said),
        }
    })
}

#[test]
fn a_killed_guest_ends_the_run_with_its_reason_and_a_killed_run_its_guest() {
    let kernel = require!(kernel());
    let more = ["--workloads", "tcp_rr", "--blocks", "400"];
    let mut running = run(&kernel, "host@guest", &more);
    let mark = running.mark().to_owned();
    kill(Pid::from_raw(measuring(&mut running)), Signal::SIGKILL).unwrap();
    let ended = running.wait_at_most(LIMIT).expect(1);
    assert!(ended.stderr.contains("error: guest guest"), "{}", ended.stderr);
    nothing_left(&mark);

    let mut running = run(&kernel, "host@guest", &more);
    let mark = running.mark().to_owned();
    measuring(&mut running);
    running.signal(Signal::SIGKILL);
    drop(running);
    nothing_left(&mark);
}

/// It waits most of the time, so it needs no turn.
#[test]
fn a_guest_that_stands_still_is_said_and_the_run_begun_again_in_another() {
    let kernel = require!(kernel());
    let mut running = run(&kernel, "host@guest", &["--workloads", "tcp_rr", "--blocks", "8"]);
    let mark = running.mark().to_owned();
    kill(Pid::from_raw(measuring(&mut running)), Signal::SIGSTOP).unwrap();
    let ended = running.wait_at_most(LIMIT).expect(0);
    let wanted = "no message for 90s; the run was restarted in another guest";
    assert!(ended.stderr.contains(wanted), "{}", ended.stderr);
    let results = ended.json();
    assert_eq!((&results["complete"], &results["plan"]["blocks_done"]), (&true.into(), &8.into()));
    let warnings = results["warnings"].as_array().unwrap();
    let is_wanted = |warning: &Value| warning.as_str().unwrap().ends_with(wanted);
    // The next guest may stall by itself: each is reported once.
    let count = warnings.iter().filter(|warning| is_wanted(warning)).count();
    assert_eq!(count, ended.stderr.matches(wanted).count(), "{warnings:#?}");
    nothing_left(&mark);
}

#[test]
fn a_run_that_is_interrupted_gives_what_there_is() {
    let kernel = require!(kernel());
    let more = ["--workloads", "tcp_rr", "--blocks", "400"];
    let mut running = run(&kernel, "host@guest", &more);
    let mark = running.mark().to_owned();
    measuring(&mut running);
    running.signal(Signal::SIGINT);
    let ended = running.wait_at_most(LIMIT).expect(130);
    let results = ended.json();
    assert_eq!(
        (&results["complete"], &results["ended_by"]),
        (&false.into(), &"interrupted".into())
    );
    assert_eq!(results["modes"][0]["mode"], "host@guest");
    nothing_left(&mark);
}

/// The gate for a kernel patch: both kernels are measured, and a kernel that does not boot fails it.
#[test]
fn two_kernels_are_measured_and_compared_by_one_command() {
    let kernel = require!(kernel());
    let directory = tempfile::tempdir().unwrap();
    let keep = directory.path().join("results");
    let gate = |new: &Path| {
        let mut command = overlane(["lab", "kernels"]);
        command.arg(&kernel).arg(new).args(["--fail-on", "100%", "--keep"]).arg(&keep);
        let few = ["--offload", "full", "--workloads", "tcp_rr", "--duration", "0.3"];
        command.arg("--").args(few).args(["--blocks", "2"]);
        Running::start(command)
    };
    let running = gate(&kernel);
    let mark = running.mark().to_owned();
    let ended = running.wait_at_most(LIMIT).expect(0);
    let words = ended.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.ends_with("No proven regression exceeds 100%."), "{}", ended.stdout);
    nothing_left(&mark);
    for name in ["old.json", "new.json"] {
        let results = std::fs::read_to_string(keep.join(name)).unwrap();
        let results: Value = serde_json::from_str(&results).unwrap();
        for mode in ["host@guest", "vxlan@guest"] {
            assert_eq!(record(&results, mode)["status"], "ok", "{name}: {results:#}");
        }
    }
    let ended = gate(&broken(&kernel, directory.path())).wait_at_most(LIMIT).expect(1);
    assert!(ended.stderr.contains("error: guest guest"), "{}", ended.stderr);
    let ended = gate(Path::new("/proc/self/exe")).wait().expect(2);
    assert!(ended.stderr.contains("NEW: ") && ended.stdout.is_empty(), "{ended:#?}");
}
