//! The fast path for devices in a sandbox, as in Docker Swarm: with the privileges of the units,
//! and killed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lab::Network;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sys::tcx::{self, Hook};
use test_support::program::until;
use test_support::{need, require};
use testbed::{Host, poll};

use super::foreground::{Foreground, LIMIT, OVERLANE};
use super::{Connection, Served, network, run, text};

const DEVICE: &str = "vxlan0";
const PORT: &str = "veth0";
const BRIDGE: &str = "br0";

/// Moves all devices but the NIC from a host into a namespace of its own.
pub fn sandbox(network: &Network, host: &str) -> Host {
    let host = network.host(host).unwrap().netlink();
    let sandbox = Host::new("sandbox").unwrap();
    let mtu = host.link(DEVICE).unwrap().mtu;
    host.delete_link(BRIDGE).unwrap();
    for device in [DEVICE, PORT] {
        host.set_netns(device, sandbox.netns()).unwrap();
        sandbox.netlink().set_up(device).unwrap();
    }
    sandbox.bridge(BRIDGE, mtu, &[DEVICE, PORT]).unwrap();
    sandbox
}

/// Name of a sandbox's device.
fn device(sandbox: &Host) -> String {
    format!("net:[{}]/{DEVICE}", sandbox.netns().inode())
}

pub fn links(host: &Host) -> BTreeSet<String> {
    host.netlink().links().unwrap().into_iter().map(|link| link.name).collect()
}

/// Programs at all devices of a host. A device that is removed meanwhile, such as the pair into a
/// sandbox, has none.
fn programs(host: &Host) -> u32 {
    let links = host.netlink().links().unwrap();
    let at = |index, hook| match tcx::count(index, hook) {
        Err(error) if error.errno == Errno::ENODEV => 0,
        count => count.unwrap(),
    };
    let all = || {
        links.iter().map(|link| at(link.index, Hook::Ingress) + at(link.index, Hook::Egress)).sum()
    };
    host.netns().run(all).unwrap()
}

/// Waits for the programs of tunnel and pair: the pair may be created a turn later than the tunnel.
fn until_attached(hosts: &[&Host]) {
    poll("programs in each host", LIMIT, || {
        let counts: Vec<u32> = hosts.iter().map(|host| programs(host)).collect();
        let attached = counts.iter().all(|count| *count >= 2);
        Ok(attached.then_some(()).ok_or_else(|| format!("{counts:?}")))
    })
    .unwrap();
}

#[test]
fn a_kill_beside_a_sandbox_leaves_an_unused_pair_that_off_and_the_next_start_remove() {
    let network = require!(network());
    let sandboxes = ["a", "b"].map(|host| sandbox(&network, host));
    let served = Served::of(&network, "b");
    let host = network.host("b").unwrap();
    let mut connection = Connection::new(&network);
    connection.exchange();
    let before = [links(host), links(&sandboxes[1])];
    let pair = format!("ovl{}", sandboxes[1].netns().inode());
    let with_pair = before.clone().map(|mut links| {
        links.insert(pair.clone());
        links
    });

    for removed_by_off in [true, false] {
        let (mut killed, _) = run(&served, "--all");
        connection.until_taken(&served);
        until_attached(&[host, &sandboxes[1]]);

        // During traffic that must not be affected.
        let (done, exchanged) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    connection.exchange();
                    exchanged.fetch_add(1, Ordering::Relaxed);
                }
            });
            let more = |what: &str| {
                let before = exchanged.load(Ordering::Relaxed);
                poll(what, LIMIT, || {
                    let now = exchanged.load(Ordering::Relaxed);
                    let gone_on = now > before + 1 || traffic.is_finished();
                    Ok(gone_on.then_some(()).ok_or_else(|| format!("{now} exchanges")))
                })
                .unwrap();
            };
            more("traffic");
            killed.child.kill().unwrap();
            assert_eq!(killed.end(), None);
            more("traffic after the kill");
            done.store(true, Ordering::Relaxed);
            traffic.join().unwrap();
        });

        // Only the unused pair is left.
        poll("the end of the programs", LIMIT, || {
            let left = programs(host) + programs(&sandboxes[1]);
            Ok(if left == 0 { Ok(()) } else { Err(format!("{left} programs")) })
        })
        .unwrap();
        assert_eq!([links(host), links(&sandboxes[1])], with_pair);
        let status = served.status();
        assert_eq!(status["left_behind"], serde_json::json!([pair]), "{status}");
        assert_eq!(status["pid"], Value::Null);
        let said = served.accel(&["status"]);
        assert!(text(&said.stdout).contains(&format!("left over from a killed process: {pair} ")));

        if removed_by_off {
            let said = served.off();
            assert!(said.status.success(), "{}", text(&said.stderr));
            assert!(text(&said.stdout).starts_with(&format!("{pair}: removed")));
            assert_eq!([links(host), links(&sandboxes[1])], before);
            assert!(served.status().is_null(), "{}", served.status());
        }
    }

    // Remaining state is replaced, and works.
    let (mut next, _) = run(&served, "--all");
    assert_eq!([links(host), links(&sandboxes[1])], with_pair);
    connection.until_taken(&served);
    assert_eq!(served.status()["left_behind"], serde_json::json!([]));
    assert!(served.off().status.success());
    assert_eq!(next.end(), Some(0));
    assert_eq!([links(host), links(&sandboxes[1])], before);
    connection.exchange();
}

