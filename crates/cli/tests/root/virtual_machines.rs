//! Modes whose tenants are virtual machines: their results, guests that fail, and the clean-up of
//! QEMU. The guests boot a stock Debian kernel, in software emulation where KVM does not work.

use crate::guests::kernel as guest_kernel;
use crate::guests::silent;
use crate::program::launch;
use crate::program::machine;

use std::path::Path;
use std::time::Duration;

use guest_kernel::{broken, kernel};
use launch::{Ended, Running, eventually, overlane};
use machine::{marked, nothing_left};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use silent::is_silent;
use test_support::{need, require};

/// Time limit of a run with guests in software emulation on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);

/// A run of these modes with one profile and the fewest samples.
fn run(kernel: &Path, modes: &str, workloads: &str, more: &[&str]) -> Running {
    let mut command = overlane(["lab", "run", "--modes", modes, "--guest-kernel"]);
    command.arg(kernel);
    command.args(["--offload", "full", "--workloads", workloads, "--json"]);
    command.args(["--duration", "0.3"]).args(more);
    command.env("OVERLANE_LOG", "info");
    Running::start(command)
}

/// Waits for such a run, which leaves nothing behind.
fn measured(kernel: &Path, modes: &str, workloads: &str, more: &[&str]) -> Ended {
    let running = run(kernel, modes, workloads, more);
    let mark = running.mark().to_owned();
    let ended = running.wait_at_most(LIMIT);
    nothing_left(&mark);
    ended
}

fn cells<'a>(results: &'a Value, mode: &str) -> Vec<&'a Value> {
    let cells = results["cells"].as_array().unwrap();
    let of = |cell: &&Value| cell["mode"] == mode && cell["role"] != "control";
    cells.iter().filter(of).collect()
}

/// Asserts that every cell of these modes has a figure, and that the path of every sample is proved
/// from one guest's NIC to the other's, except samples in which nothing was sent.
fn proved(ended: &Ended, modes: &[&str], devices: &[&str]) {
    let results = ended.json();
    for mode in modes {
        let record = results["modes"].as_array().unwrap().iter().find(|m| m["mode"] == *mode);
        let record = record.unwrap();
        assert_eq!(record["status"], "ok", "{record:#}\n{}", ended.stderr);
        // The guests themselves have probed the path between them.
        let testbeds = results["testbeds"].as_array().unwrap().iter();
        let probes: Vec<&Value> =
            testbeds.filter(|one| one["mode"] == *mode).map(|one| &one["probe"]).collect();
        assert!(!probes.is_empty(), "{mode}: {:#}", results["testbeds"]);
        for probe in probes {
            assert!(probe["classes"].as_u64() > Some(20), "{mode}: {probe:#}");
            assert_eq!(probe["damage"].as_array().map(Vec::len), Some(0), "{mode}: {probe:#}");
        }
        let said = record["notes"].to_string();
        let runs = ["TCG: compare vm modes only", "guests run under KVM"];
        assert!(runs.iter().any(|words| said.contains(words)), "{said}");
        for cell in cells(&results, mode).into_iter().filter(|c| c["status"] != "unsupported") {
            let samples = cell["samples"].as_array().unwrap();
            let sent: Vec<_> = samples.iter().filter(|sample| !is_silent(sample)).collect();
            assert!(!sent.is_empty(), "{mode}: {cell:#}");
            for sample in sent {
                assert_eq!(sample["path_proved"], true, "{mode}: {sample:#}");
                assert!(sample["value"].as_f64().unwrap() > 0.0);
                let guests = sample["guests"].as_array().unwrap();
                let named: Vec<_> = guests.iter().map(|g| g["name"].as_str().unwrap()).collect();
                assert_eq!(named, ["tenant-a", "tenant-b"], "{mode}: {sample:#}");
                for guest in guests {
                    let cpu = guest["cpu"].as_object().unwrap();
                    let all: f64 = cpu.values().map(|seconds| seconds.as_f64().unwrap()).sum();
                    assert!(all > 0.0 && guest["seconds"].as_f64().unwrap() > 0.0, "{guest}");
                }
                let hops = sample["hops"].as_array().unwrap();
                for device in ["tenant-a/eth0", "tenant-b/eth0"].iter().chain(devices) {
                    let carried = hops.iter().any(|hop| {
                        let name = format!(
                            "{}/{}",
                            hop["host"].as_str().unwrap(),
                            hop["device"].as_str().unwrap()
                        );
                        name == *device && hop["packets"].as_u64().unwrap() > 0
                    });
                    assert!(carried, "{mode}: {device}: {hops:#?}");
                }
            }
        }
    }
}

