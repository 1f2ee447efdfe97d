//! Runs beside programs that use the CPUs: every cell gets an interval with the defaults, the other
//! programs are named first, and `--impact` keeps within its share.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use test_support::{Stop, need, require};

use super::launch::{OVERLANE, Running, overlane as program, run};
use super::machine::nothing_left;
use super::remote::{Two, inside, overlane, possible};
use super::schema;

/// A process that uses a CPU until it is dropped.
struct Burner(Child);

impl Burner {
    fn on(cpu: &str) -> Burner {
        let mut command = Command::new("taskset");
        command.args(["-c", cpu, "sh", "-c", "while :; do :; done"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Burner(command.spawn().unwrap())
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SHORT: [&str; 6] = ["--blocks", "6", "--duration", "0.05", "--warmup", "0.01"];

#[track_caller]
fn every_cell_has_an_interval(results: &Value) {
    for cell in results["cells"].as_array().unwrap() {
        let (mode, workload) = (&cell["mode"], &cell["workload"]);
        assert_eq!(cell["status"], "ok", "{mode} {workload}: {}", cell["reason"]);
        if cell["role"] != "baseline" {
            assert!(cell["ratio"]["low"].is_number(), "{mode} {workload}: no interval");
        }
    }
}

/// CPU time per unit of work is attributed to the load, or unknown: never the crumbs that remain
/// after subtracting the other programs' time.
#[track_caller]
fn no_cpu_time_is_a_crumb(results: &Value) {
    // Less than the system calls of a datagram, and of a transaction, take on any machine.
    for (workload, least_us) in [("udp_stream", 0.2), ("tcp_rr", 1.0)] {
        for cell in results["cells"].as_array().unwrap() {
            let demand = cell["service_demand"]["value"].as_f64();
            if cell["workload"] == workload {
                assert!(demand.is_none_or(|us| us > least_us), "{cell:#}");
                assert!(demand.is_some() || cell["service_demand_reason"].is_string(), "{cell:#}");
            }
        }
    }
}

#[test]
fn the_lab_has_an_interval_for_every_cell_beside_a_busy_cpu() {
    require!(need::root(), need::tools(&["taskset"]));
    let _burner = Burner::on("0");
    let ask = ["lab", "run", "--modes", "host,bridge", "--offload", "full", "--quick", "--json"];
    let mut command = program(ask);
    command.args(["--workloads", "tcp_rr,udp_stream", "--blocks", "4"]);
    let ended = Running::start(command).wait().expect(0);
    let results = ended.json();
    schema::validate("results", &results);
    every_cell_has_an_interval(&results);
    no_cpu_time_is_a_crumb(&results);
    assert_eq!(results["background"]["rule"], "background");
    assert!(results["background"]["machine"]["other"]["level"].as_f64().unwrap() > 0.1);
    // Names the programs before anything is measured.
    assert!(ended.stderr.contains("busy: other programs use "), "{}", ended.stderr);
    assert!(ended.stderr.contains("effect: ") && ended.stderr.contains("help: "));
    // At most twice the samples of the plan.
    let samples = |cell: &Value| cell["samples"].as_array().unwrap().len();
    let taken: usize = results["cells"].as_array().unwrap().iter().map(samples).sum();
    assert!(taken <= 2 * 6 * 4, "{taken}");
}

/// Spare CPU time does not matter: beside programs that take it all, a figure may be unknown.
#[test]
fn cpu_time_of_a_flood_is_that_of_the_load_beside_busy_cpus() {
    require!(need::root(), need::tools(&["taskset"]));
    let cpus = std::thread::available_parallelism().unwrap().get();
    let _burners: Vec<Burner> = (0..cpus).map(|cpu| Burner::on(&cpu.to_string())).collect();
    let ask = ["lab", "run", "--modes", "host,vxlan", "--offload", "full", "--quick", "--json"];
    let mut command = program(ask);
    command.args(["--workloads", "udp_stream", "--blocks", "3"]);
    let ended = Running::start(command).wait();
    let results: Value = serde_json::from_str(&ended.stdout).unwrap();
    schema::validate("results", &results);
    no_cpu_time_is_a_crumb(&results);
    for cell in results["cells"].as_array().unwrap() {
        let Some(demand) = cell["service_demand"]["value"].as_f64() else { continue };
        let samples = cell["samples"].as_array().unwrap().iter();
        let all_cpus = samples.filter(|sample| sample["valid"] == true).map(|sample| {
            let seconds = ["user", "system", "softirq", "irq"].map(|kind| &sample["cpu"][kind]);
            let seconds: f64 = seconds.iter().map(|seconds| seconds.as_f64().unwrap()).sum();
            seconds * 1e6 / sample["units"].as_f64().unwrap()
        });
        let most = all_cpus.fold(0.0, f64::max);
        assert!(demand <= most, "{demand} µs of {most} µs on all CPUs: {cell:#}");
    }
}

#[test]
fn a_strict_limit_is_kept_and_names_its_option() {
    require!(need::root(), need::tools(&["taskset"]));
    let _burner = Burner::on("0");
    let ask =
        ["lab", "run", "--modes", "host", "--offload", "full", "--disturbance", "1", "--json"];
    let mut command = program(ask);
    // The kernel counts foreign CPU time in ticks of 10 ms or less: a sample of 50 ms may see none.
    command.args([
        "--workloads",
        "tcp_rr",
        "--blocks",
        "2",
        "--duration",
        "0.4",
        "--warmup",
        "0.01",
    ]);
    let ended = Running::start(command).wait().expect(1);
    let results = ended.json();
    schema::validate("results", &results);
    assert_eq!(results["background"]["rule"], "strict");
    let reason = results["cells"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("used by other processes (limit 1.0%); --disturbance"), "{reason}");
    assert!(
        ended.stderr.contains("--disturbance 1, most samples will be void"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_gain_is_proven_beside_a_busy_cpu_with_the_defaults() {
    require!(possible(), need::tools(&["tc", "taskset"]));
    let two = Two::new();
    let slow = "tc qdisc replace dev nic0 root tbf rate 50mbit burst 64k latency 50ms";
    let free = "tc qdisc del dev nic0 root";
    let mut words = slow.split(' ');
    two.a.run(Command::new(words.next().unwrap()).args(words)).unwrap();
    let _server = two.serve();
    let _burner = Burner::on("0");
    let (token, journal) = (two.token(), two.path("journal").to_str().unwrap().to_owned());
    let words = [
        &["try", free, "--undo-with", slow, "--against", "10.9.0.2", "--json"][..],
        &["--workloads", "tcp_stream", "--keep", "never"],
        &["--token", &token, "--journal", &journal],
        &SHORT,
    ]
    .concat();
    let trial = Running::start(inside(&two.a, overlane(&words))).wait().expect(0);
    let json = trial.json();
    schema::validate("try", &json);
    assert_eq!(json["verdict"], "better", "{json:#}");
    every_cell_has_an_interval(&json["results"]);
    assert!(trial.stderr.contains("busy: other programs use "), "{}", trial.stderr);
}

#[test]
fn impact_keeps_to_its_share_and_says_what_it_proves() {
    require!(possible());
    let two = Two::new();
    let _server = two.serve_elsewhere();
    let ask = ["10.0.0.2", "--impact", "20%", "--blocks", "3", "--json"];
    let results = two.run(&ask).wait().expect(0).json();
    schema::validate("results", &results);
    let cells = results["cells"].as_array().unwrap();
    assert!(cells.iter().all(|cell| cell["unit"] == "us" && cell["status"] == "ok"), "{cells:#?}");
    let warnings: Vec<&str> =
        results["warnings"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
    assert!(warnings.iter().any(|warning| warning.contains("hold for a small load")));
    let took = warnings.iter().find_map(|warning| warning.strip_prefix("the test took "));
    let took = took.unwrap_or_else(|| panic!("{warnings:?}"));
    let share: f64 = took.split('%').next().unwrap().parse().unwrap();
    assert!(share > 0.0 && share <= 20.1, "{took}");
    // The server's machine is watched, too.
    let there = took.split("; it took ").nth(1).unwrap_or_else(|| panic!("{took}"));
    let (share, of) = there.split_once("% of the server's CPUs (final bound ").unwrap();
    assert!((0.0..=20.1).contains(&share.parse::<f64>().unwrap()), "{took}");
    assert!(of.contains("% of CPU time, other programs left "), "{took}");

    for (words, problem) in [
        (["--workloads", "tcp_stream"], "tcp_stream saturates the path"),
        (["--load", "50"], "needs a full load"),
        (["--engine", "iperf3"], "cannot be limited"),
    ] {
        let refused = run([&["measure", "run", "10.0.0.2", "--impact", "5%"], &words[..]].concat());
        let stderr = refused.expect(2).stderr;
        assert!(stderr.contains(problem) && stderr.contains("--impact"), "{stderr}");
    }
    for wrong in ["0", "51%", "x", "-1", "nan"] {
        let refused = run(["lab", "run", &format!("--impact={wrong}")]).expect(2);
        assert!(refused.stderr.contains("expected 0.1% to 50%"), "{}", refused.stderr);
    }
}

#[test]
fn traffic_of_the_server_s_machine_is_said_first() {
    require!(possible());
    let two = Two::new();
    let _server = two.serve_elsewhere();
    let stop = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| two.a.netns().run(|| send_until(&stop, "10.0.0.2:9")).unwrap());
        let ask = ["10.0.0.2", "--workloads", "tcp_rr", "--json"];
        let _stop = Stop(&stop);
        two.run(&[&ask[..], &SHORT].concat()).wait()
    });
    let (first, _) = ended.stderr.split_once("sampling ").expect("samples in the log");
    let said = " packets/s pass the server's machine: --impact 5% keeps the test below 5%";
    assert!(first.contains(said), "{}", ended.stderr);
    ended.expect(0);
}

/// Sends some thousand datagrams a second to a closed port.
fn send_until(stop: &AtomicBool, to: &str) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    while !stop.load(Ordering::Relaxed) {
        // Refused, because the port is closed.
        (0..20).for_each(|_| drop(socket.send_to(&[0; 64], to)));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A control group that limits its processes to a fifth of a CPU.
struct Held(PathBuf);

impl Held {
    /// # Errors
    /// Why this machine lets none be made.
    fn new() -> Result<Held, String> {
        let name = format!("overlane-test-{}", std::process::id());
        let first = Path::new("/sys/fs/cgroup/cpu");
        let version_1 = first.join("cgroup.procs").exists();
        let above = if version_1 { first } else { Path::new("/sys/fs/cgroup") };
        let held = Held(above.join(name));
        let what = |error: std::io::Error| format!("a CPU limit for a control group: {error}");
        fs::create_dir(&held.0).map_err(what)?;
        let limits: &[(&str, &str)] = match version_1 {
            true => &[("cpu.cfs_period_us", "10000"), ("cpu.cfs_quota_us", "2000")],
            false => &[("cpu.max", "2000 10000")],
        };
        for (file, limit) in limits {
            fs::write(held.0.join(file), limit).map_err(what)?;
        }
        Ok(held)
    }

    /// Time for which its processes were throttled.
    fn throttled(&self) -> Duration {
        let stat = fs::read_to_string(self.0.join("cpu.stat")).unwrap();
        let value = |key: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().parse::<u64>().ok()
        };
        let version_1 = value("throttled_time ").map(Duration::from_nanos);
        version_1.or(value("throttled_usec ").map(Duration::from_micros)).unwrap()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The kernel removes it once the last process of the test hosts is gone.
        let until = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.0).is_err() && self.0.exists() && Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_limit_on_overlane_itself_is_said_and_is_part_of_the_background() {
    require!(need::root());
    let held = match Held::new() {
        Ok(held) => held,
        Err(reason) => return test_support::skipped(&reason),
    };
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ >\"$0\"/cgroup.procs && exec \"$@\""]).arg(&held.0);
    command.args([OVERLANE, "lab", "run", "--modes", "host,bridge", "--offload", "full", "--json"]);
    command.args(["--workloads", "tcp_rr", "--blocks", "6", "--duration", "0.1"]);
    let ended = Running::start(command).wait().expect(0);
    let results = ended.json();
    schema::validate("results", &results);
    every_cell_has_an_interval(&results);
    let said = "limit: a control group limits overlane to 0.20 of ";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    let warnings = results["warnings"].as_array().unwrap().iter();
    assert!(warnings.clone().any(|one| one.as_str().unwrap().starts_with(said)), "{results:#}");
    // If other programs leave less CPU time than the limit, the limit throttles nothing.
    let throttled = &results["background"]["machine"]["throttled"];
    if held.throttled() > ended.took / 2 {
        assert!(throttled["level"].as_f64().unwrap() > 0.0, "{throttled:#}");
    }
}

#[test]
fn a_rest_is_interrupted_and_what_there_is_is_written() {
    require!(possible());
    let two = Two::new();
    let _server = two.serve();
    let ask = ["10.0.0.2", "--impact", "0.1%", "--workloads", "tcp_rr", "--json"];
    let mut client = two.run(&ask);
    client.await_samples(1);
    client.await_next_stderr("resting ");
    let mark = client.mark().to_owned();
    client.signal(Signal::SIGINT);
    let results = client.wait().expect(130).json();
    schema::validate("results", &results);
    assert_eq!(results["ended_by"], "interrupted");
    let samples = results["cells"].as_array().unwrap().iter();
    assert!(samples.map(|cell| cell["samples"].as_array().unwrap().len()).sum::<usize>() >= 1);
    nothing_left(&mark);
}