/// A confined process has preloaded programs for a namespace that is created later.
#[test]
fn a_sandbox_that_comes_later_is_accelerated_by_a_confined_process() {
    let network = require!(network());
    let served = Served::of(&network, "b");
    let mut connection = Connection::new(&network);
    let (mut running, _) = run(&served, "--all");
    connection.until_taken(&served);
    let sandboxes = ["a", "b"].map(|host| sandbox(&network, host));
    // Packets may still have been taken at the device of before.
    poll("the device of the sandbox", LIMIT, || {
        let status = served.status();
        let is_there = status["devices"][0]["device"] == device(&sandboxes[1]);
        Ok(is_there.then_some(()).ok_or_else(|| status.to_string()))
    })
    .unwrap();
    connection.until_taken(&served);
    assert!(served.off().status.success());
    assert_eq!(running.end(), Some(0));
}

/// Only the finder detects whether a sandbox is still kept.
#[test]
fn a_killed_finder_gives_sandboxes_back_to_the_slow_path() {
    let network = require!(network());
    let sandboxes = ["a", "b"].map(|host| sandbox(&network, host));
    let served = Served::of(&network, "b");
    let mut connection = Connection::new(&network);
    connection.exchange();
    let (mut running, _) = run(&served, "--all");
    connection.until_taken(&served);
    until_attached(&[&sandboxes[1]]);

    let pid = running.child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let is_finder = |child: &&str| {
        std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|c| c == "accel-finder\n")
    };
    let finder: Vec<&str> = children.split_whitespace().filter(is_finder).collect();
    assert_eq!(finder.len(), 1, "{children}");
    kill(Pid::from_raw(finder[0].parse().unwrap()), Signal::SIGKILL).unwrap();
    poll("the end of the programs in the sandbox", LIMIT, || {
        let left = programs(&sandboxes[1]);
        Ok(if left == 0 { Ok(()) } else { Err(format!("{left} programs")) })
    })
    .unwrap();
    connection.exchange();
    assert!(served.off().status.success());
    assert_eq!(running.end(), Some(0));
}

/// A unit's command, and its capabilities in setpriv's form.
fn unit(name: &str) -> (Vec<String>, Vec<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/systemd").join(name);
    let unit = std::fs::read_to_string(&path).unwrap();
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split(' ').map(|word| word.trim_start_matches("CAP_").to_lowercase()).collect()
    };
    let command: Vec<String> = value("ExecStart=/usr/bin/overlane ");
    (command, value("CapabilityBoundingSet="))
}

/// Starts a unit's command with these capabilities. Returns whether it accelerates the device.
fn start(
    served: &Served,
    command: &[String],
    capabilities: &[&str],
    device: &str,
) -> (Foreground, bool) {
    let set: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
    let mut confined = Command::new("setpriv");
    let bounds = format!("--bounding-set=-all{set}");
    confined.args(["--no-new-privs", "--inh-caps=-all", &bounds, OVERLANE]);
    confined.args(command.iter().map(|word| word.replace("%i", DEVICE)));
    confined.stderr(Stdio::null());
    let (running, said) = Foreground::attempt(&served.host, confined, None);
    (running, said.is_some_and(|said| said.contains(&format!("{device}: accelerated"))))
}