#[test]
fn guests_on_a_bridge_are_measured_with_every_hop_proved() {
    let kernel = require!(kernel());
    let ended =
        measured(&kernel, "vm-bridge", "tcp_rr", &["--baseline", "vm-bridge", "--blocks", "2"]);
    proved(&ended, &["vm-bridge"], &["a/tap0", "a/nic0", "b/nic0", "b/tap0"]);
}

#[test]
fn guests_are_compared_with_guests_that_no_bridge_joins() {
    let kernel = require!(kernel());
    let ended = measured(
        &kernel,
        "vm-bridge",
        "tcp_rr,udp_stream",
        &["--baseline", "vm-host", "--blocks", "2"],
    );
    proved(&ended, &["vm-host", "vm-bridge"], &["a/tap0", "a/nic0", "b/nic0", "b/tap0"]);
}

#[test]
fn guests_reach_each_other_over_the_kernel_s_tunnel() {
    let kernel = require!(kernel());
    let ended =
        measured(&kernel, "vm-vxlan", "tcp_stream", &["--baseline", "vm-vxlan", "--blocks", "2"]);
    proved(&ended, &["vm-vxlan"], &["a/tap0", "a/vxlan0", "a/nic0", "b/vxlan0", "b/tap0"]);
}

/// Frames cross no device of the hosts between the guests, except the wire if there is one.
#[test]
fn guests_reach_each_other_by_vhost_user() {
    let kernel = require!(kernel());
    let ended = measured(
        &kernel,
        "vm-tapbridge-vhost-user,vm-vtep-vhost-user",
        "tcp_stream",
        &["--baseline", "vm-tapbridge-vhost-user", "--blocks", "2", "--vary", "vm:queues=2"],
    );
    proved(&ended, &["vm-tapbridge-vhost-user"], &[]);
    proved(&ended, &["vm-vtep-vhost-user"], &["a/nic0", "b/nic0"]);
    let results = ended.json();
    for testbed in results["testbeds"].as_array().unwrap() {
        let queues = if testbed["setting"] == "vm:queues=2" { 2 } else { 1 };
        for guest in testbed["guests"].as_array().unwrap() {
            assert_eq!(guest["queues"], queues, "{testbed:#}");
        }
    }
}

#[test]
fn guests_reach_each_other_over_open_vswitch_s_tunnel() {
    let kernel = require!(kernel());
    require!(need::tool("ovs-vswitchd"));
    let ended = measured(
        &kernel,
        "vm-ovs-vxlan",
        "tcp_stream,udp_rr",
        &["--baseline", "vm-ovs-vxlan", "--blocks", "2"],
    );
    proved(&ended, &["vm-ovs-vxlan"], &["a/tap0", "a/nic0", "b/nic0", "b/tap0"]);
}

