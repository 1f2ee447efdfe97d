//! Kill -9 of any process of a run, at any moment, leaves nothing.
//!
//! `OVERLANE_KILLS` sets how many times, `OVERLANE_KILL_SEED` from which seed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use test_support::{left_out, need, require};

use super::launch::{LIMIT, OVERLANE, Running, entries, eventually, overlane};
use super::machine::{Found, links, marked, nothing_left};
use super::schema;

/// SplitMix64 (Steele, Lea, Flood 2014): enough to choose moments by.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is no number")))
}

/// Descriptors that a run of all modes may need.
const ALL_MODES: u64 = 4096;

/// Starts a short run with one measurement of every mode that this machine can build.
fn start(out: &Path) -> Running {
    let mut command = overlane(["lab", "run", "--modes", "all", "--workloads", "tcp_rr"]);
    command.args(["--offload", "full", "--blocks", "1", "--duration", "0.05", "--warmup", "0.02"]);
    command.args(["--disturbance", "100", "--out"]).arg(out).env("OVERLANE_LOG", "overlane=debug");
    Running::start(command)
}

/// The results file, if it exists; it must then be complete.
fn whole(out: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(out).ok()?;
    let results = serde_json::from_str(&text).unwrap();
    schema::validate("results", &results);
    Some(results)
}

/// Namespaces of these processes, and namespaces that they hold open: `net:[INODE]`.
fn namespaces(of: &[Found]) -> BTreeSet<String> {
    let directories =
        of.iter().flat_map(|found| ["ns", "fd"].map(|kind| format!("/proc/{}/{kind}", found.pid)));
    let entries = directories.filter_map(|directory| std::fs::read_dir(directory).ok()).flatten();
    let targets = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let names = targets.map(|target| target.to_string_lossy().into_owned());
    names.filter(|name| name.contains(":[") && name.ends_with(']')).collect()
}

/// The namespaces among these that are pinned to files, which outlive processes.
fn pinned(of: &BTreeSet<String>) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = |line: &&str| line.split(' ').nth(3).is_some_and(|root| of.contains(root));
    mounts.lines().filter(root).map(str::to_owned).collect()
}

/// Programs that live as long as their mode.
const DAEMONS: [&str; 4] = ["docker-proxy", "ovs-vswitchd", "ovsdb-server", "overlane-init"];

#[test]
fn killed_at_random_moments() {
    const TEST: &str = "killed_at_random_moments";
    require!(need::root(), need::descriptors(ALL_MODES));
    // Without them there are fewer modes, but the test still runs.
    for program in ["docker-proxy", "ovs-vswitchd"] {
        let _ = need::tool(program).inspect_err(|missing| left_out(missing));
    }
    let seed = number("OVERLANE_KILL_SEED").unwrap_or_else(|| {
        u64::from(std::process::id()) ^ u64::from(Instant::now().elapsed().subsec_nanos())
    });
    eprintln!("{TEST}: OVERLANE_KILL_SEED={seed}");
    let mut random = Random(seed);
    let links_before = links();
    // Other programs may pin the machine's own namespace.
    let machines =
        namespaces(&[Found { pid: std::process::id().cast_signed(), name: String::new() }]);

    let undisturbed = {
        let directory = tempfile::tempdir().unwrap();
        let running = start(&directory.path().join("r.json"));
        let mark = running.mark().to_owned();
        let ended = running.wait();
        let results = whole(&directory.path().join("r.json"));
        assert_is_complete(&ended, &results.unwrap_or_else(|| panic!("no results: {ended:#?}")));
        nothing_left(&mark);
        ended.took
    };
    let mut killed: Vec<String> = Vec::new();
    for _ in 0..number("OVERLANE_KILLS").unwrap_or(12) {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("r.json");
        let mut running = start(&out);
        let mark = running.mark().to_owned();
        // The test varies this moment; it waits for no event.
        std::thread::sleep(undisturbed.mul_f64(random.below(1000) as f64 / 1000.0));
        let itself = |found: &Found| found.pid == running.pid();
        let all = marked(&mark);
        let theirs: BTreeSet<String> = &namespaces(&all) - &machines;
        let (own, others): (Vec<Found>, Vec<Found>) = all.into_iter().partition(itself);
        let victims = if others.is_empty() || random.below(3) == 0 { &own } else { &others };
        if victims.is_empty() {
            // It ended sooner than the undisturbed run.
            let ended = running.wait();
            let results = whole(&out).unwrap_or_else(|| panic!("{others:?}: {ended:#?}"));
            assert_is_complete(&ended, &results);
            continue;
        }
        let victim = victims[random.below(victims.len())].clone();
        let when = SystemTime::now();
        let _ = kill(Pid::from_raw(victim.pid), Signal::SIGKILL);
        let mine = victim.pid == running.pid();
        eprintln!("{TEST}: {} ({}) killed, {} others ran", victim.name, victim.pid, others.len());
        let ended = if mine {
            eventually("its end", || if running.runs() { Err("runs".into()) } else { Ok(()) });
            running.wait()
        } else {
            let ended = running.wait_at_most(LIMIT);
            assert_reported(&ended, &victim, when, &whole(&out).unwrap());
            ended
        };
        if mine && ended.code != Some(0) {
            assert_eq!(ended.signal, Some(9), "{ended:#?}");
        }
        nothing_left(&mark);
        let left = entries(directory.path());
        assert!(left.is_empty() || left == ["r.json"], "{left:?}");
        whole(&out);
        assert_eq!(links(), links_before);
        assert_eq!(pinned(&theirs), Vec::<String>::new());
        killed.push(victim.name);
    }
    killed.sort();
    eprintln!("{TEST}: killed {killed:?}");
}