/// Whether the heartbeat thread of the process that serves the namespace has real-time priority.
/// The thread gives it up while it works.
fn runs_in_real_time(served: &Served) -> bool {
    /// `SCHED_RR` of `include/uapi/linux/sched.h`.
    const ROUND_ROBIN: &str = "2";
    let tasks = format!("/proc/{}/task", served.status()["pid"]);
    let stats = std::fs::read_dir(&tasks).unwrap().filter_map(|task| {
        // Other threads may end meanwhile.
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (head, fields) = stat.rsplit_once(") ").unwrap();
        // Field 41 of proc_pid_stat(5); these begin with the third.
        Some((head.ends_with("(accel"), fields.split(' ').nth(41 - 3) == Some(ROUND_ROBIN)))
    });
    stats.into_iter().any(|(accel, round_robin)| accel && round_robin)
}

#[test]
fn a_unit_gives_the_rights_that_its_command_needs_and_no_more() {
    require!(need::tool("setpriv"));
    let network = require!(network());
    // Where root cannot start a real-time thread, the capability does not help either.
    let possible = std::thread::spawn(|| sys::priority::real_time().is_ok()).join().unwrap();
    let mut connection = Connection::new(&network);
    let served = Served::of(&network, "b");
    let mut check = |name: &str, device: &str| {
        let (command, all) = unit(name);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let (running, _) = start(&served, &command, &all, device);
        // A process that ended for lack of privileges does not answer.
        assert!(!served.status().is_null(), "{name}: {all:?} do not suffice");
        connection.until_taken(&served);
        until(name, || runs_in_real_time(&served) == possible);
        drop(running);
        // The kernel's addresses are read only if SELinux is active, and kptr_restrict alone hides
        // them.
        let is_tested = |name: &&&str| **name != "syslog" && (possible || **name != "sys_nice");
        for without in all.iter().filter(is_tested) {
            // The next process finds nothing of the last one.
            served.off();
            let fewer: Vec<&str> = all.iter().copied().filter(|name| name != without).collect();
            let (_running, accelerated) = start(&served, &command, &fewer, device);
            let as_possible = || match runs_in_real_time(&served) == possible {
                true => Ok(Ok(())),
                false => Ok(Err("another priority".to_owned())),
            };
            let whole =
                accelerated && poll("priority", Duration::from_secs(1), as_possible).is_ok();
            assert!(!whole, "{name}: {without} is not needed");
        }
    };
    check("overlane-accel@.service", DEVICE);
    let sandbox = sandbox(&network, "b");
    check("overlane-accel.service", &device(&sandbox));
}

/// The command and the capabilities written in `examples/kubernetes/accel`.
fn daemonset() -> (Vec<String>, Vec<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/kubernetes/accel/base/daemonset.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let lines = || text.lines().map(str::trim);
    let words = lines().find_map(|line| line.strip_prefix("args: [")?.strip_suffix(']')).unwrap();
    let command = words.split(", ").map(|word| word.trim_matches('"').to_owned()).collect();
    let added = lines().skip_while(|line| *line != "add:").skip(1);
    let names = added.map_while(|line| line.strip_prefix("- ")?.split(' ').next());
    (command, names.map(str::to_lowercase).collect())
}

/// An image has few capabilities, and a container the listed ones.
#[test]
fn the_daemonset_gives_the_rights_that_its_command_needs() {
    require!(need::tool("setpriv"));
    let network = require!(network());
    let mut connection = Connection::new(&network);
    let served = Served::of(&network, "b");
    let (command, all) = daemonset();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(all.len(), 6, "{all:?}");
    // Devices of the node itself, as flannel's.
    let (running, _) = start(&served, &command, &all, DEVICE);
    assert!(!served.status().is_null(), "{all:?} do not suffice");
    connection.until_taken(&served);
    drop(running);
    // The chart adds this for devices in other namespaces.
    let more = [&all[..], &["sys_ptrace"]].concat();
    let sandbox = sandbox(&network, "b");
    let (_running, _) = start(&served, &command, &more, &device(&sandbox));
    assert!(!served.status().is_null(), "{more:?} do not suffice");
    connection.until_taken(&served);
}