#[test]
fn guests_are_started_as_varied_and_what_is_in_force_is_read_back() {
    let kernel = require!(kernel());
    let settings = ["vm:queues=2", "vm:mrg_rxbuf=off+tap:txqueuelen=50+tap:sndbuf=8192"];
    let mut more = vec!["--baseline", "vm-host", "--blocks", "2", "--vary", "vm:vhost=on"];
    more.extend(settings.iter().flat_map(|setting| ["--vary", setting]));
    // A setting of a host, taken back between samples: both kinds work together.
    more.extend(["--vary", "txqueuelen@tap0=20"]);
    let ended = measured(&kernel, "vm-host", "tcp_rr", &more);
    proved(&ended, &["vm-host"], &["a/tap0", "a/nic0", "b/nic0", "b/tap0"]);
    let results = ended.json();
    let in_force = |setting: Option<&str>| {
        let testbeds = results["testbeds"].as_array().unwrap().iter();
        let mut of = testbeds.filter(|testbed| testbed["setting"].as_str() == setting);
        let testbed = of.next().unwrap_or_else(|| panic!("{setting:?}: no testbed"));
        let guests = testbed["guests"].as_array().unwrap();
        assert_eq!(guests.len(), 2);
        ["cpus", "queues", "mrg_rxbuf"]
            .map(|key| &guests[0][key])
            .into_iter()
            .chain(["queues", "txqueuelen", "sndbuf", "vhost"].map(|key| &guests[1]["tap"][key]))
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(in_force(None), "1 1 true 1 1000 2147483647 false");
    assert_eq!(in_force(Some(settings[0])), "2 2 true 2 1000 2147483647 false");
    assert_eq!(in_force(Some(settings[1])), "1 1 false 1 50 8192 false");
    // Without vhost-net that value alone is refused.
    let cells = cells(&results, "vm-host");
    let of = |setting: &str| cells.iter().find(|cell| cell["setting"] == setting).unwrap();
    for setting in settings {
        assert_eq!(of(setting)["status"], "ok", "{:#}", of(setting));
    }
    assert_eq!(of("txqueuelen@tap0=20")["status"], "ok");
    match std::fs::File::options().read(true).write(true).open("/dev/vhost-net") {
        Ok(_) => assert!(in_force(Some("vm:vhost=on")).ends_with("true")),
        Err(error) => {
            assert_eq!(of("vm:vhost=on")["status"], "unsupported");
            let reason = of("vm:vhost=on")["reason"].as_str().unwrap();
            assert!(reason.contains(&format!("/dev/vhost-net: {error}")), "{reason}");
        }
    }
}

#[test]
fn a_setting_of_guests_that_is_none_is_refused_before_anything_starts() {
    for (setting, wanted) in [
        ("vm:queue=2", "allowed: vm:cpus=N"),
        ("vm:queues=0", "expected a number from 1 to 64"),
        ("vm:vhost=maybe", "expected on or off"),
        ("ring=50+vm:queues=2", "changed while they run"),
    ] {
        let ended = launch::run(["lab", "run", "--modes", "vm-host", "--vary", setting]).expect(2);
        assert!(ended.stderr.contains(wanted), "{setting}: {}", ended.stderr);
    }
}

#[test]
fn a_file_that_is_no_kernel_is_refused_before_anything_starts() {
    for (file, wanted) in [
        ("/proc/self/exe", "is no kernel image: expected an x86 bzImage"),
        ("/no/such/kernel", "No such file"),
        ("/dev/zero", "not a regular file"),
    ] {
        let ended = launch::run(["lab", "run", "--modes", "vm-host", "--guest-kernel", file]);
        let ended = ended.expect(2);
        assert!(ended.stderr.contains("--guest-kernel"), "{}", ended.stderr);
        assert!(ended.stderr.contains(wanted), "{}", ended.stderr);
    }
    let ended = launch::run(["lab", "up", "vm-host"]).expect(2);
    assert!(ended.stderr.contains("its guests accept no commands"), "{}", ended.stderr);
    let ended = launch::run(["lab", "guest", "tenant-a"]).expect(2);
    assert!(ended.stderr.contains("first process of a guest"), "{}", ended.stderr);
}

#[test]
fn a_guest_that_does_not_come_up_is_one_failed_mode_and_others_go_on() {
    let kernel = require!(kernel());
    let directory = tempfile::tempdir().unwrap();
    let broken = broken(&kernel, directory.path());
    let ended = measured(&broken, "host,vm-bridge", "tcp_rr", &["--blocks", "2"]).expect(1);
    let results = ended.json();
    let status = |mode: &str| {
        let modes = results["modes"].as_array().unwrap();
        modes.iter().find(|record| record["mode"] == mode).unwrap().clone()
    };
    assert_eq!(status("host")["status"], "ok");
    assert!(cells(&results, "host").iter().all(|cell| cell["samples"][0]["path_proved"] == true));
    let failed = status("vm-bridge");
    assert_eq!(failed["status"], "failed", "{failed:#}");
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("guest tenant-a"), "{reason}");
}

/// Process ids of QEMU that a run has started.
fn qemus(mark: &str) -> Vec<i32> {
    let found = marked(mark).into_iter().filter(|found| found.name.starts_with("qemu-system"));
    found.map(|found| found.pid).collect()
}

#[test]
fn a_killed_run_leaves_no_guest() {
    let kernel = require!(kernel());
    let mut running = run(&kernel, "vm-bridge", "tcp_rr", &["--baseline", "vm-bridge"]);
    let mark = running.mark().to_owned();
    eventually("two guests", || {
        assert!(running.runs(), "{}", running.stderr_so_far());
        let found = qemus(&mark);
        if found.len() == 2 { Ok(()) } else { Err(format!("{found:?}")) }
    });
    running.signal(Signal::SIGKILL);
    drop(running);
    nothing_left(&mark);
}

#[test]
fn a_killed_guest_is_one_failed_mode_and_others_go_on() {
    let kernel = require!(kernel());
    let more = ["--blocks", "12"];
    let mut running = run(&kernel, "host,vm-bridge", "tcp_rr", &more);
    let mark = running.mark().to_owned();
    // Guests exist before the first sample; the kill comes at a random moment.
    let guests = eventually("two guests", || {
        assert!(running.runs(), "{}", running.stderr_so_far());
        let found = qemus(&mark);
        if found.len() == 2 { Ok(found) } else { Err(format!("{found:?}")) }
    });
    kill(Pid::from_raw(guests[1]), Signal::SIGKILL).unwrap();
    let ended = running.wait_at_most(LIMIT).expect(1);
    let results = ended.json();
    let modes = results["modes"].as_array().unwrap();
    let failed = modes.iter().find(|record| record["mode"] == "vm-bridge").unwrap();
    assert_eq!(failed["status"], "failed", "{failed:#}");
    assert!(cells(&results, "host").iter().all(|cell| cell["samples"][0]["path_proved"] == true));
    nothing_left(&mark);
}