/// Asserts that a run is complete. A cell whose only sample was void, because of a kill or a
/// starved machine, has no figure.
#[track_caller]
fn assert_is_complete(ended: &super::launch::Ended, results: &Value) {
    assert_eq!(results["complete"], true, "{ended:#?}");
    let cells = results["cells"].as_array().unwrap();
    let failed = |cell: &&Value| cell["status"] == "failed";
    let is_void = |sample: &Value| sample["valid"] == false;
    let void = |cell: &Value| cell["samples"].as_array().unwrap().iter().all(is_void);
    assert!(cells.iter().filter(failed).all(void), "{ended:#?}");
    let empty = cells.iter().any(|cell| failed(&cell));
    assert_eq!(ended.code, Some(i32::from(empty)), "{ended:#?}");
}

/// Asserts that a run continues after the kill of `victim`, and names the failed mode and the
/// reason.
fn assert_reported(
    ended: &super::launch::Ended,
    victim: &Found,
    when: SystemTime,
    results: &Value,
) {
    let bad: Vec<&Value> =
        results["modes"].as_array().unwrap().iter().filter(|mode| mode["status"] != "ok").collect();
    // `lab list` has these reasons in any case.
    let why: Vec<&str> = bad
        .iter()
        .filter(|mode| !mode["reason"].as_str().unwrap().starts_with("kernel has no "))
        .map(|mode| mode["reason"].as_str().unwrap())
        .collect();
    let daemon = DAEMONS.contains(&victim.name.as_str());
    if why.is_empty() {
        // The process was about to end: the run's own end kills the daemons, and a short program
        // may have finished.
        let measured = ended.stderr.lines().find(|line| line.contains("measured"));
        let at = measured.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
        let margin = when + Duration::from_millis(500);
        let killed_at = humantime::format_rfc3339_micros(margin).to_string();
        assert!(
            !daemon || killed_at.as_str() > at,
            "{victim:?} killed, and nobody said so: {ended:#?}"
        );
        assert_is_complete(ended, results);
        return;
    }
    if daemon {
        assert_eq!(ended.code, Some(1), "{victim:?}: {ended:#?}");
        assert!(bad.iter().any(|mode| mode["status"] == "failed"), "{bad:#?}");
    }
    if daemon && victim.name != "overlane-init" {
        // The reason names it, or the program that found it missing.
        assert!(
            why.iter().any(|why| why.contains(&victim.name) || why.contains("ovs-")),
            "{victim:?}: {why:?}"
        );
    }
}

#[test]
fn killed_runs_give_their_namespaces_back_to_the_kernel() {
    require!(need::root(), need::tools(&["unshare", "nsenter"]), need::descriptors(ALL_MODES));
    // A user namespace with a limit on network namespaces: host needs 2, vxlan 4, the probes 1. The
    // kernel counts them.
    const MOST: u32 = 8;
    let mut command = Command::new("unshare");
    let script = format!(
        "echo {MOST} > /proc/sys/user/max_net_namespaces && echo ready >&2 && exec sleep 1000"
    );
    command.args(["--user", "--map-root-user", "sh", "-c", &script]);
    let mut holder = Running::start(command);
    holder.await_stderr("ready");
    let user = format!("--user=/proc/{}/ns/user", holder.pid());
    let run = |blocks: &str| {
        let mut command = Command::new("nsenter");
        command.args([
            &user[..],
            "--preserve-credentials",
            OVERLANE,
            "lab",
            "run",
            "--modes",
            "vxlan",
        ]);
        command.args([
            "--workloads",
            "tcp_rr",
            "--offload",
            "full",
            "--blocks",
            blocks,
            "--duration",
            "0.05",
        ]);
        command.args(["--disturbance", "100"]).env("OVERLANE_LOG", "overlane=debug");
        Running::start(command)
    };
    for _ in 0..4 {
        // The kernel removes namespaces some time after the process ends.
        eventually("as many namespaces as before", || {
            let mut running = run("1000");
            let mark = running.mark().to_owned();
            let stands = eventually("vxlan is measured, or why not", || {
                let ended = !running.runs();
                match running.stderr_so_far() {
                    said if said.contains("sampling vxlan") => Ok(true),
                    _ if ended => Ok(false),
                    said => Err(said),
                }
            });
            let mut why = String::new();
            if stands {
                drop(running);
            } else {
                // Its whole output, some of which may arrive after its end.
                let ended = running.wait();
                assert!(ended.stderr.contains("No space left on device"), "{ended:#?}");
                why = ended.stderr;
            }
            nothing_left(&mark);
            if stands { Ok(()) } else { Err(why) }
        });
    }
}
